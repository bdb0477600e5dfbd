"""Byte ranges of files on a local disk, by pread. Knows nothing of what the bytes mean."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import DatasetChangedError, MissingDatasetError

__all__ = ["FileIdentity", "LocalFile", "LocalStore"]

#: Descriptors kept open per process: a folder may have thousands of shards, a process often may open 1,024 files.
MAX_OPEN_FILES = 128


@dataclass(frozen=True)
class FileIdentity:
    """What tells a file from one that has replaced it or was written to."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileIdentity:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True)
class LocalFile:
    """A file as it was when it was validated."""

    path: str
    identity: FileIdentity

    @classmethod
    def at(cls, path: str) -> LocalFile:
        """Take note of a file before it is validated: one that replaces it meanwhile will then be noticed."""
        try:
            return cls(path, FileIdentity.of(os.stat(path)))
        except FileNotFoundError as exc:
            raise MissingDatasetError(errno.ENOENT, "no such dataset", path) from exc

    def check_same(self, found: os.stat_result | None = None) -> None:
        """Raise DatasetChangedError unless `found`, or else what the path names now, is the file that was validated."""
        try:
            identity = FileIdentity.of(found or os.stat(self.path))
        except FileNotFoundError as exc:
            raise MissingDatasetError(errno.ENOENT, "the file was removed after it was opened", self.path) from exc
        if identity != self.identity:
            raise DatasetChangedError(
                f"{self.path}: the file was replaced or changed after this dataset was opened; open it again"
            )


@dataclass
class _Open:
    descriptor: int
    users: int = 0


class _Process:
    """The descriptors of one process. A forked child gets its own; its copies of the parent's end with it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        #: By file, the least recently used first.
        self.opened: OrderedDict[int, _Open] = OrderedDict()

    def close_idle(self, count: int) -> None:
        """Close up to `count` descriptors that no thread is reading. The caller holds the lock."""
        idle = [file for file, entry in self.opened.items() if entry.users == 0]
        for file in idle[: max(0, count)]:
            os.close(self.opened.pop(file).descriptor)

    def __del__(self) -> None:
        if self.pid == os.getpid():
            self.close_idle(len(self.opened))


class LocalStore:
    """Read ranges of the files it was given, from any thread and any process.

    Descriptors are opened on first use in each process, and only if the file is still the one that was validated
    (DatasetChangedError otherwise). Pickling and forking carry no descriptor over.
    """

    def __init__(self, files: Sequence[LocalFile], max_open_files: int = MAX_OPEN_FILES) -> None:
        self._files = tuple(files)
        self._max_open_files = max_open_files
        self._process = _Process()

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self._files, "max_open_files": self._max_open_files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._files, self._max_open_files = state["files"], state["max_open_files"]
        self._process = _Process()

    def read_into(self, file: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out` (one-dimensional, contiguous) with the file's bytes from `offset` on."""
        with self.opened(file) as descriptor:
            self.fill(descriptor, file, offset, out)

    def read(self, file: int, offset: int, nbytes: int) -> bytes:
        out = np.empty(nbytes, np.uint8)
        self.read_into(file, offset, out)
        return out.tobytes()

    def check_same(self, file: int) -> None:
        """Raise DatasetChangedError where the path now names another file: for those who read by path."""
        self._files[file].check_same()

    def path(self, file: int) -> str:
        return self._files[file].path

    def close(self) -> None:
        """Close what no thread is reading; idempotent. A later read opens again."""
        process = self._this_process()
        with process.lock:
            process.close_idle(len(process.opened))

    @contextmanager
    def opened(self, file: int) -> Iterator[int]:
        """Lend the descriptor of a file; it stays open while it is lent."""
        process = self._this_process()
        entry = self._acquire(process, file)
        try:
            yield entry.descriptor
        finally:
            with process.lock:
                entry.users -= 1

    def fill(self, descriptor: int, file: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """As `read_into`, with a descriptor that `opened` has lent."""
        done = 0
        while done < out.size:
            count = os.preadv(descriptor, [out[done:].data], offset + done)
            if count == 0:
                raise DatasetChangedError(
                    f"{self.path(file)}: the file was cut short while it was in use: it ends before byte "
                    f"{offset + out.size}. Restore it and open the dataset again"
                )
            done += count

    def _acquire(self, process: _Process, file: int) -> _Open:
        with process.lock:
            entry = process.opened.get(file)
            if entry is None:
                process.close_idle(len(process.opened) + 1 - self._max_open_files)
                entry = process.opened[file] = _Open(self._open(file))
            else:
                process.opened.move_to_end(file)
            entry.users += 1
            return entry

    def _open(self, file: int) -> int:
        known = self._files[file]
        try:
            descriptor = os.open(known.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise MissingDatasetError(errno.ENOENT, "the file was removed after it was opened", known.path) from exc
        try:
            known.check_same(os.fstat(descriptor))
        except DatasetChangedError:
            os.close(descriptor)
            raise
        return descriptor

    def _this_process(self) -> _Process:
        process = self._process
        if process.pid != os.getpid():
            # Replaced whole: a thread that comes in between must not meet the parent's lock, which nobody here will
            # release. Two threads may both replace it; the one whose state is forgotten closes what it opened.
            process = self._process = _Process()
        return process
