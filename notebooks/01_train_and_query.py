# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Train and query
#
# **Asked:** what does a lake keep of a training run, and how is it asked?
#
# A toy model (two blocks, width 48) learns for 60 steps from 200 kB of Python's standard library.
# It takes seconds and learns little more than which tokens are frequent; what matters here is the
# way from a config to a figure.

# %%
import os

import matplotlib.pyplot as plt

from pico import Lake

lake = Lake(os.path.join(os.environ.get("PICO_NOTEBOOK_LAKES", "lakes"), "first"))

# %% [markdown]
# A config is plain data. `record` says what is kept and when: here all weights and gradients every
# 10 steps. A run that is in the lake already is not trained again.

# %%
config = {
    "max_steps": 60,
    "data": {"source": "stdlib", "max_bytes": 200_000, "vocab_size": 384, "seq_len": 64},
    "model": {"d_model": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "context": 64},
    "optimizer": {"lr": 3e-3, "warmup_steps": 10},
    "batch": {"size": 8},
    "evaluate": {"every": 10},
    "accelerator": "cpu",
    "record": {"weights": {"every": 10}, "gradients": {"every": 10}},
}
lake.train(config, "toy")

# %% [markdown]
# Everything is a table. Each row of `weights` is a tensor at a step, so SQL reaches every one of
# them, and the functions of `pico functions` compute on them.

# %%
lake.sql("""
    SELECT step, layer, shape, effective_rank(tensor) AS effective_rank
    FROM weights
    WHERE component = 'o' AND step IN (0, 60)
    ORDER BY layer, step
""").pl()

# %% [markdown]
# Shipped queries answer what is asked often; `lake.queries()` lists them.

# %%
ranks = lake.query("effective_rank_by_layer", run="toy", component="o").pl()
ranks.tail(4)

# %%
losses = lake.sql("""
    SELECT step, name, value FROM scalars
    WHERE name IN ('loss', 'heldout_loss') ORDER BY step
""").pl()
losses.tail(4)

# %% [markdown]
# **Seen:** the loss falls from about 6.2 nats (guessing evenly among 384 tokens costs 5.95) to 4.4,
# and most of that in 30 steps. The effective rank of the attention output weights hardly moves: by
# a quarter of a per cent in the first block, by one per cent in the second.
#
# **Meaning:** the quickest gains, token frequencies, need little change in these matrices. One run
# of 60 steps proves nothing beyond itself; the next notebooks look closer.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for (name,), rows in losses.group_by("name", maintain_order=True):
    left.plot(rows["step"], rows["value"], label=name)
left.set(xlabel="step", ylabel="nats per token", title="Loss")
left.legend()
for (layer,), rows in ranks.group_by("layer", maintain_order=True):
    right.plot(rows["step"], rows["effective_rank"], marker="o", label=f"layer {layer}")
right.set(xlabel="step", ylabel="effective rank", title="Attention output weights")
right.legend()
plt.show()
