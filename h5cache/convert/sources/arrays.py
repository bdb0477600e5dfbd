"""Arrays with one row per sample: `.npy`, `.npz`, or numpy arrays and torch tensors in memory."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .naming import check_names, default_names, name_fields, to_own
from .source import (
    BadSampleError,
    MissingSourceError,
    Numbers,
    Source,
    SourceError,
    SourceFiles,
    check_samples,
    digest,
    number_keys,
)

__all__ = ["ArrayFile", "Arrays", "as_numpy", "check_rows"]


class Arrays(Source):
    """Rows of arrays in memory: a dict of them, a tuple, or one. Keys are the row numbers.

    `take` copies the rows taken, so a task carries its own part of the data and no more.
    """

    kind = "arrays"

    def __init__(self, arrays: Any, fields: Sequence[str] | None = None, classes: Sequence[str] = ()) -> None:
        self._arrays = name_columns(arrays, fields)
        self._count = check_rows("the arrays", self._arrays)
        self._keys = number_keys(self._count)
        self._classes = tuple(classes)

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> SourceFiles:
        return SourceFiles(self._keys)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def labels(self) -> Numbers | None:
        return labels_of(self._arrays)

    def load(self, sample: int) -> Mapping[str, Any]:
        return {name: to_own(array[sample]) for name, array in self._arrays.items()}

    def fingerprint(self) -> Mapping[str, Any]:
        contents = {name: digest(as_numpy(array)) for name, array in self._arrays.items()}
        return {"kind": self.kind, "arrays": contents, "keys": digest(self._keys)}

    def take(self, samples: Numbers) -> Arrays:
        chosen = check_samples(samples, self._count)
        taken = Arrays({name: array[chosen] for name, array in self._arrays.items()}, classes=self._classes)
        taken._keys = self._keys[chosen]
        return taken


class ArrayFile(Source):
    """Rows of the arrays in a `.npy` or `.npz` file. Never unpickles.

    `.npy` and uncompressed `.npz` (`np.savez`) are mapped, and only the rows asked for are read. A compressed `.npz`
    is decompressed whole into each worker's memory: that is its nature.
    """

    kind = "arrays"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        self._path = os.path.abspath(path)
        self._fields = check_names(fields)
        self._nbytes, self._mtime_ns = file_state(self._path)
        arrays = self._open()
        self._count = check_rows(self._path, arrays)
        self._labels = labels_of(arrays)

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> SourceFiles:
        return SourceFiles(number_keys(self._count))

    @property
    def labels(self) -> Numbers | None:
        return self._labels

    def load(self, sample: int) -> Mapping[str, Any]:
        check_unchanged(self._path, self._nbytes, self._mtime_ns)
        try:
            # Copies: a mapped row is read here, in the worker's own time, and owned by the caller.
            return {name: np.array(array[sample]) for name, array in self._open().items()}
        except SourceError as exc:
            raise BadSampleError(str(exc)) from exc

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "fields": None if self._fields is None else list(self._fields),
            "file": [os.path.basename(self._path), self._nbytes, self._mtime_ns],
        }

    def _open(self) -> dict[str, Any]:
        return name_columns(_open_file(self._path, self._nbytes, self._mtime_ns), self._fields)


def name_columns(arrays: Any, fields: Sequence[str] | None) -> dict[str, Any]:
    """Return the arrays by field name; lists of numbers become arrays."""
    if isinstance(arrays, Mapping):
        columns = {str(name): as_column(array) for name, array in arrays.items()}
        return name_fields(columns, check_names(fields))
    several = isinstance(arrays, tuple | list)
    listed = [as_column(array) for array in arrays] if several else [as_column(arrays)]
    # The rule for names looks at samples, so at first rows.
    names = check_names(fields) or default_names([array[0] if len(array) else array for array in listed])
    if len(names) != len(listed):
        raise SourceError(f"{len(names)} field names ({', '.join(names)}) for {len(listed)} arrays")
    return dict(zip(names, listed, strict=True))


def as_column(array: Any) -> Any:
    column = array if hasattr(array, "dtype") and hasattr(array, "shape") else np.asarray(array)
    if len(column.shape) == 0:
        raise SourceError(f"an array of rows was expected, got a single {column.dtype} value")
    return column


def check_rows(where: str, arrays: Mapping[str, Any]) -> int:
    """Return the number of rows; SourceError where arrays differ in it or there are none."""
    check_names(tuple(arrays))
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "no arrays"
        raise SourceError(f"{where}: arrays need one row per sample and so equally many rows, got {listed}")
    count = next(iter(lengths.values()))
    if not count:
        raise SourceError(f"{where}: there are no samples: the arrays have no rows")
    return count


def labels_of(arrays: Mapping[str, Any]) -> Numbers | None:
    label = arrays.get("label")
    if label is None or len(label.shape) != 1 or "int" not in str(label.dtype):
        return None
    return np.array(as_numpy(label), np.int64)


def as_numpy(array: Any) -> npt.NDArray[Any]:
    """Return a view of a CPU tensor as numpy (bfloat16 as its bits); arrays as they are."""
    if not hasattr(array, "detach"):
        return np.asarray(array)
    tensor = array.detach().cpu().resolve_conj().resolve_neg()
    if str(tensor.dtype) == "torch.bfloat16":
        import torch

        return np.asarray(tensor.contiguous().view(torch.int16).numpy())
    return np.asarray(tensor.numpy())


def file_state(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError as exc:
        raise MissingSourceError(errno.ENOENT, "there is no such file", path) from exc
    if os.path.isdir(path):
        raise SourceError(f"{path}: is a folder; a file was expected")
    return status.st_size, status.st_mtime_ns


def check_unchanged(path: str, nbytes: int, mtime_ns: int) -> None:
    try:
        status = os.stat(path)
    except OSError as exc:
        raise BadSampleError(f"{path}: {exc.strerror}") from exc
    if (status.st_size, status.st_mtime_ns) != (nbytes, mtime_ns):
        raise BadSampleError(f"{path}: the file has changed since the conversion began")


@lru_cache(maxsize=1)
def _open_file(path: str, nbytes: int, mtime_ns: int) -> Any:
    """Open a file of arrays; once per worker, not once per task. Size and time are what tells it from a newer one."""
    try:
        if path.lower().endswith(".npz"):
            return _open_npz(path)
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise SourceError(f"{path}: is not a readable file of arrays ({exc})") from exc


def _open_npz(path: str) -> dict[str, npt.NDArray[Any]]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if all(member.compress_type == zipfile.ZIP_STORED for member in members):
            return {member.filename.removesuffix(".npy"): _map_member(path, member) for member in members}
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def _map_member(path: str, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with open(path, "rb") as file:
        # The local header repeats the name and may have other extra bytes than the central one.
        file.seek(member.header_offset + 26)
        lengths = file.read(4)
        skip = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
        file.seek(member.header_offset + 30 + skip)
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        place = file.tell()
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset=place, shape=shape, order="F" if fortran else "C")
