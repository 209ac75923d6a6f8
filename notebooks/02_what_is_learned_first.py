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
# # 2. What is learned first
#
# **Asked:** in which order does a language model learn its tokens: frequent ones before rare ones,
# predictable ones before surprising ones?
#
# A small model (four blocks, width 64) reads 400 kB of Python's standard library for 300 steps. At
# steps that double, its loss on every token of the same held-out rows is stored.

# %%
import os

import matplotlib.pyplot as plt

from pico import Lake

lake = Lake(os.path.join(os.environ.get("PICO_NOTEBOOK_LAKES", "lakes"), "order"))

# %%
config = {
    "max_steps": 300,
    "data": {
        "source": "stdlib",
        "max_bytes": 400_000,
        "vocab_size": 1024,
        "seq_len": 64,
        "heldout_fraction": 0.1,
    },
    "model": {"d_model": 64, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "context": 64},
    "optimizer": {"lr": 3e-3, "warmup_steps": 20, "schedule": "cosine"},
    "batch": {"size": 16},
    "evaluate": {"every": 100},
    "accelerator": "cpu",
    "record": {
        "probes": {"text": {"n_sequences": 48, "schedule": "pythia", "record": ["token_scores"]}}
    },
}
lake.train(config, "small")

# %% [markdown]
# A row of `token_scores` is one token at one step: its loss, its rank among all tokens, and the
# entropy of the prediction.

# %%
lake.sql("""
    SELECT step, count(*) AS tokens, avg(loss) AS loss, avg((rank = 0)::INT) AS top1_right
    FROM token_scores WHERE layer IS NULL GROUP BY step ORDER BY step
""").pl()

# %% [markdown]
# Bands of frequency: `count_from` is the power of ten below a token's count in the training text.

# %%
by_frequency = lake.query("loss_by_frequency", run="small").pl()
by_frequency.filter(by_frequency["step"] == 300)

# %% [markdown]
# Bands of bigram surprisal: how unexpected a token is to somebody who knows the token before it and
# has counted pairs. Low bands are what a table of bigrams predicts well.

# %%
by_surprisal = lake.query("loss_by_surprisal", run="small").pl()
by_surprisal.filter(by_surprisal["step"] == 300)

# %% [markdown]
# **Seen:** by step 32 the tokens that occur a thousand times have lost half of their loss, and
# those that occur 10 to 99 times are *dearer* than at the start: the model learns first how often
# each token occurs. Only then do the rarer ones follow. By surprisal, the lowest band falls longest
# and furthest, and bands above 10 nats stay where they began.
#
# **Meaning:** frequency comes before context, as reported of far larger models, and what a table of
# bigrams finds hard is hard for this model too. It is small, 300 steps are few, and a thousand
# held-out tokens are not many: the high bands hold some forty each (see `n_targets`), so that their
# order among each other says nothing. Bands of fewer than 20 tokens are left out.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
bands = (
    (axes[0], by_frequency, "count_from", "count in the training text ≥"),
    (axes[1], by_surprisal, "surprisal_from", "bigram surprisal (nats) ≥"),
)
for axis, answer, band, title in bands:
    for (low,), rows in answer.sort(band).group_by(band, maintain_order=True):
        if rows["n_targets"][0] >= 20:
            axis.plot(rows["step"] + 1, rows["loss"], marker=".", label=f"{low:g}")
    axis.set(xscale="log", xlabel="step + 1")
    axis.legend(title=title, ncols=2, fontsize="small")
axes[0].set_ylabel("loss (nats per token)")
plt.show()
