"""Name the fields of samples that come without names, and make plain values of what datasets deliver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from h5cache.errors import SchemaError
from h5cache.schema import check_field_name

from .source import SourceError

__all__ = ["check_names", "default_names", "name_fields", "to_own", "to_value"]


def name_fields(sample: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a sample as field name -> array, tensor or number. Views; nothing is copied.

    A dict has its own names; `names` then chooses among them. A tuple or list has one field per entry: `names`, or
    else those of `default_names`. Anything else is a sample of one field.
    """
    if isinstance(sample, Mapping):
        return _choose(sample, names)
    # A list of plain numbers is one vector; a tuple, or a list that holds anything else, is several fields.
    is_vector = isinstance(sample, list) and all(isinstance(value, int | float) for value in sample)
    several = isinstance(sample, tuple | list) and not is_vector
    values = [to_value(value) for value in sample] if several else [to_value(sample)]
    if names is None:
        names = default_names(values)
    elif len(names) != len(values):
        raise SourceError(f"{len(names)} field names ({', '.join(names)}) for samples of {len(values)} values")
    return dict(zip(names, values, strict=True))


def default_names(values: Sequence[Any]) -> tuple[str, ...]:
    """`image` for one 3-D array, `image`, `label` for a 3-D array and a whole number; `field0`, `field1` else."""
    first_is_picture = bool(values) and np.ndim(values[0]) == 3
    if first_is_picture and len(values) == 1:
        return ("image",)
    if first_is_picture and len(values) == 2 and _is_whole_number(values[1]):
        return ("image", "label")
    return tuple(f"field{number}" for number in range(len(values)))


def check_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise SourceError(f"fields must be a list of different names, got {names!r}")
    for name in names:
        try:
            check_field_name(name)
        except SchemaError as exc:
            raise SourceError(str(exc)) from exc
    return tuple(names)


def to_value(value: Any) -> Any:
    """Return arrays, tensors and numbers as they are, PIL pictures as (H, W) or (H, W, C) arrays."""
    if hasattr(value, "dtype") or isinstance(value, int | float):
        return value
    # PIL is not imported for this: no sample can be a PIL picture where PIL is not loaded already.
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        return np.asarray(value)
    return value


def to_own(value: Any) -> Any:
    """Return a copy of an array or tensor that belongs to somebody else; numbers as they are."""
    if hasattr(value, "detach"):
        return value.detach().clone()
    return np.array(value) if hasattr(value, "dtype") else value


def _choose(sample: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    if names is None:
        return {str(name): to_value(value) for name, value in sample.items()}
    missing = [name for name in names if name not in sample]
    if missing:
        raise SourceError(f"samples have no {', '.join(missing)}; they have {', '.join(map(str, sample))}")
    return {name: to_value(sample[name]) for name in names}


def _is_whole_number(value: Any) -> bool:
    if isinstance(value, int):
        return True
    return np.ndim(value) == 0 and "int" in str(getattr(value, "dtype", ""))
