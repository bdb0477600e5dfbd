"""One file of arrays with a row per sample: opened once per worker, mapped where its form allows it."""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from .columns import check_rows, labels_of, name_columns
from .naming import check_names, to_own
from .source import BadSampleError, MissingSourceError, Numbers, Source, SourceError, SourceFiles, number_keys

__all__ = ["RowFile"]

#: Size and time of a file: what tells it from a newer one of the same name.
FileState: TypeAlias = "tuple[int, int]"


class RowFile(Source):
    """Rows of the arrays or tensors in a file. Keys are the row numbers."""

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        self._path = os.path.abspath(path)
        self._fields = check_names(fields)
        self._state = _file_state(self._path)
        columns = self._open()
        self._count = check_rows(self._path, columns)
        self._labels = labels_of(columns)

    @staticmethod
    @abstractmethod
    def read_file(path: str) -> Any:
        """Return what the file holds, mapped where that can be; SourceError where it cannot be read."""

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> SourceFiles:
        return SourceFiles(number_keys(self._count))

    @property
    def labels(self) -> Numbers | None:
        return self._labels

    def load(self, sample: int) -> Mapping[str, Any]:
        _check_unchanged(self._path, self._state)
        try:
            # Copies: a mapped row is read here, in the worker's own time, and owned by the caller.
            return {name: to_own(column[sample]) for name, column in self._open().items()}
        except SourceError as exc:
            raise BadSampleError(str(exc)) from exc

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "fields": None if self._fields is None else list(self._fields),
            "file": [os.path.basename(self._path), *self._state],
        }

    def _open(self) -> Mapping[str, Any]:
        return _open_columns(self.read_file, self._path, self._state, self._fields)


@lru_cache(maxsize=1)
def _open_columns(
    read_file: Callable[[str], Any], path: str, state: FileState, fields: tuple[str, ...] | None
) -> Mapping[str, Any]:
    """Open and name the arrays of a file; once per worker, not once per task or sample."""
    return name_columns(read_file(path), fields)


def _file_state(path: str) -> FileState:
    try:
        status = os.stat(path)
    except FileNotFoundError as exc:
        raise MissingSourceError(errno.ENOENT, "there is no such file", path) from exc
    if os.path.isdir(path):
        raise SourceError(f"{path}: is a folder; a file was expected")
    return status.st_size, status.st_mtime_ns


def _check_unchanged(path: str, state: FileState) -> None:
    try:
        status = os.stat(path)
    except OSError as exc:
        raise BadSampleError(f"{path}: {exc.strerror}") from exc
    if (status.st_size, status.st_mtime_ns) != state:
        raise BadSampleError(f"{path}: the file has changed since the conversion began")
