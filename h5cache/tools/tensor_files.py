"""Look into one `.pt`, `.pth`, `.npy` or `.npz` file without running what is in it: tensors, storages, strides.

Always `weights_only=True` and `allow_pickle=False`. Large files are mapped, and only some rows of them looked at.
Knows nothing of folders and of cures.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import struct
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.sources.arrays import as_numpy
from h5cache.tools.narrow import narrowest_dtype

__all__ = ["ArrayLook", "FileLook", "look_at_file"]

PT_SUFFIXES = (".pt", ".pth")
#: Larger arrays are judged by rows spread over them.
LOOK_NBYTES = 32_000_000
#: Larger files are mapped, not read, and their checksums not computed: 200 slices of a batch may be 30 GB.
READ_NBYTES = 4_000_000
#: What a compressed member may unpack to: a small file can claim terabytes.
UNPACK_NBYTES = 1_000_000_000

#: What torch and numpy were seen to raise for files that are cut, overwritten, or something else altogether.
DAMAGE = (
    *(RuntimeError, OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, AssertionError),
    *(MemoryError, struct.error, zlib.error, zipfile.BadZipFile, pickle.UnpicklingError),
)


@dataclass(frozen=True)
class ArrayLook:
    """One tensor or array of a file."""

    #: The path to it in the file: "image", "0", "meta.box"; empty where it is all there is.
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    #: "contiguous", "channels_last", or "strided": rows that lie otherwise.
    layout: str
    #: Part of the elements looked at that are zero.
    zero_part: float
    #: The smallest dtype that holds the elements looked at exactly.
    narrowest: str
    #: Bytes in the file where it is compressed (`np.savez_compressed`).
    packed_nbytes: int | None = None


@dataclass(frozen=True)
class FileLook:
    """What one file holds, or why that cannot be said."""

    path: str
    nbytes: int
    arrays: tuple[ArrayLook, ...] = ()
    #: Bytes of storages that no tensor of the file shows.
    wasted_nbytes: int = 0
    #: Time to load it, as a training loop would.
    load_s: float = 0.0
    #: "objects" (pickled Python objects), "damaged", "checksum" (torch reads it, but bytes have changed), or "".
    trouble: str = ""
    reason: str = ""

    @property
    def array_nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    @property
    def is_batch(self) -> bool:
        """Whether it seems to hold many samples: pictures (N, C, H, W), or arrays of N rows, one of them flat."""
        shapes = [array.shape for array in self.arrays]
        if not shapes or any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
            return False
        flat = len(shapes) > 1 and any(len(shape) == 1 for shape in shapes)
        return shapes[0][0] > 1 and (flat or all(len(shape) == 4 for shape in shapes))


@dataclass
class _Found:
    arrays: list[ArrayLook] = field(default_factory=list)
    values: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    wasted_nbytes: int = 0


def look_at_file(path: str) -> tuple[FileLook, Mapping[str, npt.NDArray[Any]]]:
    """Return what is in a file, and its arrays by name (of large ones some rows). Never raises for a bad file."""
    nbytes = 0
    started = time.perf_counter()
    try:
        nbytes = os.stat(path).st_size
        with warnings.catch_warnings():
            # torch warns of old forms of storage, numpy of old headers: not our user's present concern.
            warnings.simplefilter("ignore")
            found, load_s = _look_pt(path, nbytes) if path.lower().endswith(PT_SUFFIXES) else _look_numpy(path)
    except DAMAGE as exc:
        trouble, reason = _describe(exc)
        return FileLook(path, nbytes, load_s=time.perf_counter() - started, trouble=trouble, reason=reason), {}
    bad = _bad_record(path, nbytes)
    return (
        FileLook(
            path,
            nbytes,
            tuple(found.arrays),
            found.wasted_nbytes,
            load_s,
            "checksum" if bad else "",
            f"bytes of {bad} have changed since they were written" if bad else "",
        ),
        found.values,
    )


def _look_pt(path: str, nbytes: int) -> tuple[_Found, float]:
    import torch

    mmap = nbytes > READ_NBYTES and zipfile.is_zipfile(path)
    started = time.perf_counter()
    held = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    load_s = time.perf_counter() - started
    found = _Found()
    storages: dict[int, list[int]] = {}
    for name, tensor in _iter_arrays(held, ""):
        if isinstance(tensor, np.ndarray):
            _add(found, name, tensor, tensor, _numpy_layout(tensor), None)
            continue
        if tensor.layout is not torch.strided or tensor.is_quantized:
            found.arrays.append(ArrayLook(name, str(tensor.layout), tuple(tensor.shape), 0, "contiguous", 0.0, ""))
            continue
        storage = tensor.untyped_storage()
        sizes = storages.setdefault(storage.data_ptr() or id(storage), [storage.nbytes(), 0])
        # An axis of stride 0 (expand) shows the same elements again and again.
        shown = [length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
        sizes[1] += int(np.prod(shown, dtype=np.int64)) * tensor.element_size()
        _add(found, name, tensor, as_numpy(_some_rows(tensor)), _torch_layout(tensor), None)
    found.wasted_nbytes = sum(max(0, whole - shown) for whole, shown in storages.values())
    return found, load_s


def _look_numpy(path: str) -> tuple[_Found, float]:
    found = _Found()
    started = time.perf_counter()
    if not path.lower().endswith(".npz"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        load_s = time.perf_counter() - started
        _add(found, "", array, np.array(_some_rows(array)), _numpy_layout(array), None)
        return found, load_s
    with zipfile.ZipFile(path) as archive:
        packed = {
            member.filename.removesuffix(".npy"): member.compress_size
            for member in archive.infolist()
            if member.compress_type != zipfile.ZIP_STORED
        }
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > UNPACK_NBYTES:
        raise ValueError(f"it unpacks to {unpacked:,} bytes, too much to look at; use uncompressed np.savez")
    with np.load(path, allow_pickle=False) as loaded:
        for name in loaded.files:
            array = loaded[name]
            _add(found, name, array, _some_rows(array), _numpy_layout(array), packed.get(name))
    return found, time.perf_counter() - started


def _iter_arrays(held: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(held, "untyped_storage") or isinstance(held, np.ndarray):
        yield name, held
    elif isinstance(held, Mapping):
        for key, value in held.items():
            yield from _iter_arrays(value, f"{name}.{key}" if name else str(key))
    elif isinstance(held, tuple | list):
        for place, value in enumerate(held):
            yield from _iter_arrays(value, f"{name}.{place}" if name else str(place))


def _add(found: _Found, name: str, array: Any, some: npt.NDArray[Any], layout: str, packed_nbytes: int | None) -> None:
    dtype = str(array.dtype).removeprefix("torch.")
    is_plain = some.dtype.name == dtype
    found.arrays.append(
        ArrayLook(
            name,
            dtype,
            tuple(array.shape),
            int(np.prod(array.shape, dtype=np.int64)) * some.dtype.itemsize,
            layout,
            1 - np.count_nonzero(some) / some.size if some.size else 0.0,
            narrowest_dtype(some) if is_plain else dtype,
            packed_nbytes,
        )
    )
    if is_plain:
        found.values[name] = some


def _some_rows(array: Any) -> Any:
    """Return the array, or of a large one rows spread over it."""
    nbytes = int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize
    if nbytes <= LOOK_NBYTES or not array.shape or array.shape[0] < 2:
        return array
    count = max(1, array.shape[0] * LOOK_NBYTES // nbytes)
    return array[np.linspace(0, array.shape[0] - 1, count).astype(np.int64)]


def _torch_layout(tensor: Any) -> str:
    import torch

    if tensor.is_contiguous():
        return "contiguous"
    # A picture alone, (C, H, W), is channels_last where a batch of it would be.
    batch = tensor if tensor.ndim == 4 else tensor[None] if tensor.ndim == 3 else None
    is_last = batch is not None and batch.is_contiguous(memory_format=torch.channels_last)
    return "channels_last" if is_last else "strided"


def _numpy_layout(array: npt.NDArray[Any]) -> str:
    return "contiguous" if array.flags.c_contiguous else "strided"


def _bad_record(path: str, nbytes: int) -> str | None:
    """Return the first record of a zip file whose checksum is wrong: torch does not look (a flipped bit loads)."""
    if nbytes > READ_NBYTES or path.lower().endswith(".npy") or not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as exc:
        return str(exc)


def _describe(exc: BaseException) -> tuple[str, str]:
    text = " ".join(str(exc).split())
    name = re.search(r"GLOBAL ([\w.]+)", text)
    if name:
        return "objects", "numpy arrays" if name[1].startswith("numpy.") else name[1]
    if "Object arrays cannot be loaded" in text or "Python objects in dtype" in text:
        return "objects", "numpy arrays of Python objects"
    if isinstance(exc, EOFError):
        return "damaged", "it ends too early"
    # What torch and numpy say of files that are neither: their advice to trust them is not passed on.
    if isinstance(exc, pickle.UnpicklingError | KeyError) or not text or "pickled data" in text:
        return "damaged", "it holds no tensors"
    if isinstance(exc, OSError) and exc.errno == errno.EINVAL:  # what torch makes of a zip file without its end
        return "damaged", "it is cut off"
    return "damaged", text[:160]
