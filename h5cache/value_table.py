"""What 8-bit codes mean: a table of exact bit patterns per channel, and looking codes up in it.

Arrays are `(n, *sample_shape)` throughout. `channel_axis` is an axis of the *sample* (0 for CHW, -1 for HWC); None
means one table for everything. bfloat16, which numpy lacks, is passed as uint16 with `dtype="bfloat16"`.
Knows nothing of files, chunks or tensors.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5cache.errors import QuantiseConflictError, SchemaError

__all__ = ["ValueTable", "check_codes", "expand"]

Array = NDArray[Any]

NUM_CODES = 256
BITS_DTYPES = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}
_OUT_DTYPES = {
    name: (np.dtype(bits), np.dtype(bits if name == "bfloat16" else name)) for name, bits in BITS_DTYPES.items()
}
# What cv2 calls the same width. It has no 64-bit integers; loads and stores of float64 keep the bits.
LUT_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.int32), 8: np.dtype(np.float64)}
# Elements per channel worked on at once: temporaries stay in L2, and cv2.LUT below its 2**18 for starting threads,
# which would not survive a fork.
_SLAB_ELEMENTS = 1 << 16
# cv2's largest number of interleaved channels (CV_CN_MAX) is 128 since 5.0.
_MAX_INTERLEAVED = 128


@dataclass(frozen=True, eq=False)
class ValueTable:
    """What each code of each channel means, as bit patterns. Immutable; unused entries are zero bits."""

    dtype: str
    bits: Array
    used: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.dtype not in BITS_DTYPES:
            raise SchemaError(f"a value table of dtype {self.dtype!r}; expected one of {', '.join(BITS_DTYPES)}")
        used = np.array(self.used, dtype=np.bool_, order="C")
        if self.bits.dtype != BITS_DTYPES[self.dtype] or self.bits.ndim != 2 or self.bits.shape[1] != NUM_CODES:
            raise SchemaError(
                f"a value table of {self.dtype} needs bits (channels, {NUM_CODES}) of "
                f"{np.dtype(BITS_DTYPES[self.dtype])}, got {self.bits.shape} of {self.bits.dtype}"
            )
        if used.shape != self.bits.shape:
            raise SchemaError(f"a value table's bits are {self.bits.shape} but its used flags {used.shape}")
        bits = np.where(used, self.bits, self.bits.dtype.type(0))
        for name, array in (("bits", bits), ("used", used)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def empty(cls, dtype: str, channels: int) -> ValueTable:
        shape = (channels, NUM_CODES)
        return cls(dtype, np.zeros(shape, BITS_DTYPES.get(dtype, np.uint8)), np.zeros(shape, np.bool_))

    @property
    def num_channels(self) -> int:
        return int(self.bits.shape[0])

    @cached_property
    def pairs(self) -> Array:
        """What two codes side by side mean, by channel: looking up two at once is twice as fast (cv2.LUT: 78 us a
        picture of 224 px into float32, 38 us by pairs)."""
        width = self.bits.dtype.itemsize
        pairs = np.empty((self.num_channels, NUM_CODES, NUM_CODES, 2), self.bits.dtype)
        # Little-endian: the first of two bytes is the lower half of their number.
        pairs[..., 0] = self.bits[:, None, :]
        pairs[..., 1] = self.bits[:, :, None]
        return pairs.reshape(self.num_channels, -1).view(LUT_DTYPES[2 * width])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "pairs"}  # 1.5 MB that are made anew

    def union(self, other: ValueTable) -> ValueTable:
        """Return the table that serves both; raise QuantiseConflictError where a code means two bit patterns."""
        if (self.dtype, self.num_channels) != (other.dtype, other.num_channels):
            raise QuantiseConflictError(
                f"tables differ: {self.num_channels} channels of {self.dtype}, {other.num_channels} of {other.dtype}"
            )
        conflicts = np.argwhere(self.used & other.used & (self.bits != other.bits))
        if conflicts.size:
            channel, code = (int(i) for i in conflicts[0])
            raise two_patterns(self.dtype, channel, code, self.bits[channel, code], other.bits[channel, code])
        return ValueTable(self.dtype, self.bits | other.bits, self.used | other.used)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueTable):
            return NotImplemented
        same = np.array_equal(self.bits, other.bits) and np.array_equal(self.used, other.used)
        return self.dtype == other.dtype and same

    __hash__ = None  # type: ignore[assignment]


def expand(codes: NDArray[np.uint8], table: ValueTable, out: Array, channel_axis: int | None) -> None:
    """Write the exact values of `codes` into `out`, which the caller owns: C-contiguous, of the codes' shape.

    Moves bits only, no float arithmetic. Thread-safe, and cv2 releases the GIL. Codes that the table does not use
    give zero bits: `check_codes` finds them.
    """
    import cv2  # here, because `import h5cache` must not load it

    if out.dtype not in _OUT_DTYPES[table.dtype] or out.shape != codes.shape or not out.flags.c_contiguous:
        raise SchemaError(
            f"codes {codes.shape} of {table.dtype} expand into C-contiguous memory of that shape and dtype, "
            f"got {out.shape} of {out.dtype}"
        )
    source = _code_channels(codes, table, channel_axis)
    num_channels = source.shape[1]
    if source.shape[2] == 1 and num_channels <= _MAX_INTERLEAVED:
        lut_dtype = LUT_DTYPES[out.itemsize]
        target = out.view(lut_dtype).reshape(source.shape)
        values = np.ascontiguousarray(table.bits.view(lut_dtype).T)[None]
        for rows in slabs(source):
            shape = (1, -1, num_channels)
            _look_up(cv2.LUT, source[rows].reshape(shape), values, target[rows].reshape(shape))
        return
    if out.itemsize <= 4 and source.shape[2] % 2 == 0 and _has_pair_lookup():
        source, values = source.view(np.uint16), table.pairs
    else:
        values = table.bits.view(LUT_DTYPES[out.itemsize])
    target = out.reshape(codes.size).view(values.dtype).reshape(source.shape)
    for rows in slabs(source):
        for channel in range(num_channels):
            _look_up(cv2.LUT, source[rows, channel], values[channel : channel + 1], target[rows, channel])


@functools.cache
def _has_pair_lookup() -> bool:
    """Whether this cv2 looks up 16-bit numbers (since 4.12 or so), on a machine whose bytes are in the usual order."""
    import cv2

    if sys.byteorder != "little":
        return False
    values = np.arange(2**16, dtype=np.float64)[None]
    try:
        return bool(cv2.LUT(np.array([[7, 65_000]], np.uint16), values).tolist() == [[7.0, 65_000.0]])
    except cv2.error:
        return False


def check_codes(codes: NDArray[np.uint8], table: ValueTable, channel_axis: int | None) -> None:
    """Raise QuantiseConflictError if a code is not in the table. Slow: for tools, not for loading."""
    source = _code_channels(codes, table, channel_axis)
    for rows in slabs(source):
        for channel in range(table.num_channels):
            present = np.bincount(source[rows, channel].ravel(), minlength=NUM_CODES) > 0
            unknown = np.flatnonzero(present & ~table.used[channel])
            if unknown.size:
                raise QuantiseConflictError(f"channel {channel}: code {unknown[0]} is not in the value table")


def _look_up(lut: Callable[..., Any], codes: NDArray[np.uint8], values: Array, out: Array) -> None:
    # cv2 allocates a result of its own, without a word, where it dislikes the one it is given.
    if lut(codes, values, dst=out) is not out:
        raise RuntimeError(f"cv2.LUT did not write into the {out.shape} {out.dtype} array it was given")


def two_patterns(dtype: str, channel: int, code: int, first: Any, second: Any) -> QuantiseConflictError:
    return QuantiseConflictError(
        f"channel {channel}: code {code} would mean both {describe_value(first, dtype)} and "
        f"{describe_value(second, dtype)}; store this field unquantised"
    )


def describe_value(pattern: Any, dtype: str) -> str:
    value = to_float(np.array([pattern], BITS_DTYPES[dtype]), dtype)[0]
    return f"{value!s} (bits 0x{int(pattern):0{2 * np.dtype(BITS_DTYPES[dtype]).itemsize}x})"


def to_float(bits: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(dtype)


def _code_channels(codes: NDArray[np.uint8], table: ValueTable, channel_axis: int | None) -> NDArray[np.uint8]:
    if codes.dtype != np.uint8 or not codes.flags.c_contiguous:
        raise SchemaError(f"codes must be C-contiguous uint8, got {codes.dtype}")
    view = as_channels(codes, channel_axis)
    if view.shape[1] != table.num_channels:
        raise SchemaError(f"codes of {view.shape[1]} channels for a table of {table.num_channels}")
    return view


def as_channels(array: Array, channel_axis: int | None) -> Array:
    """View `(n, *sample_shape)` as (outer, channels, inner)."""
    if channel_axis is None:
        return array.reshape(-1, 1, 1)
    num_axes = array.ndim - 1
    if not -num_axes <= channel_axis < num_axes:
        raise SchemaError(f"channel axis {channel_axis} of samples of shape {array.shape[1:]}")
    axis = channel_axis % num_axes + 1
    return array.reshape(math.prod(array.shape[:axis]), array.shape[axis], math.prod(array.shape[axis + 1 :]))


def slabs(view: Array) -> list[slice]:
    """Cut the outer axis so that a slab has about _SLAB_ELEMENTS per channel, and at least one row."""
    if not view.size:
        return []
    num_rows = max(1, _SLAB_ELEMENTS // view.shape[2])
    return [slice(start, start + num_rows) for start in range(0, view.shape[0], num_rows)]
