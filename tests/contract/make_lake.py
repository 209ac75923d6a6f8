"""Write a small lake through the lake's own API: `python tests/contract/make_lake.py FOLDER`.

`.ci/wheel-test` calls it from the development environment, so that an environment without torch has
something to read; the contract tests import it. Two steps of a run, with values that a reader can
check: `o_proj` at step 1 is the identity, whose singular values are all 1.
"""

from __future__ import annotations

import datetime
import sys

import numpy as np

from pico import schema
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors

RUN = "small"
LOSSES = {0: 4.5, 1: 2.25}


def make_lake(url: str) -> None:
    """Write the lake; the URL must hold nothing yet."""
    with Stream(Storage(url), f"train.{RUN}") as stream:
        transaction = stream.begin()
        created = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        row = {"run_id": [RUN], "run_uuid": ["0" * 32], "created_at": [created]}
        write_rows(transaction, "runs", {"run": RUN}, schema.table("runs").batch(row))
        for step, loss in LOSSES.items():
            write_tensors(transaction, "weights", {"run": RUN, "step": step}, _weights(step))
            scalars = {"run_id": [RUN], "global_step": [step], "name": ["loss"], "value": [loss]}
            write_rows(transaction, "scalars", {"run": RUN}, schema.table("scalars").batch(scalars))
        transaction.commit()


def _weights(step: int) -> list[TensorRow]:
    o_proj = np.eye(8, dtype=np.float32) if step else np.ones((8, 8), dtype=np.float32)
    o_keys = {"name": "layers.0.attention.o_proj.weight", "layer": 0, "component": "o"}
    norm_keys = {"name": "output_norm.weight", "component": "norm.final"}
    return [
        TensorRow({**o_keys, "param": "weight"}, Tensor.of(o_proj)),
        TensorRow({**norm_keys, "param": "weight"}, Tensor.of(np.ones(8, dtype=np.float32))),
    ]


if __name__ == "__main__":
    make_lake(sys.argv[1])
