"""Exact quantisation: float fields of at most 256 values per channel as uint8 codes and a table of bit patterns.

A normalised 8-bit picture is such a field. An affine `Quantiser` only *chooses* codes; what comes back is looked up in
a `ValueTable` of exact bit patterns, so a bad choice raises `QuantiseConflictError` and never changes a value.

Arrays are `(n, *sample_shape)` throughout. `channel_axis` is an axis of the *sample* (0 for CHW, -1 for HWC); None
means one table for everything. bfloat16, which numpy lacks, is passed as uint16 with `dtype="bfloat16"`.
Knows nothing of files, chunks or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5cache.errors import QuantiseConflictError, SchemaError
from h5cache.grid import LAST_PLACE, fit_grids
from h5cache.value_table import (
    BITS_DTYPES,
    LUT_DTYPES,
    NUM_CODES,
    ValueTable,
    as_channels,
    describe_value,
    slabs,
    to_float,
    two_patterns,
)

__all__ = ["Quantiser", "fit_quantiser"]

Array = NDArray[Any]

_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


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
        bits = as_channels(samples.view(BITS_DTYPES[dtype]), channel_axis)
        if bits.shape[1] != self.offset.size:
            raise SchemaError(f"samples of {bits.shape[1]} channels for a quantiser of {self.offset.size}")
        codes = np.empty(samples.shape, np.uint8)
        code_view = as_channels(codes, channel_axis)
        # All ones is a NaN in every format and NaN gets no code, so it can mark what is still unused.
        unused = np.iinfo(bits.dtype).max
        table = np.full((bits.shape[1], NUM_CODES), unused, bits.dtype)
        for rows in slabs(bits):
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
        values = to_float(plane, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            # Half a step lower, so that truncation rounds: the cast to uint8 then needs no pass of rint.
            position = np.subtract(values, work(offset - scale / 2), dtype=work)
            position = np.divide(position, work(scale), out=position)
            inside = position.min() >= 0 and position.max() < NUM_CODES  # False for NaN too
        if not inside:
            at = np.flatnonzero(~((position >= 0) & (position < NUM_CODES)))[0]
            raise QuantiseConflictError(
                f"channel {channel}: {describe_value(plane.flat[at], dtype)} has no place among the {NUM_CODES} from "
                f"{offset:.9g} to {offset + LAST_PLACE * scale:.9g} (step {scale:.9g}); store this field unquantised"
            )
        return position.astype(np.uint8)


def fit_quantiser(samples: Array, channel_axis: int | None, dtype: str | None = None) -> Quantiser | None:
    """Choose a quantiser from a field's first samples, or None if they cannot be quantised exactly.

    Deterministic. Later samples may still conflict, which `Quantiser.encode` and `ValueTable.union` report.
    """
    dtype = _dtype_name(samples, dtype)
    bits = as_channels(samples.view(BITS_DTYPES[dtype]), channel_axis)
    if not bits.size:
        return None
    seen = [np.empty(0, bits.dtype) for _ in range(bits.shape[1])]
    for rows in slabs(bits):
        for channel, known in enumerate(seen):
            seen[channel] = np.union1d(known, np.unique(bits[rows, channel]))
            if seen[channel].size > NUM_CODES:
                return None
    levels = [np.sort(to_float(patterns, dtype).astype(np.float64)) for patterns in seen]
    # Equal neighbours: 0.0 and -0.0, two patterns that no order of values can tell apart.
    if any(not np.isfinite(values).all() or (values[1:] == values[:-1]).any() for values in levels):
        return None
    grids = fit_grids(levels, _EPSILONS[dtype])
    if grids is None:
        return None
    return Quantiser(np.array([grid.offset for grid in grids]), np.array([grid.step for grid in grids]))


def _enter(row: Array, plane: Array, codes: NDArray[np.uint8], unused: int, dtype: str, channel: int) -> None:
    """Enter a plane's bit patterns into its channel's row; raise where a code already means another."""
    import cv2

    lut_dtype = LUT_DTYPES[plane.itemsize]
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
        raise two_patterns(dtype, channel, int(new_codes[at]), before[at], new_bits[at])


def _dtype_name(samples: Array, dtype: str | None) -> str:
    name = dtype or samples.dtype.name
    width = np.dtype(BITS_DTYPES[name]).itemsize if name in BITS_DTYPES else 0
    if samples.dtype.itemsize != width or not samples.dtype.isnative or not samples.flags.c_contiguous:
        raise SchemaError(
            f"expected C-contiguous samples of {', '.join(BITS_DTYPES)} in native byte order, got {samples.dtype}"
        )
    return name
