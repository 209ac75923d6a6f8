"""Pickles of torch are opened by a child process, whatever they hold."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pico.errors import DataError
from pico.importers.ptfile import PtReader
from pico.record.tensors import to_torch


@pytest.fixture(scope="module")
def reader() -> Iterator[PtReader]:
    with PtReader(1 << 20) as reader:
        yield reader


def test_tensors_come_bit_for_bit_and_values_plain(reader: PtReader, tmp_path: Path) -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    saved = {
        "a": bits.reshape(256, 256),
        "b": {"c": torch.arange(6).reshape(2, 3).t(), 5: torch.tensor(2.5, dtype=torch.float64)},
        "d": [1, "two", None, 3.5, True, torch.zeros(0, 3)],
    }
    torch.save(saved, tmp_path / "f.pt")
    file = reader.read(tmp_path / "f.pt")
    assert file.facts == {
        "a": None,
        "b": {"c": None, "5": None},
        "d": [1, "two", None, 3.5, True, None],
    }
    assert list(file.tensors) == ["a", "b/c", "b/5", "d/5"]
    assert torch.equal(to_torch(file.tensors["a"]).view(torch.int16), saved["a"].view(torch.int16))
    assert torch.equal(to_torch(file.tensors["b/c"]), torch.tensor([[0, 3], [1, 4], [2, 5]]))
    assert to_torch(file.tensors["b/5"]).item() == 2.5 and file.tensors["d/5"].shape == (0, 3)


def test_of_other_keys_only_the_structure_comes(reader: PtReader, tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2), "y": {"z": torch.ones(3), "n": 4}}, tmp_path / "f.pt")
    file = reader.read(tmp_path / "f.pt", ["x"])
    assert list(file.tensors) == ["x"] and file.facts == {"x": None, "y": {"z": None, "n": 4}}


def test_the_random_state_of_numpy_is_left_aside(reader: PtReader, tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1), "rng": np.random.RandomState(3).get_state()}, tmp_path / "f.pt")
    file = reader.read(tmp_path / "f.pt")
    assert list(file.tensors) == ["x"] and file.facts["rng"][:2] == ["MT19937", None]


class Calls:
    """Unpickles as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Calls(os.system, "echo"), "more than tensors and plain values"),
        (Calls(eval, "1"), "more than tensors and plain values"),
        (torch.zeros(1).expand(1 << 40), "claim more bytes than the file holds"),
        (torch.eye(3).to_sparse(), "is sparse or quantized"),
        (torch.zeros(2, dtype=torch.complex128), "complex128, which pico cannot store"),
    ],
    ids=["call", "eval", "expanded", "sparse", "complex128"],
)
def test_what_is_no_harmless_tensor_is_refused(
    reader: PtReader, tmp_path: Path, value: Any, message: str
) -> None:
    torch.save({"x": value}, tmp_path / "f.pt")
    with pytest.raises(DataError, match=message):
        reader.read(tmp_path / "f.pt")
    torch.save({"x": torch.ones(2)}, tmp_path / "good.pt")
    assert list(reader.read(tmp_path / "good.pt").tensors) == ["x"]  # the child still answers


@pytest.mark.parametrize("text", [b"", b"no pickle", b"PK\x03\x04 no archive", b"\x80\x02]." * 50])
def test_what_is_no_file_of_torch_is_refused(reader: PtReader, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "f.pt").write_bytes(text)
    with pytest.raises(DataError, match=r"f.pt: it (is no file of torch|holds more)"):
        reader.read(tmp_path / "f.pt")
    with pytest.raises(DataError, match="no file"):
        reader.read(tmp_path / "absent.pt")


def test_a_list_nested_too_deeply_is_refused(reader: PtReader, tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(40):
        value = [value]
    torch.save(value, tmp_path / "f.pt")
    with pytest.raises(DataError, match="nested too deeply"):
        reader.read(tmp_path / "f.pt")


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A small archive that unpacks to 8 GB: zeros, compressed."""
    torch.save({"x": torch.zeros(16)}, tmp_path / "f.pt")
    with (
        zipfile.ZipFile(tmp_path / "f.pt") as source,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bomb,
    ):
        for name in source.namelist():
            if not name.endswith("data/0"):
                bomb.writestr(name, source.read(name))
                continue
            with bomb.open(name, "w", force_zip64=True) as out:
                block = bytes(1 << 24)
                for _ in range(512):
                    out.write(block)
    with PtReader(64) as reader, pytest.raises(DataError, match=r"cannot read .*bomb.pt"):
        reader.read(tmp_path / "bomb.pt")


def test_time_is_bounded_and_the_next_file_is_read(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1 << 22)}, tmp_path / "f.pt")
    with PtReader(1 << 25, seconds=1e-4) as reader:
        with pytest.raises(DataError, match=r"it takes longer than 0 s"):
            reader.read(tmp_path / "f.pt")
        reader._seconds = None
        assert list(reader.read(tmp_path / "f.pt").tensors) == ["x"]


def test_nothing_stays_behind(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(3)}, tmp_path / "f.pt")
    with PtReader(1 << 20) as reader:
        file = reader.read(tmp_path / "f.pt")
        folder, process = reader._folder, reader._process
    assert process is not None and process.returncode is not None
    assert not Path(folder).exists() and file.tensors["x"].to_numpy().tolist() == [1, 1, 1]
