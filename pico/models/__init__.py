"""Models: pico-decoder, its loss, and the canonical names of any supported model's parts.

Used by whoever trains or loads a model. Importing it loads torch, so `import pico` does not. The
other parts are imported from their files: `architecture` (components and sites of any supported
model) and `hf` (to and from `transformers.LlamaForCausalLM`).
"""

from __future__ import annotations

from pico.config import ModelConfig
from pico.errors import ConfigError
from pico.models.decoder import KVCache, PicoDecoder
from pico.models.loss import language_model_loss

__all__ = ["KVCache", "PicoDecoder", "build", "language_model_loss"]


def build(config: ModelConfig, vocab_size: int | None = None, seed: int = 0) -> PicoDecoder:
    """Build a model that is initialised from `seed` and from nothing else.

    Args:
        config: sizes; a `vocab_size` there wins over the tokenizer's.
        vocab_size: the tokenizer's size; without either it is 50,304.
        seed: of the initialisation.

    Raises:
        ConfigError: when the config's vocabulary is smaller than the tokenizer's.

    Example:
        >>> model = build(ModelConfig(d_model=24, n_layers=1), vocab_size=11, seed=7)
        >>> model.config.vocab_size
        11
    """
    if config.vocab_size is not None and vocab_size is not None and config.vocab_size < vocab_size:
        raise ConfigError(
            f"vocab_size {config.vocab_size} is smaller than the tokenizer's {vocab_size}; "
            f"leave it out, or raise it"
        )
    return PicoDecoder(config, config.vocab_size or vocab_size, seed)
