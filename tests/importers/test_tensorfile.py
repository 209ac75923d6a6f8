"""Files of tensors agree with the safetensors library, and broken ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pico.errors import DataError
from pico.importers import tensorfile
from pico.record.tensors import to_host, to_torch

TENSORS = {
    "half": torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16),
    "double": torch.arange(4, dtype=torch.float64),
    "whole": torch.tensor([[-1, 2**40]]),
    "flags": torch.tensor([True, False, True]),
    "eight": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(3.0),
    "none": torch.zeros(0, 7),
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "f.safetensors", metadata={"format": "pt"})
    found = tensorfile.read(tmp_path / "f.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(same(to_torch(found[name]), tensor) for name, tensor in TENSORS.items())


def test_writes_what_the_library_reads(tmp_path: Path) -> None:
    hosts = {name: to_host(tensor) for name, tensor in TENSORS.items()}
    layout = [(name, host.dtype, host.shape) for name, host in hosts.items()]
    with (tmp_path / "f.safetensors").open("wb") as file:
        tensorfile.write(file, layout, (host.data.tobytes() for host in hosts.values()))
    found = load_file(tmp_path / "f.safetensors")
    assert found.keys() == TENSORS.keys()
    assert all(same(found[name], tensor) for name, tensor in TENSORS.items())


def test_no_tensors_at_all(tmp_path: Path) -> None:
    save_file({}, tmp_path / "f.safetensors")
    assert tensorfile.read(tmp_path / "f.safetensors") == {}


def entry(**other: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **other}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{", "its header is not JSON"),
        ("[]", "its header is not JSON"),
        ('{"a": 1}', "holds no tensors"),
        ('{"a": {}, "a": {}}', "its header is not JSON"),
        ({"a": entry(dtype="F4")}, "is of type 'F4', which pico cannot store"),
        ({"a": entry(shape=[-2])}, "makes no sense"),
        ({"a": entry(shape=[True, 2])}, "makes no sense"),
        ({"a": entry(shape="2")}, "makes no sense"),
        ({"a": entry(data_offsets=[0])}, "makes no sense"),
        ({"a": entry(shape=[3])}, "are not where its header says"),
        ({"a": entry(shape=[2**62, 2**62])}, "are not where its header says"),
        ({"a": entry(data_offsets=[4, 12])}, "are not where its header says"),
        ({"a": entry(shape=[1000], data_offsets=[0, 4000])}, "are not where its header says"),
        ({"a": entry(), "b": entry()}, "are not where its header says"),
        ({}, "holds 8 bytes of tensors, its header tells of 0"),
    ],
)
def test_a_header_that_contradicts_the_file_is_refused(
    tmp_path: Path, header: Any, message: str
) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(DataError, match=message):
        tensorfile.read(tmp_path / "f")


@pytest.mark.parametrize("text", [b"", b"1234567", b"\xff" * 16, b"\x09" + bytes(8)])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "f").write_bytes(text)
    with pytest.raises(DataError, match="is no safetensors file"):
        tensorfile.read(tmp_path / "f")
    with pytest.raises(DataError, match="cannot read"):
        tensorfile.read(tmp_path / "absent")
