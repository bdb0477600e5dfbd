"""Turn what a user appends (tensors, arrays, numbers, strings) into rows of their fields, or say what is wrong."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import SchemaError
from h5cache.schema import Field, Schema, check_field_name, dtype_name

__all__ = ["check_keys", "infer_schema", "to_rows"]

#: The longest path Linux knows. Every key takes the room of the longest in the index table.
MAX_KEY_NBYTES = 4096


def infer_schema(values: Mapping[str, Any]) -> Schema:
    """Return the schema of a first batch. Where any value is a single number, all values are single samples."""
    kinds = {}
    for name, value in values.items():
        check_field_name(name)
        kinds[name] = _kind_of(name, value)
    single = any(not shape for _, shape in kinds.values())
    fields = []
    for name, (dtype, shape) in kinds.items():
        try:
            fields.append((name, Field(dtype_name(dtype), shape if single else shape[1:])))
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
    if not isinstance(keys, Iterable):
        raise SchemaError(f"key must be a string or a list of strings, got {type(keys).__name__}")
    listed = [keys] if isinstance(keys, str) else list(keys)
    for key in listed:
        _check_key(key)
    if len(listed) != count:
        raise SchemaError(f"got {len(listed)} keys for {count} samples")
    return listed


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise SchemaError(f"keys must be strings, got {type(key).__name__}")
    if "\0" in key:
        raise SchemaError(f"a key may not contain a NUL character: {key!r}")
    try:
        nbytes = len(key.encode())
    except UnicodeEncodeError as exc:
        raise SchemaError(f"a key must be text that UTF-8 can hold, got {key!r}") from exc
    if nbytes > MAX_KEY_NBYTES:
        raise SchemaError(f"a key may have {MAX_KEY_NBYTES} bytes, got {nbytes}: {key[:40]!r}...")


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
    got = _dtype_of(value)
    # A uint16 array may carry bfloat16 bits: numpy has no bfloat16 of its own.
    if got != field.dtype and not (field.dtype == "bfloat16" and got == "uint16" and isinstance(value, np.ndarray)):
        raise SchemaError(
            f"field {name!r}: expected dtype {field.dtype}, got {value.dtype}; cast it yourself, "
            "so that nothing is lost unseen"
        )
    if _is_tensor(value):
        return _tensor_to_array(name, value, field)
    array = np.asarray(value)
    return array if array.dtype.isnative else array.astype(field.stored_dtype)


def _dtype_of(value: Any) -> str | None:
    """Return the name of an array's dtype; None where no field can have it."""
    try:
        return dtype_name(value.dtype)
    except SchemaError:
        return None


def _tensor_to_array(name: str, tensor: Any, field: Field) -> npt.NDArray[Any]:
    torch = sys.modules["torch"]
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        if field.dtype == "bfloat16":
            tensor = tensor.contiguous().view(torch.uint16 if hasattr(torch, "uint16") else torch.int16)
            return np.asarray(tensor.numpy()).view(np.uint16)
        return np.asarray(tensor.numpy())
    except (NotImplementedError, RuntimeError, TypeError) as exc:
        # Meta tensors have no data, sparse and nested ones no rows of one shape.
        raise SchemaError(
            f"field {name!r}: a tensor ({tensor.device}, {tensor.layout}) has no plain data: {exc}"
        ) from exc


def _numbers(name: str, field: Field, value: Any) -> npt.NDArray[Any]:
    """Python numbers, or lists of them (or of arrays), in the field's dtype if that loses nothing."""
    if type(value) is int and field.stored_dtype.kind in "iu" and field.dtype != "bfloat16":
        limits = np.iinfo(field.stored_dtype)  # a label, for every sample: the general way takes five times as long
        if limits.min <= value <= limits.max:
            return np.array(value, field.stored_dtype)
    if _is_list_of_arrays(value):
        try:
            return np.stack([_to_array(name, field, item) for item in value])
        except SchemaError:
            raise
        except ValueError as exc:
            raise SchemaError(f"field {name!r}: the samples of a batch differ in shape ({exc})") from exc
    array = _plain_array(name, value)
    if array.shape == (0,):
        return np.zeros((0, *field.shape), field.stored_dtype)
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"field {name!r}: expected {field.dtype}, got {type(value).__name__} of {array.dtype}")
    if field.dtype == "bfloat16":
        raise SchemaError(f"field {name!r}: give bfloat16 values as a torch tensor")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(field.stored_dtype)
    # Python floats are float64; a float32 field takes the nearest value, as torch and numpy do, if there is one.
    # Whole numbers and truth values must come back the same, compared as themselves: numpy would compare int64 with
    # float64 as floats, where 2**53 and 2**53 + 1 are one number.
    if array.dtype.kind == "f" and field.stored_dtype.kind == "f":
        fits = np.array_equal(np.isfinite(cast), np.isfinite(array))
    else:
        fits = bool((cast.astype(object) == array.astype(object)).all())
    if not fits:
        raise SchemaError(f"field {name!r}: {reprlib.repr(value)} does not fit {field.dtype}")
    return cast


def _plain_array(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as exc:
        raise SchemaError(f"field {name!r}: the samples of a batch are no numbers of one shape ({exc})") from exc


def _kind_of(name: str, value: Any) -> tuple[Any, tuple[int, ...]]:
    """Return dtype and shape of a value of a first batch."""
    if _has_dtype(value):
        return value.dtype, tuple(value.shape)
    if _is_list_of_arrays(value):
        return value[0].dtype, (len(value), *value[0].shape)
    array = _plain_array(name, value)
    if array.shape == (0,):
        raise SchemaError(f"field {name!r}: an empty list tells neither dtype nor shape; give the writer its fields")
    return array.dtype, array.shape


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and _has_dtype(value[0])


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" or hasattr(value, "detach")
