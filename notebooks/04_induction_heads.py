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
# # 4. The birth of induction heads
#
# **Asked:** when does a model learn to copy from its context, and do attention heads that look at
# *what followed the same token last time* (induction heads) appear at that moment?
#
# A model of two blocks (width 64, four heads each) learns from synthetic sequences: a segment of
# random tokens of a random length, repeated until the sequence is full. Nothing but copying helps,
# and only the targets that can be copied count in the loss.

# %%
import os

import matplotlib.pyplot as plt
import polars as pl

from pico import Lake

lake = Lake(os.path.join(os.environ.get("PICO_NOTEBOOK_LAKES", "lakes"), "induction"))

# %% [markdown]
# Every 20 steps the heads are scored on the probe `repeat`: random tokens said twice, the same ones
# every time, of which training has seen none.

# %%
config = {
    "seeds": {"init": 0, "data": 0},
    "max_steps": 400,
    "data": {"source": "induction", "vocab_size": 64, "seq_len": 64, "heldout_fraction": 0.01},
    "model": {
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "d_hidden": 128,
        "context": 64,
    },
    "optimizer": {
        "lr": 3e-3,
        "warmup_steps": 20,
        "schedule": "constant",
        "betas": [0.9, 0.98],
        "weight_decay": 0.01,
    },
    "batch": {"size": 32},
    "evaluate": {"every": 20},
    "accelerator": "cpu",
    "record": {
        "probes": {
            "repeat": {"n_sequences": 8, "every": 20, "record": ["token_scores", "attention"]}
        }
    },
}
lake.train(config, "two-layers")

# %% [markdown]
# What a sequence looks like (tokens are single characters), and which of its targets count:

# %%
lake.sql("""
    SELECT detokenize(tokens, (SELECT min(tokenizer) FROM vocab)) AS text, extra
    FROM sequences WHERE dataset = 'induction' ORDER BY sequence_id LIMIT 3
""").pl()

# %% [markdown]
# `late_loss` is the loss in the second half of `repeat`, where every token can be copied.

# %%
in_context = lake.query("in_context_score", run="two-layers").pl()
in_context.filter(pl.col("step").is_between(160, 320))

# %% [markdown]
# The induction score of a head is its mean attention from a token of the second half to the token
# that followed it in the first. The previous-token score is the attention to the place before.

# %%
induction = lake.query("induction_by_head", run="two-layers").pl()
previous = lake.query("induction_by_head", run="two-layers", metric="previous_token_score").pl()
best = induction.sort("score").tail(1).row(0, named=True)
f"layer {best['layer']}, head {best['head']}: {best['score']:.2f} at step {best['step']}"

# %% [markdown]
# Which came first? The steps at which a head of each layer first exceeds a quarter:

# %%
scores = pl.concat(
    [
        induction.with_columns(kind=pl.lit("induction")),
        previous.with_columns(kind=pl.lit("previous")),
    ]
)
scores.filter(pl.col("score") > 0.25).group_by("kind", "layer").agg(
    pl.col("step").min(), pl.col("head").sort_by("step").first()
).sort("step")

# %% [markdown]
# **Seen:** for 180 steps the loss stays near 4, just under ln 64 = 4.16. Then it falls to 0.5
# within some 80 steps, and in the same steps all four heads of the second block rise from almost 0
# to between 0.5 and 0.7. In the first block no head does; there one head turns to the place before.
# That shift begins with the fall and ends after it: the two halves of the circuit grow together.
# Three other seeds of the weights show the same: the fall at step 240 or 260, and a head at 0.8.
#
# **Meaning:** the circuit of Elhage et al. (2021) and the sudden drop of Olsson et al. (2022), in a
# model of less than a hundred thousand weights. That they coincide does not prove that one causes
# the other; removing the heads would be the test. The data were made for it: text has other ways to
# lower the loss, and there the change is less clean. And as targets outside of the copies do not
# count, the model grows worse than guessing on them (`early_loss` above), as with no text.

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
above.plot(in_context["step"], in_context["late_loss"], marker=".", color="black")
above.set(ylabel="nats per token", title="Loss where the context can be copied")
wide = induction.with_columns(name=pl.format("{}.{}", "layer", "head")).pivot(
    on="step", index="name", values="score"
)
steps = [int(step) for step in wide.columns[1:]]
image = below.pcolormesh(
    steps, range(wide.height), wide.drop("name").to_numpy(), vmin=0, vmax=1, shading="nearest"
)
below.set_yticks(range(wide.height), wide["name"])
below.set(xlabel="step", ylabel="layer.head", title="Induction score")
figure.colorbar(image, ax=below)
plt.show()
