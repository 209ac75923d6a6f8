"""States of the random number generators as bytes, without pickle, and back.

`Recorder` stores them in the `checkpoints` table; the trainer restores them when it resumes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import numpy as np
import torch


def capture() -> dict[str, bytes | None]:
    """Return the state of torch's, the device's, numpy's and Python's global generators."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    numpy_state = [kind, [int(key) for key in keys], position, has_gauss, gauss]
    version, internal, gauss_next = random.getstate()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "rng_torch": torch.get_rng_state().numpy().tobytes(),
        "rng_cuda": None if cuda is None else cuda.numpy().tobytes(),
        "rng_numpy": json.dumps(numpy_state).encode(),
        "rng_python": json.dumps([version, list(internal), gauss_next]).encode(),
    }


def restore(states: Mapping[str, bytes | None]) -> None:
    """Set the generators to states that `capture` returned; absent ones stay as they are."""
    if (state := states.get("rng_torch")) is not None:
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    if (state := states.get("rng_cuda")) is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    if (state := states.get("rng_numpy")) is not None:
        kind, keys, position, has_gauss, gauss = json.loads(state)
        np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, gauss))
    if (state := states.get("rng_python")) is not None:
        version, internal, gauss_next = json.loads(state)
        random.setstate((version, tuple(internal), gauss_next))
