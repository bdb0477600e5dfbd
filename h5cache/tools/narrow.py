"""How few bits hold given values exactly. Pure; values are judged by their bits, so NaN and -0.0 count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import QuantiseConflictError, SchemaError
from h5cache.quantise import fit_quantiser
from h5cache.schema import QUANTISABLE, Field

__all__ = ["CODES", "dtype_nbytes", "fits_codes", "narrowest_dtype", "union_dtype"]

Array = npt.NDArray[Any]

#: Not a dtype: at most 256 values per channel, stored as 8-bit codes with a table of the exact floats.
CODES = "8-bit codes"

_WHOLE = ("bool", "uint8", "int8", "int16", "uint16", "int32")
_FLOATS = ("float16", "float32")
#: Elements that are tried before all of them: most floats fail here already.
_FEW = 4096


def narrowest_dtype(values: Array) -> str:
    """Return the smallest dtype of h5cache that holds these values exactly; their own where none is smaller.

    >>> narrowest_dtype(np.array([0, 300])), narrowest_dtype(np.array([0.5, 2.0])), narrowest_dtype(np.array([0.1]))
    ('int16', 'float16', 'float64')
    """
    own = values.dtype
    if not values.size or own.kind not in "biuf":
        return own.name
    flat = values.reshape(-1)
    narrow = _narrowest(flat[:_FEW])
    if len(flat) > _FEW and np.dtype(narrow).itemsize < own.itemsize:
        narrow = _narrowest(flat)
    return narrow


def union_dtype(first: str, second: str) -> str:
    """Return the dtype that holds exactly what either holds.

    >>> union_dtype("uint8", "int8"), union_dtype("bool", "float16")
    ('int16', 'float16')
    """
    if first == second:
        return first
    return np.promote_types(first, second).name


def dtype_nbytes(name: str) -> int:
    return 1 if name == CODES else 2 if name == "bfloat16" else np.dtype(name).itemsize


def fits_codes(rows: Sequence[Array]) -> bool:
    """Say whether samples of one shape, floats, can be stored as exact 8-bit codes; the test that `Writer` makes."""
    if not rows or rows[0].dtype.name not in QUANTISABLE or not rows[0].ndim or not rows[0].size:
        return False
    axis = Field(rows[0].dtype.name, rows[0].shape).channel_axis
    try:
        quantiser = fit_quantiser(np.ascontiguousarray(rows[0])[None], axis)
        if quantiser is None:
            return False
        samples = np.stack(rows)
        quantiser = fit_quantiser(samples, axis)
        if quantiser is None:
            return False
        quantiser.encode(samples, axis)
    except (QuantiseConflictError, SchemaError):
        return False
    return True


def _narrowest(flat: Array) -> str:
    own = flat.dtype
    if own.kind == "f":
        whole = _as_whole(flat)
        if whole is not None and np.dtype(_narrowest_whole(whole)).itemsize < own.itemsize:
            return _narrowest_whole(whole)
        smaller = (name for name in _FLOATS if np.dtype(name).itemsize < own.itemsize)
        return next((name for name in smaller if _same_bits(flat, _cast(flat, name))), own.name)
    narrow = _narrowest_whole(flat)
    return narrow if np.dtype(narrow).itemsize < own.itemsize else own.name


def _narrowest_whole(flat: Array) -> str:
    low, high = int(flat.min()), int(flat.max())
    for name in _WHOLE:
        bounds = (0, 1) if name == "bool" else (int(np.iinfo(name).min), int(np.iinfo(name).max))
        if bounds[0] <= low and high <= bounds[1]:
            return name
    return flat.dtype.name


def _as_whole(flat: Array) -> Array | None:
    """Return floats as int32 where that loses nothing."""
    whole = _cast(flat, "int32")
    return whole if _same_bits(flat, whole) else None


def _same_bits(flat: Array, other: Array) -> bool:
    back = _cast(other, flat.dtype.name)
    return np.array_equal(np.ascontiguousarray(flat).view(np.uint8), back.view(np.uint8))


def _cast(flat: Array, dtype: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit comes back different
        return flat.astype(dtype)
