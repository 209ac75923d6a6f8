"""What a run is made of: frozen dataclasses, read from YAML plus `key=value` overrides.

`load` is called by the command line and by `Lake.train`; it collects every problem of a config and
raises them as one `ConfigError`. The resolved config (`as_mapping`) is stored in the lake's `runs`
table, so that a run can be repeated from the lake alone. The `record` section stays a plain mapping
here: its grammar belongs to `pico.record.schedule`, which users of other training loops call too.
"""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from pico import conversion, resources
from pico.errors import ConfigError, did_you_mean

INDUCTION = "induction"
"""The source of synthetic sequences."""


def _within(config: Any, section: str, **limits: tuple[float, float]) -> None:
    """Refuse values of a config that lie outside their limits, None excepted."""
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            bounds = f"at least {low}" if high == math.inf else f"between {low} and {high}"
            raise ConfigError(f"{section}.{name} must be {bounds}, not {value}")


@dataclass(frozen=True)
class SeedsConfig:
    """Three independent seeds, so that one can be varied while the others stand."""

    init: int = 0
    """Initialisation of the weights."""
    data: int = 0
    """Order of the training sequences."""
    dropout: int = 0
    """Dropout masks; without dropout it changes nothing."""

    def __post_init__(self) -> None:
        """Refuse seeds that the generators cannot take."""
        limits = dict.fromkeys(("init", "data", "dropout"), (0, 2**32 - 1))
        _within(self, "seeds", **limits)


@dataclass(frozen=True)
class InductionConfig:
    """The sequences of `data.source: induction` (see `pico.data.induction`)."""

    n_sequences: int = 16384
    """Sequences that training sees; held-out ones, a share of as many, come on top."""
    seed: int = 0
    """Decides the tokens, together with a sequence's number."""

    def __post_init__(self) -> None:
        """Refuse counts and seeds out of range."""
        _within(self, "data.induction", n_sequences=(1, 2**31 - 1), seed=(0, 2**32 - 1))


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from and how it becomes sequences of token ids."""

    source: str = "stdlib"
    """`stdlib`, the path of a text file, a folder of text files or a `.jsonl` file; or
    `induction`: random tokens repeated, of `vocab_size` kinds, with a loss on the repetitions."""
    name: str | None = None
    """Name of the data set in the lake; by default made from the source."""
    tokenizer: str | None = None
    """Path of a `tokenizer.json`; without one, a byte-level BPE is trained on the text."""
    vocab_size: int = 4096
    """Size of a trained tokenizer (ignored when `tokenizer` is given)."""
    seq_len: int = 256
    """Tokens a model sees at once; a stored sequence has one more, for the targets."""
    heldout_fraction: float = 0.02
    """Share of the documents that training never sees."""
    max_bytes: int | None = None
    """Stop reading the source after this many bytes of text; by default all of it."""
    workers: int = 0
    """Processes that prepare batches ahead; 0: the training process reads them itself."""
    induction: InductionConfig = field(default_factory=InductionConfig)
    """How many synthetic sequences, and their seed (ignored with other sources)."""

    def __post_init__(self) -> None:
        """Refuse sizes and shares out of range, and what the source has no use for."""
        is_made = self.source == INDUCTION
        sizes, least = ((3, 16384), 4) if is_made else ((257, 2**31 - 1), 1)
        _within(self, "data", seq_len=(least, 2**30), max_bytes=(1, math.inf))
        _within(self, "data", vocab_size=sizes, heldout_fraction=(0.0, 0.99))
        _within(self, "data", workers=(0, 1024))
        for name in ("tokenizer", "max_bytes") if is_made else ():
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"data.{name} is {getattr(self, name)!r}, but the source induction reads no "
                    "text; leave it out"
                )


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a pico-decoder; names and defaults are those of pico-train."""

    architecture: str = "pico-decoder"
    """Only `pico-decoder` can be trained so far."""
    d_model: int = 768
    """Width of the residual stream."""
    n_layers: int = 12
    """Number of blocks."""
    n_heads: int = 12
    """Query heads; `d_model` must be a multiple."""
    n_kv_heads: int = 4
    """Key and value heads (grouped-query attention); `n_heads` must be a multiple."""
    d_hidden: int | None = None
    """Width inside the SwiGLU; by default 4 · d_model."""
    vocab_size: int | None = None
    """Rows of the embedding; by default the tokenizer's size (50,304 without a tokenizer)."""
    context: int = 2048
    """Longest sequence that the model accepts."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-6
    """Epsilon inside RMSNorm."""
    dropout: float = 0.0
    """Dropout on the output of attention and SwiGLU, in training only."""
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """How attention is computed, in Hugging Face's words."""

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other."""
        counts = (
            "d_model",
            "d_hidden",
            "n_layers",
            "n_heads",
            "n_kv_heads",
            "vocab_size",
            "context",
        )
        _within(self, "model", **dict.fromkeys(counts, (1, 2**31 - 1)))
        _within(self, "model", rope_theta=(1.0, math.inf), norm_eps=(0.0, 1.0))
        if self.architecture != "pico-decoder":
            raise ConfigError(
                f"architecture {self.architecture!r} cannot be trained; use 'pico-decoder'"
            )
        if self.d_model % self.n_heads:
            raise ConfigError(f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}")
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}"
            )
        if self.d_head % 2:
            raise ConfigError(f"d_model / n_heads = {self.d_head} is odd; RoPE turns pairs")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}")

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def hidden(self) -> int:
        """Width inside the SwiGLU, the default resolved."""
        return 4 * self.d_model if self.d_hidden is None else self.d_hidden


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    lr: float = 3e-4
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of the first and second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled weight decay; never applied to norms and biases."""
    warmup_steps: int = 0
    """Steps of linear warm-up; step 0 already has a learning rate above zero."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls after the warm-up."""
    min_lr_ratio: float = 0.0
    """Where it falls to, as a share of the peak."""
    max_grad_norm: float | None = 1.0
    """Clip the gradient to this global norm; null: do not clip."""

    def __post_init__(self) -> None:
        """Refuse rates out of range."""
        _within(self, "optimizer", lr=(0.0, 1e9), eps=(0.0, 1.0))
        _within(self, "optimizer", weight_decay=(0.0, math.inf), warmup_steps=(0, math.inf))
        _within(self, "optimizer", min_lr_ratio=(0.0, 1.0), max_grad_norm=(0.0, math.inf))
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ConfigError(f"optimizer.betas must lie in [0, 1), not {list(self.betas)}")


