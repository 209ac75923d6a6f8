"""A disk that fails on purpose: the process, or the power, stops at a chosen file operation.

`Shim` stands between the lake's code and one folder of the real disk. Every operation that changes
something there (open, write, close, fsync, rename, link, unlink, mkdir, rmdir), and every listing,
is counted; at the chosen one the process ends by `os._exit`, a write after its first half.

With `power="lost"` the folder is first put back to what a disk owes after a power cut, as SQLite's
crash VFS does it: of a file the bytes up to its last fsync, of a folder the entries that it had at
its own last fsync. With `power=<seed>` each thing not owed is there, gone or torn by chance, since
a disk may also have written it. `audited` counts independently, by the interpreter's own audit
events, so that a test can show that no operation passes by the shim.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import pickle
import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CRASHED = 77
"""Exit code of a process that was stopped."""
REAL = {name: getattr(os, name) for name in (
    "open", "close", "fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir",
    "scandir", "write",
)}  # fmt: skip
_OPEN = io.open
_AUDITED = {"os.rename": "rename", "os.link": "link", "os.remove": "unlink", "os.mkdir": "mkdir",
            "os.rmdir": "rmdir"}  # fmt: skip


class File:
    """The bytes of a file, and how many of them are on the platter."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.synced = bytearray(data), len(data)

    def after_power_cut(self, chance: random.Random | None) -> bytes:
        owed, rest = bytes(self.data[: self.synced]), bytes(self.data[self.synced :])
        if chance is None or not rest:
            return owed
        some = rest[: chance.randrange(len(rest))]
        return owed + chance.choice([b"", rest, some, bytes(len(rest))])


class Folder:
    """The entries of a folder as processes see them, and as they are on the platter."""

    def __init__(self) -> None:
        self.entries: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}

    @classmethod
    def of(cls, path: Path) -> Folder:
        """Take what is on the disk now as durable."""
        folder = cls()
        for item in path.iterdir():
            folder.entries[item.name] = cls.of(item) if item.is_dir() else File(item.read_bytes())
        folder.durable = dict(folder.entries)
        return folder

    def after_power_cut(self, chance: random.Random | None) -> dict[str, File | Folder]:
        if chance is None:
            return self.durable
        found = {}
        for name in sorted(self.entries.keys() | self.durable.keys()):
            node = chance.choice([self.entries, self.durable]).get(name)
            if node is not None:
                found[name] = node
        return found


