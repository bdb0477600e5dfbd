"""Turn what a user appends (tensors, arrays, numbers, strings) into rows of their fields, or say what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import SchemaError
from h5cache.schema import Field, Schema, check_field_name, dtype_name

__all__ = ["check_keys", "infer_schema", "to_rows"]


def infer_schema(values: Mapping[str, Any]) -> Schema:
    """Return the schema of a first batch. Where any value is a single number, all values are single samples."""
    single = any(_ndim(value) == 0 for value in values.values())
    fields = []
    for name, value in values.items():
        check_field_name(name)
        array = value if _has_dtype(value) else np.asarray(value)
        shape = tuple(array.shape) if single else tuple(array.shape[1:])
        try:
            fields.append((name, Field(dtype_name(array.dtype), shape)))
        except SchemaError as exc:
            raise SchemaError(f"field {name!r}: {exc}") from exc
    return Schema(tuple(fields))


def to_rows(schema: Schema, values: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the rows of every field in its stored dtype, all of one length. Views where no copy is needed.

    Raises SchemaError for missing and unknown fields, wrong shapes and dtypes, unequal lengths. Arrays must have
    the field's dtype: nothing is cast silently. Python numbers, which have none, must fit it exactly.
    """
    unknown = [name for name in values if name not in schema]
    missing = [name for name in schema if name not in values]
    if unknown or missing:
        problems = [f"unknown field {name!r}" for name in unknown] + [f"field {name!r} is missing" for name in missing]
        raise SchemaError(f"{', '.join(problems)}; the fields are {', '.join(schema)}")
    rows = {name: _field_rows(name, field, values[name]) for name, field in schema.items()}
    lengths = {name: len(array) for name, array in rows.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise SchemaError(f"fields of one batch must have equally many samples, got {listed}")
    return rows


def check_keys(keys: str | Sequence[str] | None, count: int) -> Sequence[str] | None:
    if keys is None:
        return None
    listed = [keys] if isinstance(keys, str) else list(keys)
    for key in listed:
        if not isinstance(key, str):
            raise SchemaError(f"keys must be strings, got {type(key).__name__}")
        if "\0" in key:
            raise SchemaError(f"a key may not contain a NUL character: {key!r}")
    if len(listed) != count:
        raise SchemaError(f"got {len(listed)} keys for {count} samples")
    return listed


def _field_rows(name: str, field: Field, value: Any) -> npt.NDArray[Any]:
    array = _to_array(name, field, value)
    if array.shape == field.shape:
        array = array[np.newaxis]
    if array.shape[1:] != field.shape or array.ndim == 0:
        raise SchemaError(
            f"field {name!r}: expected samples of shape {field.shape}, got a batch of shape {array.shape}"
        )
    return array


def _to_array(name: str, field: Field, value: Any) -> npt.NDArray[Any]:
    if not _has_dtype(value):
        return _numbers(name, field, value)
    got = dtype_name(value.dtype) if not isinstance(value.dtype, np.dtype) or value.dtype.kind in "biuf" else None
    # A uint16 array may carry bfloat16 bits: numpy has no bfloat16 of its own.
    if got != field.dtype and not (field.dtype == "bfloat16" and got == "uint16" and isinstance(value, np.ndarray)):
        raise SchemaError(
            f"field {name!r}: expected dtype {field.dtype}, got {value.dtype}; cast it yourself, "
            "so that nothing is lost unseen"
        )
    if _is_tensor(value):
        return _tensor_to_array(value, field)
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(field.stored_dtype)


def _tensor_to_array(tensor: Any, field: Field) -> npt.NDArray[Any]:
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if field.dtype == "bfloat16":
        tensor = tensor.contiguous().view(torch.uint16 if hasattr(torch, "uint16") else torch.int16)
        return np.asarray(tensor.numpy()).view(np.uint16)
    return np.asarray(tensor.numpy())


def _numbers(name: str, field: Field, value: Any) -> npt.NDArray[Any]:
    """Python numbers, or lists of them (or of arrays), in the field's dtype if that loses nothing."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value and _has_dtype(value[0]):
        return np.stack([_to_array(name, field, item) for item in value])
    try:
        array = np.asarray(value)
    except ValueError as exc:
        raise SchemaError(f"field {name!r}: the samples of a batch differ in shape ({exc})") from exc
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"field {name!r}: expected {field.dtype}, got {type(value).__name__} of {array.dtype}")
    if field.dtype == "bfloat16":
        raise SchemaError(f"field {name!r}: give bfloat16 values as a torch tensor")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(field.stored_dtype)
    # Python floats are float64; a float32 field takes the nearest value, as torch and numpy do. Whole numbers and
    # truth values must come back the same.
    exact = field.stored_dtype.kind == "f" and array.dtype.kind == "f"
    if not exact and not np.array_equal(cast, array):
        raise SchemaError(f"field {name!r}: {value!r} does not fit {field.dtype}")
    return cast


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" or hasattr(value, "detach")


def _ndim(value: Any) -> int:
    return len(value.shape) if _has_dtype(value) else np.ndim(value)
