"""Leases: at most one live writer per log stream, on any store that has put-if-absent.

    .leases/<stream>/<epoch>.json     one file per holder, rewritten by its heartbeat

The next holder claims the next epoch by put-if-absent, so exactly one of several claimants gets it.
A holder that sees a higher epoch has lost the stream and stops. A lease is free when it was
released, when its file is older than its time to live (both told by the store's clock: a writer
whose own clock is wrong is not robbed), or when its process is known to be dead on this very
machine (same host, boot and process namespace; a bare pid means nothing).
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pico.errors import CorruptError, LakeError, LeaseError, printable
from pico.lake.storage import Storage

_EPOCH = re.compile(r"\d{8}\.json")
TIME_TO_LIVE = 120.0
"""Seconds without a heartbeat after which a lease may be taken over."""
_let_go: set[str] = set()
"""Ids of leases that this process holds no more, though the store may not have heard of it."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as stored: enough to name it and to tell whether it lives."""

    id: str
    host: str
    pid: int
    machine: str
    process_start: str
    heartbeat: float
    time_to_live: float
    released: bool = False
    tidy: bool = True
    """Whether a holder that released it left nothing to clear up."""
    last_seq: int = -1
    """The stream's last commit when the holder wrote this; -1 for none, or not told."""

    def describe(self) -> str:
        """Return words for an error message."""
        age = max(0.0, time.time() - self.heartbeat)
        return f"process {self.pid} on {printable(self.host)} (last heard from {age:.0f} s ago)"

    def is_free(self) -> bool:
        """Say whether the holder is gone, or has been silent for too long by this clock."""
        return self.is_gone() or time.time() - self.heartbeat > self.time_to_live

    def is_gone(self) -> bool:
        """Say whether the holder is known to write no more, whatever any clock says."""
        if self.released or self.id in _let_go:
            return True
        return self.machine == _machine() and self.process_start != _process_start(self.pid)


class Lease:
    """A held lease with its heartbeat; made by `acquire`."""

    def __init__(
        self,
        storage: Storage,
        stream: str,
        epoch: int,
        clean: bool,
        holder_id: str,
        last_seq: int = -1,
    ) -> None:
        """Take over a claimed epoch and start its heartbeat."""
        self.epoch = epoch
        self.clean = clean
        """Whether the previous holder released the lease; if not, it may have left debris."""
        self._storage, self._stream = storage, stream
        self._id = holder_id
        self.last_seq = last_seq
        """The stream's last commit as far as holders have told; whoever commits raises it."""
        self._lost: LeaseError | None = None
        self._released = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"pico-lease-{stream}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `LeaseError` if a newer holder has taken the stream over."""
        newest = _epochs(self._storage, self._stream)
        if newest and newest[-1] > self.epoch:
            holder = _read(self._storage, self._stream, newest[-1])
            who = holder.describe() if holder else "another writer"
            self._lost = LeaseError(
                f"{_spoken(self._stream)} was taken over by {who}; this writer stops"
            )
        if self._lost is not None:
            raise self._lost

    def check_log(self, last_seq: int) -> None:
        """Raise `CorruptError` if the log ends before a commit that an earlier holder made."""
        if last_seq < self.last_seq:
            raise CorruptError(
                f"the log of {self._stream} ends at commit {last_seq}, but commit {self.last_seq} "
                "was made: commits are lost; bring them back, or delete "
                f".leases/{self._stream} to go on without them"
            )
        self.last_seq = last_seq

    def release(self, tidy: bool = True) -> None:
        """Stop the heartbeat and let the next writer in at once; a second call does nothing.

        Args:
            tidy: whether nothing was left behind that the next writer should clear.
        """
        if self._released:
            return
        self._released = True
        self._stop.set()
        self._thread.join()
        if self._lost is None:
            _let_go.add(self._id)
            record = _record(self._id, self.last_seq, released=True, tidy=tidy)
            self._storage.put(_path(self._stream, self.epoch), record)

    def _beat(self) -> None:
        while not self._stop.wait(TIME_TO_LIVE / 4):
            try:
                self.check()
                record = _record(self._id, self.last_seq)
                self._storage.put(_path(self._stream, self.epoch), record)
            except LeaseError:
                return
            except LakeError:
                continue  # a store that is away for a moment; the next beat or commit will tell


_SPOKEN = {"train": "training of run", "data": "data set"}


