"""Files held in memory: read once, then served like files, and shared with processes forked later."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from h5cache.store.local import LocalFile, LocalStore

__all__ = ["MemoryStore"]

COPY_NBYTES = 8 * 1024 * 1024


class MemoryStore(LocalStore):
    """Copies of the files in anonymous memory, which forked processes share and the kernel frees with the last.

    A pickled store holds no bytes: where it is unpickled the files are read again.
    """

    def __init__(self, files: Sequence[LocalFile]) -> None:
        super().__init__(files, max_open_files=len(files))
        self._copies = self._copy_all()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._copies = self._copy_all()

    def _open(self, file: int) -> int:
        return os.dup(self._copies[file].fileno())

    def _copy_all(self) -> list[Any]:
        return [self._copy(file) for file in range(len(self._files))]

    def _copy(self, file: int) -> Any:
        source = LocalStore._open(self, file)
        try:
            copy = _anonymous_file()
            while data := os.read(source, COPY_NBYTES):
                copy.write(data)
        finally:
            os.close(source)
        return copy


def _anonymous_file() -> Any:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("h5cache", os.MFD_CLOEXEC), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)  # has no name: nothing is left behind
