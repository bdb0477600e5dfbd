"""Arrays and tensors as named columns with one row per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .naming import check_names, default_names, name_fields
from .source import Numbers, SourceError

__all__ = ["as_numpy", "check_rows", "labels_of", "name_columns"]


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