def acquire(storage: Storage, stream: str) -> Lease:
    """Claim a stream for this process.

    Raises:
        LeaseError: naming the live holder, or when another claimant was faster.
    """
    epochs = _epochs(storage, stream)
    previous = _read(storage, stream, epochs[-1]) if epochs else None
    if (
        previous is not None
        and not previous.is_gone()
        and not _is_silent(storage, stream, previous)
    ):
        raise LeaseError(
            f"{_spoken(stream)} is held by {previous.describe()}; wait until it is done, "
            f"or, if it died, {previous.time_to_live:.0f} s after its last sign of life"
        )
    epoch = epochs[-1] + 1 if epochs else 1
    holder_id = uuid.uuid4().hex
    last_seq = -1 if previous is None else previous.last_seq
    try:
        if not storage.put_new(_path(stream, epoch), _record(holder_id, last_seq)):
            winner = _read(storage, stream, epoch)
            if winner is None or winner.id != holder_id:  # else only the answer was lost
                raise LeaseError(f"another writer has just claimed {_spoken(stream)}; try again")
        storage.delete(_path(stream, old) for old in epochs[:-1])
    except LakeError:
        _let_go.add(holder_id)  # it may stand although the store said no: nobody holds it
        raise
    clean = previous is None or (previous.released and previous.tidy)
    return Lease(storage, stream, epoch, clean, holder_id, last_seq)


def _spoken(stream: str) -> str:
    """Say what a stream is for: what people know by name is the run or the data set."""
    kind, _, name = stream.partition(".")
    if kind == "derive":
        run, _, writer = name.rpartition(".")
        return f"{writer} of run {run!r}"
    return f"{_SPOKEN.get(kind, kind)} {name!r}"


def holder(storage: Storage, stream: str) -> Holder | None:
    """Return who holds or last held a stream; None if nobody ever did.

    Raises:
        CorruptError: if the newest lease file cannot be read.
    """
    while epochs := _epochs(storage, stream):
        found = _read(storage, stream, epochs[-1])
        if found is not None:  # else a newer holder has cleared it away meanwhile
            return found
    return None


def _is_silent(storage: Storage, stream: str, previous: Holder) -> bool:
    """Whether a stream's newest lease is older than its time to live, by the store's clock.

    A file that is written now tells that clock; those of the writers may be minutes apart.
    """
    probe = f".staging/put/{uuid.uuid4().hex}.now"
    storage.put(probe, b"")
    try:
        now = {file.path: file.modified for file in storage.list(".staging/put")}[probe]
    finally:
        storage.delete([probe])
    written = {file.path: file.modified for file in storage.list(f".leases/{stream}")}
    epochs = _epochs_of(written)
    return bool(epochs) and now - written[_path(stream, epochs[-1])] > previous.time_to_live


def _path(stream: str, epoch: int) -> str:
    return f".leases/{stream}/{epoch:08d}.json"


def _epochs(storage: Storage, stream: str) -> list[int]:
    return _epochs_of(storage.paths(f".leases/{stream}"))


def _epochs_of(paths: Iterable[str]) -> list[int]:
    names = [path.rpartition("/")[2] for path in paths]
    return sorted(int(name[:8]) for name in names if _EPOCH.fullmatch(name))


def _read(storage: Storage, stream: str, epoch: int) -> Holder | None:
    path = _path(stream, epoch)
    try:
        return _checked(Holder(**json.loads(storage.read(path))))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise CorruptError(f"lease file {path} cannot be read; delete it to go on") from None


def _checked(holder: Holder) -> Holder:
    """Return a holder as it was read; raises `TypeError` or the like for values of a wrong type."""
    words = (holder.id, holder.host, holder.machine, holder.process_start)
    flags = (holder.released, holder.tidy)
    numbers = (holder.heartbeat, holder.time_to_live)
    if (
        not all(isinstance(word, str) for word in words)
        or not all(isinstance(flag, bool) for flag in flags)
        or not isinstance(holder.pid, int)
        or not isinstance(holder.last_seq, int)
        or not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
    ):
        raise TypeError("a lease with values of a wrong type")
    holder.is_free()
    return holder


def _record(holder_id: str, last_seq: int, released: bool = False, tidy: bool = True) -> bytes:
    holder = Holder(
        id=holder_id,
        host=platform.node(),
        pid=os.getpid(),
        machine=_machine(),
        process_start=_process_start(os.getpid()),
        heartbeat=time.time(),
        time_to_live=TIME_TO_LIVE,
        released=released,
        tidy=tidy,
        last_seq=last_seq,
    )
    return json.dumps(asdict(holder)).encode()


def _machine() -> str:
    """Identify the space in which a pid has a meaning; unknown spaces equal no other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"unknown/{uuid.uuid4().hex}"


def _process_start(pid: int) -> str:
    """Return when a process of this machine started, in clock ticks; empty if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