class Shim:
    """Counts the file operations below `root`, and stops the process at one of them."""

    def __init__(
        self, root: Path, stop_at: int | None = None, power: str | int | None = None,
        disk: Path | None = None, has_links: bool = True,
    ) -> None:  # fmt: skip
        """Take the content of `root` as it is.

        Args:
            root: an existing folder, in which the lake lies or will lie.
            stop_at: number of the operation, from 0, at which the process ends.
            power: None for a killed process, "lost" or a seed for a power cut.
            disk: file in which a killed process leaves what is durable, and finds it.
            has_links: whether the disk knows hard links.
        """
        self.n_done, self.kinds, self.audited = 0, list[str](), Counter[str]()
        self._root, self._stop_at, self._power, self._disk = root.resolve(), stop_at, power, disk
        self._has_links = has_links
        known = disk is not None and disk.exists()
        self._tree: Folder = pickle.loads(disk.read_bytes()) if known else Folder.of(root)
        self._handles: dict[int, File | Folder] = {}
        self._lock = threading.RLock()

    @contextmanager
    def installed(self):
        """Intercept until the block ends."""
        sys.addaudithook(self._audit)
        wrapped = {
            "open": self._open_folder, "close": self._close, "fsync": self._fsync,
            "replace": self._rename, "rename": self._rename, "link": self._link,
            "unlink": self._unlink, "remove": self._unlink, "mkdir": self._mkdir,
            "rmdir": self._rmdir, "scandir": self._scandir,
        }  # fmt: skip
        for name, function in wrapped.items():
            setattr(os, name, function)
        io.open = builtins.open = self._open_file
        try:
            yield self
        finally:
            self._restore()

    def _restore(self) -> None:
        for name in REAL:
            setattr(os, name, REAL[name])
        io.open = builtins.open = _OPEN
        self._root = Path("/nowhere")

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[Folder, str] | None:
        """Return the folder and the name of a path below the root, else None."""
        if isinstance(path, int):
            return None
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fspath(path))
        full = Path(os.path.abspath(os.fspath(path)))
        if not full.is_relative_to(self._root) or full == self._root:
            return None
        node: Any = self._tree
        for part in full.relative_to(self._root).parts[:-1]:
            node = node.entries.get(part) if isinstance(node, Folder) else None
        return (node, full.name) if isinstance(node, Folder) else None

    def _step(self, kind: str, act: Callable[[], Any], torn: Callable[[], Any] | None = None):
        """Do one operation, or as much of it as the process still can."""
        with self._lock:
            if self.n_done == self._stop_at:
                if torn is not None:
                    torn()
                self._die()
            self.n_done += 1
            self.kinds.append(kind)
            return act()

    def _die(self) -> None:
        root = self._root
        self._restore()
        if self._power is not None:
            chance = None if self._power == "lost" else random.Random(self._power)
            chosen: dict[int, bytes] = {}
            shutil.rmtree(root)
            _write_out(root, self._tree, chance, chosen)
        elif self._disk is not None:
            self._disk.write_bytes(pickle.dumps(self._tree))
        os._exit(CRASHED)

    # the operations --------------------------------------------------------------------------

    def _open_file(self, path: Any, mode: str = "r", *rest: Any, **options: Any):
        place = self._place(path) if set(mode) & set("wxa+") else None
        if place is None:
            return _OPEN(path, mode, *rest, **options)
        assert mode in ("xb", "ab"), f"a lake's file is opened in mode {mode!r}"
        folder, name = place

        def act() -> int:
            flags = os.O_EXCL if mode == "xb" else os.O_APPEND
            handle = REAL["open"](path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
            self._handles[handle] = folder.entries.setdefault(name, File())
            return handle

        return io.BufferedWriter(_Raw(self, self._step("open", act)))

    def _open_folder(self, path: Any, flags: int, *rest: Any, dir_fd: int | None = None) -> int:
        handle = REAL["open"](path, flags, *rest, dir_fd=dir_fd)
        place = self._place(path, dir_fd)
        if place is not None and place[1] in place[0].entries:
            node = place[0].entries[place[1]]
            written = flags & (os.O_WRONLY | os.O_RDWR)
            assert isinstance(node, Folder) or not written, f"{path} is written past the shim"
            self._handles[handle] = node
        elif isinstance(path, (str, Path)) and Path(path) == self._root:
            self._handles[handle] = self._tree
        return handle

    def _close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        REAL["close"](handle)

    def _fsync(self, handle: int) -> None:
        node = self._handles.get(handle)
        if node is None:
            return REAL["fsync"](handle)

        def act() -> None:  # the real call is left out: the page cache outlives the process
            if isinstance(node, Folder):
                node.durable = dict(node.entries)
            else:
                node.synced = len(node.data)

        return self._step("fsync", act)

    def _rename(self, source: Any, target: Any, **options: Any) -> None:
        old, new = self._place(source), self._place(target)
        if old is None or new is None:
            return REAL["replace"](source, target, **options)

        def act() -> None:
            REAL["replace"](source, target)
            new[0].entries[new[1]] = old[0].entries.pop(old[1])

        return self._step("rename", act)

    def _link(self, source: Any, target: Any, **options: Any) -> None:
        old, new = self._place(source), self._place(target)
        if old is None or new is None:
            return REAL["link"](source, target, **options)
        if not self._has_links:
            raise OSError(errno.EPERM, "Operation not permitted")

        def act() -> None:
            REAL["link"](source, target, **options)
            new[0].entries[new[1]] = old[0].entries[old[1]]

        return self._step("link", act)

    def _take_out(self, kind: str, path: Any, dir_fd: int | None) -> None:
        place = self._place(path, dir_fd)
        if place is None:
            return REAL[kind](path, dir_fd=dir_fd)

        def act() -> None:
            REAL[kind](path, dir_fd=dir_fd)
            place[0].entries.pop(place[1], None)

        return self._step(kind, act)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._take_out("unlink", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._take_out("rmdir", path, dir_fd)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        if place is None:
            return REAL["mkdir"](path, mode, dir_fd=dir_fd)

        def act() -> None:
            REAL["mkdir"](path, mode, dir_fd=dir_fd)
            place[0].entries[place[1]] = Folder()

        return self._step("mkdir", act)

    def _scandir(self, path: Any = "."):
        if self._place(path) is None:
            return REAL["scandir"](path)
        return self._step("list", lambda: REAL["scandir"](path))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._place(path):
                self.audited["open"] += 1
        elif event in _AUDITED:
            has_fd = event in ("os.remove", "os.rmdir") and arguments[1] != -1
            if self._place(arguments[0], arguments[1] if has_fd else None):
                self.audited[_AUDITED[event]] += 1


class _Raw(io.RawIOBase):
    """An open file of the folder; each write to the system is an operation."""

    def __init__(self, shim: Shim, handle: int) -> None:
        self._shim, self._handle, self._node = shim, handle, shim._handles[handle]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._handle

    def write(self, data: Any) -> int:
        whole = bytes(data)

        def put(part: bytes) -> int:
            self._node.data += part
            return REAL["write"](self._handle, part)

        return self._shim._step("write", lambda: put(whole), lambda: put(whole[: len(whole) // 2]))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._shim._step("close", lambda: self._shim._close(self._handle))


def _write_out(
    path: Path, folder: Folder, chance: random.Random | None, chosen: dict[int, bytes]
) -> None:
    """Write what a power cut leaves; all links of a file get the same bytes."""
    path.mkdir()
    for name, node in folder.after_power_cut(chance).items():
        if isinstance(node, Folder):
            _write_out(path / name, node, chance, chosen)
        else:
            data = chosen.setdefault(id(node), node.after_power_cut(chance))
            (path / name).write_bytes(data)
