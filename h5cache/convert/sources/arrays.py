"""Arrays with one row per sample: `.npy`, `.npz`, or numpy arrays and torch tensors in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import as_numpy, check_rows, labels_of, name_columns
from .naming import to_own
from .row_file import RowFile
from .source import Numbers, Source, SourceError, SourceFiles, check_samples, digest, number_keys

__all__ = ["ArrayFile", "Arrays", "as_numpy"]


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


class ArrayFile(RowFile):
    """Rows of the arrays in a `.npy` or `.npz` file. Never unpickles.

    `.npy` and uncompressed `.npz` (`np.savez`) are mapped, and only the rows asked for are read. A compressed `.npz`
    is decompressed whole into each worker's memory: that is its nature.
    """

    kind = "arrays"

    @staticmethod
    def read_file(path: str) -> Any:
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
