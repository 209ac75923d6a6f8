"""The distributions that pico-decoder's weights are drawn from at step 0.

`PicoDecoder.init_weights` draws by this rule, and the trainer declares it in `parameters.init`, so
that `pico query init_std` can compare what was meant with what the lake holds.
"""

from __future__ import annotations

import math

from torch import nn

from pico.config import ModelConfig


def moments(config: ModelConfig, name: str, n_dims: int) -> tuple[float, float]:
    """Return mean and standard deviation of a parameter's initial values.

    Norms are 1. Matrices and embeddings are `N(0, 2 / (5 · d_model))`, about `N(0, 0.02²)` at
    width 768; those that write to the residual stream, `o_proj` and `w_2`, are divided by
    `sqrt(2 · n_layers)`, so that its variance does not grow with depth.

    Args:
        config: sizes of the model.
        name: the parameter's name.
        n_dims: its number of dimensions; 1 for a norm.

    Example:
        >>> moments(ModelConfig(d_model=10, n_heads=1, n_kv_heads=1), "embedding_proj.weight", 2)
        (0.0, 0.2)

    References:
        Nguyen & Salazar, "Transformers without Tears", 2019 (the width rule, as in GPT-NeoX);
        Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (depth).
    """
    if n_dims == 1:
        return 1.0, 0.0
    std = math.sqrt(2 / (5 * config.d_model))
    residual = name.endswith(("o_proj.weight", "w_2.weight"))
    return 0.0, std / math.sqrt(2 * config.n_layers) if residual else std


def declared(config: ModelConfig, model: nn.Module) -> dict[str, str]:
    """Return what `parameters.init` says of each parameter of a pico-decoder.

    Example:
        >>> declared(ModelConfig(), nn.ModuleDict({"norm": nn.LayerNorm(2, bias=False)}))
        {'norm.weight': 'constant(1.0)'}
    """
    said = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        mean, std = moments(config, name, parameter.dim())
        said[name] = f"normal({mean}, {std})" if std else f"constant({mean})"
    return said
