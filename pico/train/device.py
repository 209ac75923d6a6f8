"""Where training computes: the Fabric of a config, and the module that it sets up.

The trainer calls it.
"""

from __future__ import annotations

import logging
import warnings

from lightning.fabric import Fabric
from torch import Tensor, nn

from pico import models
from pico.config import RunConfig
from pico.errors import ConfigError, one_line


class ModelWithLoss(nn.Module):
    """The model with its loss, so that Fabric's precision covers both."""

    def __init__(self, model: nn.Module) -> None:
        """Join the two."""
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss and each sequence's, of token ids and targets `(B, T)`."""
        return models.language_model_loss(self.model, inputs, targets)


def quiet_fabric(config: RunConfig) -> Fabric:
    """Return a Fabric for one device that does not announce itself.

    Raises:
        ConfigError: for a device or a precision that is not to be had here.
    """
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fabric = Fabric(accelerator=config.accelerator, devices=1, precision=config.precision)
            fabric.launch()
        except (RuntimeError, ValueError) as error:  # Lightning's word for an absent device
            raise ConfigError(
                f"accelerator {config.accelerator!r} with precision {config.precision!r} cannot "
                f"be had here: {one_line(error)}"
            ) from None
    return fabric
