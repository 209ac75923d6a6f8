"""The child process that opens `.pt` files: pickles, read with torch's list of harmless types.

`ptfile` starts it and sends a line of JSON per file; an answer is a line of JSON, the tensors lie
in a safetensors file beside it. This is the one place of pico where `torch.load` stands: such files
can be read in no other way, and `weights_only` has had holes. So it happens in a process of its
own, without environment, with bounded memory, which its parent ends when it takes too long, and
nothing of what it loads comes back but plain numbers, texts and bytes of tensors.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from pico.errors import PicoError, one_line
from pico.importers import tensorfile

if TYPE_CHECKING:
    import torch

_DEEPEST = 16
_MOST = 1_000_000
_ROOM = 64 << 20
"""Bytes that tensors may have beyond twice their file: views of one storage are written twice."""
_FORGOTTEN = (
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.dtypes.UInt32DType",
    "_codecs.encode",
)
"""What numpy's random state is pickled with. It is not wanted, so nothing of numpy is called."""


class Forgotten:
    """Stands for what is not wanted; takes anything and keeps nothing."""

    def __init__(self, *_: Any) -> None:
        """Take anything."""

    def __setstate__(self, _: Any) -> None:
        """Keep nothing."""


def main() -> None:
    """Answer requests on standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _limit_memory(int(sys.argv[2]))
    import torch

    torch.set_num_threads(1)
    _tell(answers, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _tell(answers, {"facts": _convert(request["path"], request["out"], request["keys"])})
        except MemoryError:
            _tell(answers, {"error": "it needs more memory than its size warrants"})
        except Exception as error:  # whatever the file does is said about the file
            _tell(answers, {"error": _reason(error)})


def _convert(path: str, out: str, keys: Sequence[str] | None) -> Any:
    """Load a file, write its tensors to `out`; returns its structure with the plain values."""
    import torch

    stand_ins = [(Forgotten, name) for name in _FORGOTTEN]
    with torch.serialization.safe_globals(stand_ins):  # type: ignore[arg-type]
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    found: list[tuple[str, torch.Tensor]] = []
    facts = _plain(loaded, (), found)
    if keys is not None:
        found = [item for item in found if item[0].split("/")[0] in keys]
    room = 2 * os.path.getsize(path) + _ROOM
    if sum(tensor.numel() * tensor.element_size() for _, tensor in found) > room:
        raise PicoError("its tensors claim more bytes than the file holds")
    with open(out, "wb") as file:
        tensorfile.write(file, [_layout(*item) for item in found], map(_bytes, found))
    return facts


def _plain(value: Any, path: tuple[str, ...], found: list[tuple[str, Any]]) -> Any:
    """Return a nested value with what JSON has no word for left out; tensors go to `found`."""
    import torch

    if len(path) > _DEEPEST or len(found) > _MOST:
        raise PicoError("it is nested too deeply, or holds too many tensors")
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise PicoError(f"tensor {'/'.join(path)!r} is sparse or quantized")
        found.append(("/".join(path), value))
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item, (*path, str(key)), found) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, (*path, str(at)), found) for at, item in enumerate(value)]
    return value if isinstance(value, (bool, int, float, str)) else None


def _layout(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...]]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in tensorfile.CODES:
        raise PicoError(f"tensor {name!r} is of type {dtype}, which pico cannot store")
    return name, dtype, tuple(tensor.shape)


def _bytes(item: tuple[str, torch.Tensor]) -> bytes:
    import torch

    flat = item[1].detach().contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def _reason(error: Exception) -> str:
    """Return what is wrong with a file, without torch's advice to read it all the same."""
    text = one_line(error)
    if re.search(r"GLOBAL|Unsupported (class|global)|blocked", text):
        return "it holds more than tensors and plain values, which pico does not unpickle"
    if isinstance(error, PicoError):
        return text
    return "it is no file of torch.save, or is damaged"


def _limit_memory(n_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # no such limit on this system; the parent's time limit stands
        return
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _tell(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
