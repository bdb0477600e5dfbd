"""Exact quantisation: float fields of at most 256 values per channel as uint8 codes and a table of bit patterns.

A normalised 8-bit picture is such a field. An affine `Quantiser` only *chooses* codes; what comes back is looked up in
a `ValueTable` of exact bit patterns, so a bad choice raises `QuantiseConflictError` and never changes a value.

Arrays are `(n, *sample_shape)` throughout. `channel_axis` is an axis of the *sample* (0 for CHW, -1 for HWC); None
means one table for everything. bfloat16, which numpy lacks, is passed as uint16 with `dtype="bfloat16"`.
Knows nothing of files, chunks or tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5cache.errors import QuantiseConflictError, SchemaError
from h5cache.grid import LAST_PLACE, fit_grids

__all__ = ["Quantiser", "ValueTable", "check_codes", "expand", "fit_quantiser"]

Array = NDArray[Any]

NUM_CODES = LAST_PLACE + 1
_BITS_DTYPES = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_OUT_DTYPES = {
    name: (np.dtype(bits), np.dtype(bits if name == "bfloat16" else name)) for name, bits in _BITS_DTYPES.items()
}
# What cv2 calls the same width. It has no 64-bit integers; loads and stores of float64 keep the bits.
_LUT_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.int32), 8: np.dtype(np.float64)}
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
        if self.dtype not in _BITS_DTYPES:
            raise SchemaError(f"a value table of dtype {self.dtype!r}; expected one of {', '.join(_BITS_DTYPES)}")
        used = np.array(self.used, dtype=np.bool_, order="C")
        if self.bits.dtype != _BITS_DTYPES[self.dtype] or self.bits.ndim != 2 or self.bits.shape[1] != NUM_CODES:
            raise SchemaError(
                f"a value table of {self.dtype} needs bits (channels, {NUM_CODES}) of "
                f"{np.dtype(_BITS_DTYPES[self.dtype])}, got {self.bits.shape} of {self.bits.dtype}"
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
        return cls(dtype, np.zeros(shape, _BITS_DTYPES.get(dtype, np.uint8)), np.zeros(shape, np.bool_))

    @property
    def num_channels(self) -> int:
        return int(self.bits.shape[0])

    def union(self, other: ValueTable) -> ValueTable:
        """Return the table that serves both; raise QuantiseConflictError where a code means two bit patterns."""
        if (self.dtype, self.num_channels) != (other.dtype, other.num_channels):
            raise QuantiseConflictError(
                f"tables differ: {self.num_channels} channels of {self.dtype}, {other.num_channels} of {other.dtype}"
            )
        conflicts = np.argwhere(self.used & other.used & (self.bits != other.bits))
        if conflicts.size:
            channel, code = (int(i) for i in conflicts[0])
            raise _two_patterns(self.dtype, channel, code, self.bits[channel, code], other.bits[channel, code])
        return ValueTable(self.dtype, self.bits | other.bits, self.used | other.used)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueTable):
            return NotImplemented
        same = np.array_equal(self.bits, other.bits) and np.array_equal(self.used, other.used)
        return self.dtype == other.dtype and same

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Quantiser:
    """Chooses codes: `rint((value - offset) / scale)` per channel, so codes rise with the value. Immutable."""

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("offset", "scale"):
            array = np.array(getattr(self, name), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.offset.ndim != 1 or self.offset.shape != self.scale.shape or not self.offset.size:
            raise SchemaError(f"a quantiser needs an offset and a scale per channel, got {self.offset}, {self.scale}")
        if not (np.isfinite(self.offset).all() and np.isfinite(self.scale).all() and (self.scale > 0).all()):
            raise SchemaError(f"a quantiser needs finite offsets and scales above 0, got {self.offset}, {self.scale}")

    def to_config(self) -> dict[str, list[float]]:
        """Return what JSON can hold; `from_config` gives back an equal quantiser (JSON keeps float64 exactly)."""
        return {"offset": self.offset.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantiser:
        return cls(np.array(config["offset"], np.float64), np.array(config["scale"], np.float64))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantiser):
            return NotImplemented
        return np.array_equal(self.offset, other.offset) and np.array_equal(self.scale, other.scale)

    __hash__ = None  # type: ignore[assignment]

    def encode(
        self, samples: Array, channel_axis: int | None, dtype: str | None = None
    ) -> tuple[NDArray[np.uint8], ValueTable]:
        """Return new codes of the samples' shape and the table that expands them to exactly the same bits.

        Raise QuantiseConflictError where a value is NaN or outside the 256 places, or two bit patterns share a code.
        Thread-safe; needs about 1 MB besides the codes.
        """
        dtype = _dtype_name(samples, dtype)
        bits = _as_channels(samples.view(_BITS_DTYPES[dtype]), channel_axis)
        if bits.shape[1] != self.offset.size:
            raise SchemaError(f"samples of {bits.shape[1]} channels for a quantiser of {self.offset.size}")
        codes = np.empty(samples.shape, np.uint8)
        code_view = _as_channels(codes, channel_axis)
        # All ones is a NaN in every format and NaN gets no code, so it can mark what is still unused.
        unused = np.iinfo(bits.dtype).max
        table = np.full((bits.shape[1], NUM_CODES), unused, bits.dtype)
        for rows in _slabs(bits):
            for channel in range(bits.shape[1]):
                plane = np.ascontiguousarray(bits[rows, channel])
                plane_codes = self._codes(plane, dtype, channel)
                _enter(table[channel], plane, plane_codes, unused, dtype, channel)
                code_view[rows, channel] = plane_codes
        used = table != unused
        return codes, ValueTable(dtype, table, used)

    def _codes(self, plane: Array, dtype: str, channel: int) -> NDArray[np.uint8]:
        offset, scale = float(self.offset[channel]), float(self.scale[channel])
        # float32 is twice as fast, and off by 0.002 of a step at most within these bounds.
        narrow = dtype != "float64" and 1e-30 < scale < 1e30 and abs(offset) < scale * 2**14
        work = np.float32 if narrow else np.float64
        values = _to_float(plane, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            # Half a step lower, so that truncation rounds: the cast to uint8 then needs no pass of rint.
            position = np.subtract(values, work(offset - scale / 2), dtype=work)
            position = np.divide(position, work(scale), out=position)
            inside = position.min() >= 0 and position.max() < NUM_CODES  # False for NaN too
        if not inside:
            at = np.flatnonzero(~((position >= 0) & (position < NUM_CODES)))[0]
            raise QuantiseConflictError(
                f"channel {channel}: {_describe(plane.flat[at], dtype)} has no place among the {NUM_CODES} from "
                f"{offset:.9g} to {offset + LAST_PLACE * scale:.9g} (step {scale:.9g}); store this field unquantised"
            )
        return position.astype(np.uint8)


def fit_quantiser(samples: Array, channel_axis: int | None, dtype: str | None = None) -> Quantiser | None:
    """Choose a quantiser from a field's first samples, or None if they cannot be quantised exactly.

    Deterministic. Later samples may still conflict, which `Quantiser.encode` and `ValueTable.union` report.
    """
    dtype = _dtype_name(samples, dtype)
    bits = _as_channels(samples.view(_BITS_DTYPES[dtype]), channel_axis)
    if not bits.size:
        return None
    seen = [np.empty(0, bits.dtype) for _ in range(bits.shape[1])]
    for rows in _slabs(bits):
        for channel, known in enumerate(seen):
            seen[channel] = np.union1d(known, np.unique(bits[rows, channel]))
            if seen[channel].size > NUM_CODES:
                return None
    levels = [np.sort(_to_float(patterns, dtype).astype(np.float64)) for patterns in seen]
    # Equal neighbours: 0.0 and -0.0, two patterns that no order of values can tell apart.
    if any(not np.isfinite(values).all() or (values[1:] == values[:-1]).any() for values in levels):
        return None
    grids = fit_grids(levels, _EPSILONS[dtype])
    if grids is None:
        return None
    return Quantiser(np.array([grid.offset for grid in grids]), np.array([grid.step for grid in grids]))


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
    lut_dtype = _LUT_DTYPES[out.itemsize]
    target = out.view(lut_dtype).reshape(source.shape)
    values = table.bits.view(lut_dtype)
    num_channels = source.shape[1]
    if source.shape[2] == 1 and num_channels <= _MAX_INTERLEAVED:
        values = np.ascontiguousarray(values.T)[None]
        for rows in _slabs(source):
            shape = (1, -1, num_channels)
            _look_up(cv2.LUT, source[rows].reshape(shape), values, target[rows].reshape(shape))
        return
    for rows in _slabs(source):
        for channel in range(num_channels):
            _look_up(cv2.LUT, source[rows, channel], values[channel : channel + 1], target[rows, channel])


def check_codes(codes: NDArray[np.uint8], table: ValueTable, channel_axis: int | None) -> None:
    """Raise QuantiseConflictError if a code is not in the table. Slow: for tools, not for loading."""
    source = _code_channels(codes, table, channel_axis)
    for rows in _slabs(source):
        for channel in range(table.num_channels):
            present = np.bincount(source[rows, channel].ravel(), minlength=NUM_CODES) > 0
            unknown = np.flatnonzero(present & ~table.used[channel])
            if unknown.size:
                raise QuantiseConflictError(f"channel {channel}: code {unknown[0]} is not in the value table")


def _look_up(lut: Callable[..., Any], codes: NDArray[np.uint8], values: Array, out: Array) -> None:
    # cv2 allocates a result of its own, without a word, where it dislikes the one it is given.
    if lut(codes, values, dst=out) is not out:
        raise RuntimeError(f"cv2.LUT did not write into the {out.shape} {out.dtype} array it was given")


def _enter(row: Array, plane: Array, codes: NDArray[np.uint8], unused: int, dtype: str, channel: int) -> None:
    """Enter a plane's bit patterns into its channel's row; raise where a code already means another."""
    import cv2

    lut_dtype = _LUT_DTYPES[plane.itemsize]
    expected = cv2.LUT(codes, row.view(lut_dtype)[None]).view(plane.dtype)
    differs = expected != plane
    if not differs.any():
        return
    new_codes, new_bits, before = codes[differs], plane[differs], expected[differs]
    fresh = before == unused
    if fresh.all():
        row[new_codes] = new_bits
        before = row[new_codes]
        fresh = before == new_bits
    if not fresh.all():
        at = int(np.argmin(fresh))
        raise _two_patterns(dtype, channel, int(new_codes[at]), before[at], new_bits[at])


def _two_patterns(dtype: str, channel: int, code: int, first: Any, second: Any) -> QuantiseConflictError:
    return QuantiseConflictError(
        f"channel {channel}: code {code} would mean both {_describe(first, dtype)} and {_describe(second, dtype)}; "
        "store this field unquantised"
    )


def _describe(pattern: Any, dtype: str) -> str:
    value = _to_float(np.array([pattern], _BITS_DTYPES[dtype]), dtype)[0]
    return f"{value!s} (bits 0x{int(pattern):0{2 * np.dtype(_BITS_DTYPES[dtype]).itemsize}x})"


def _dtype_name(samples: Array, dtype: str | None) -> str:
    name = dtype or samples.dtype.name
    width = np.dtype(_BITS_DTYPES[name]).itemsize if name in _BITS_DTYPES else 0
    if samples.dtype.itemsize != width or not samples.dtype.isnative or not samples.flags.c_contiguous:
        raise SchemaError(
            f"expected C-contiguous samples of {', '.join(_BITS_DTYPES)} in native byte order, got {samples.dtype}"
        )
    return name


def _to_float(bits: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(dtype)


def _code_channels(codes: NDArray[np.uint8], table: ValueTable, channel_axis: int | None) -> NDArray[np.uint8]:
    if codes.dtype != np.uint8 or not codes.flags.c_contiguous:
        raise SchemaError(f"codes must be C-contiguous uint8, got {codes.dtype}")
    view = _as_channels(codes, channel_axis)
    if view.shape[1] != table.num_channels:
        raise SchemaError(f"codes of {view.shape[1]} channels for a table of {table.num_channels}")
    return view


def _as_channels(array: Array, channel_axis: int | None) -> Array:
    """View `(n, *sample_shape)` as (outer, channels, inner)."""
    if channel_axis is None:
        return array.reshape(-1, 1, 1)
    num_axes = array.ndim - 1
    if not -num_axes <= channel_axis < num_axes:
        raise SchemaError(f"channel axis {channel_axis} of samples of shape {array.shape[1:]}")
    axis = channel_axis % num_axes + 1
    return array.reshape(math.prod(array.shape[:axis]), array.shape[axis], math.prod(array.shape[axis + 1 :]))


def _slabs(view: Array) -> list[slice]:
    """Cut the outer axis so that a slab has about _SLAB_ELEMENTS per channel, and at least one row."""
    if not view.size:
        return []
    num_rows = max(1, _SLAB_ELEMENTS // view.shape[2])
    return [slice(start, start + num_rows) for start in range(0, view.shape[0], num_rows)]
