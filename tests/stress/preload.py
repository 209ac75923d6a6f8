"""What the fork server imports once, before any thread is started."""

import pyarrow.dataset
import s3fs

import pico.record.recorder
import pico.train.checkpoint
import pico.train.trainer
import tests.stress.small_run

__all__ = ["pico", "pyarrow", "s3fs", "tests"]