@dataclass(frozen=True)
class BatchConfig:
    """How many sequences one optimizer step sees, and in what portions."""

    size: int = 32
    """Sequences per optimizer step."""
    micro_size: int | None = None
    """Sequences per forward and backward pass; must divide `size`; by default all at once."""

    def __post_init__(self) -> None:
        """Refuse a micro-batch that does not divide the batch."""
        if self.size < 1:
            raise ConfigError(f"batch.size must be at least 1, not {self.size}")
        if self.micro_size is not None and (self.micro_size < 1 or self.size % self.micro_size):
            raise ConfigError(
                f"batch.micro_size {self.micro_size} does not divide batch.size {self.size}"
            )

    @property
    def micro(self) -> int:
        """Sequences per pass, the default resolved."""
        return self.size if self.micro_size is None else self.micro_size


@dataclass(frozen=True)
class EvaluateConfig:
    """The held-out loss during training."""

    every: int = 100
    """Steps between two evaluations; 0: only at the end."""
    n_sequences: int = 64
    """Held-out sequences used, the same ones every time."""

    def __post_init__(self) -> None:
        """Refuse counts out of range."""
        _within(self, "evaluate", every=(0, math.inf), n_sequences=(1, math.inf))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes and what of it is stored."""

    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    """Seeds of initialisation, data order and dropout."""
    max_steps: int = 1000
    """Optimizer steps of the whole run."""
    data: DataConfig = field(default_factory=DataConfig)
    """Text source, tokenizer and sequence length."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Sizes of the model."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW, learning rate and clipping."""
    batch: BatchConfig = field(default_factory=BatchConfig)
    """Batch and micro-batch."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """Held-out loss."""
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "64-true"] = "32-true"
    """Lightning Fabric's precision."""
    accelerator: Literal["auto", "cpu", "cuda", "gpu", "mps"] = "auto"
    """Lightning Fabric's accelerator."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is written and when (see `pico.record.plan`); a checkpoint every 1000 steps at least."""

    def __post_init__(self) -> None:
        """Refuse a run of no steps and a context shorter than the sequences."""
        if self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, not {self.max_steps}")
        if self.data.seq_len < 1 or self.data.seq_len > self.model.context:
            raise ConfigError(
                f"data.seq_len {self.data.seq_len} must lie between 1 and "
                f"model.context {self.model.context}"
            )


def load(config: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Read a run's config from a file, a shipped name or a mapping, and apply overrides.

    Args:
        config: path of a YAML file, the name of a shipped config, or a mapping.
        overrides: `key=value` strings with dotted keys, values in YAML: `seeds.init=7`.

    Raises:
        ConfigError: with every problem found, one per sentence.
    """
    mapping = dict(config) if isinstance(config, Mapping) else _read_yaml(config)
    for override in overrides:
        conversion.apply_override(mapping, override)
    problems: list[str] = []
    run = conversion.build(RunConfig, mapping, "", problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return typing.cast(RunConfig, run)


def as_mapping(config: Any) -> dict[str, Any]:
    """Return a config dataclass as plain nested dicts and lists, as YAML and JSON want them."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value

    return typing.cast(dict[str, Any], plain(dataclasses.asdict(config)))


def _read_yaml(config: str | Path) -> dict[str, Any]:
    path = Path(config)
    if not os.path.isfile(path):  # unlike Path.is_file, at ease with any string
        names = resources.config_names()
        if str(config) not in names:
            raise ConfigError(
                f"no config file or shipped config {str(config)!r}."
                f"{did_you_mean(str(config), names)} Shipped: {', '.join(names)}"
            )
        path = resources.config_path(str(config))
    try:
        loaded = conversion.load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no such date
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} must hold key: value pairs, not a {type(loaded).__name__}")
    return loaded
