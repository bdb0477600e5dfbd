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
        return cls(path, FileIdentity.of(os.stat(path)))


@dataclass
class _Open:
    descriptor: int
    users: int = 0


class LocalStore:
    """Read ranges of the files it was given, from any thread and any process.

    Descriptors are opened on first use in each process, and only if the file is still the one that was validated
    (DatasetChangedError otherwise). Pickling and forking carry no descriptor over.
    """

    def __init__(self, files: Sequence[LocalFile], max_open_files: int = MAX_OPEN_FILES) -> None:
        self._files = tuple(files)
        self._max_open_files = max_open_files
        self._start_process()

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self._files, "max_open_files": self._max_open_files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._files, self._max_open_files = state["files"], state["max_open_files"]
        self._start_process()

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    def read_into(self, file: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill `out` (one-dimensional, contiguous) with the file's bytes from `offset` on."""
        with self.opened(file) as descriptor:
            self._fill(descriptor, file, offset, out)

    def read(self, file: int, offset: int, nbytes: int) -> bytes:
        out = np.empty(nbytes, np.uint8)
        self.read_into(file, offset, out)
        return out.tobytes()

    def path(self, file: int) -> str:
        return self._files[file].path

    def close(self) -> None:
        """Close what no thread is reading; idempotent. A later read opens again."""
        with self._lock:
            for file in [file for file, entry in self._opened.items() if entry.users == 0]:
                os.close(self._opened.pop(file).descriptor)

    @contextmanager
    def opened(self, file: int) -> Iterator[int]:
        """Lend the descriptor of a file; it stays open while it is lent."""
        entry = self._acquire(file)
        try:
            yield entry.descriptor
        finally:
            with self._lock:
                entry.users -= 1

    def _fill(self, descriptor: int, file: int, offset: int, out: npt.NDArray[np.uint8]) -> None:
        done = 0
        while done < out.size:
            count = os.preadv(descriptor, [out[done:].data], offset + done)
            if count == 0:
                raise DatasetChangedError(
                    f"{self.path(file)}: the file was cut short while it was in use: it ends before byte "
                    f"{offset + out.size}. Restore it and open the dataset again"
                )
            done += count

    def _acquire(self, file: int) -> _Open:
        if self._pid != os.getpid():
            self._start_process()
        with self._lock:
            entry = self._opened.get(file)
            if entry is None:
                entry = self._opened[file] = _Open(self._open(file))
                self._close_idle(keep=file)
            else:
                self._opened.move_to_end(file)
            entry.users += 1
            return entry

    def _open(self, file: int) -> int:
        known = self._files[file]
        try:
            descriptor = os.open(known.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise MissingDatasetError(errno.ENOENT, "the file was removed after it was opened", known.path) from exc
        if FileIdentity.of(os.fstat(descriptor)) != known.identity:
            os.close(descriptor)
            raise DatasetChangedError(
                f"{known.path}: the file was replaced or changed after this dataset was opened; open it again"
            )
        return descriptor

    def _close_idle(self, keep: int) -> None:
        excess = len(self._opened) - self._max_open_files
        idle = [file for file, entry in self._opened.items() if entry.users == 0 and file != keep]
        for file in idle[: max(0, excess)]:
            os.close(self._opened.pop(file).descriptor)

    def _start_process(self) -> None:
        # In a forked child: another thread may have held the parent's lock, and its descriptors are not ours to
        # count. They end with the process.
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._opened: OrderedDict[int, _Open] = OrderedDict()
