"""What a dataset holds: fields with dtype, sample shape, picture layout and codec. Knows nothing of files."""

from __future__ import annotations

import functools
import keyword
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from h5cache.codecs import CODECS, Codec, codec_from_config
from h5cache.errors import SchemaError
from h5cache.markup import in_notebook, table
from h5cache.terminal import format_nbytes

__all__ = ["Field", "Schema"]

#: Logical dtype -> the dtype its bits are stored as. HDF5 has no bfloat16: its bits travel as uint16.
STORED_AS: dict[str, str] = {
    name: name
    for name in (
        *("bool", "uint8", "int8", "uint16", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
} | {"bfloat16": "uint16"}

#: Dtypes that may hold a normalised picture, which is stored exactly as 8-bit codes.
QUANTISABLE = frozenset({"float16", "float32", "float64"})

#: `key` is the argument of `Writer.append` that names samples, the others are groups of the format.
RESERVED_NAMES = frozenset({"index", "h5cache", "key", "shards"})

PICTURE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Field:
    """One array of every sample.

    Args:
        dtype: name, numpy or torch dtype: bool, uint8, int8, uint16, int16, int32, int64, float16, float32, float64
            or bfloat16.
        shape: shape of one sample; `()` is a scalar.
        codec: "auto" (chosen from the first chunk), "none", "blosc2", "blosc", "zstd", or a codec object.
        layout: "CHW" or "HWC" for pictures; "auto" recognises 3-D samples with 1, 3 or 4 channels at one end.
        chunk_samples: samples of an HDF5 chunk; None: 2 to 4 MiB of them.
        exact: "auto" stores float fields of at most 256 values per channel as exact 8-bit codes where `codec` is
            "auto"; "codes" insists on trying with any codec; "never" stores the floats.

    >>> Field("uint8", (3, 224, 224)).layout
    'CHW'
    """

    dtype: str
    shape: tuple[int, ...] = ()
    codec: str | Codec = "auto"
    layout: str | None = "auto"
    chunk_samples: int | None = None
    exact: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        object.__setattr__(self, "shape", _checked_shape(self.shape))
        if self.chunk_samples is not None:
            object.__setattr__(self, "chunk_samples", _whole_number("chunk_samples", self.chunk_samples))
        layout = _recognise_layout(self.shape) if self.layout == "auto" else self.layout
        object.__setattr__(self, "layout", layout)
        self._check()

    def _check(self) -> None:
        if isinstance(self.codec, str) and self.codec != "auto" and self.codec not in CODECS:
            raise SchemaError(f"unknown codec {self.codec!r}: use 'auto' or one of {', '.join(CODECS)}")
        if not isinstance(self.codec, str | Codec):
            raise SchemaError(f"codec must be a name or a codec object, got {type(self.codec).__name__}")
        if self.layout not in (None, "CHW", "HWC"):
            raise SchemaError(f"layout must be 'CHW', 'HWC' or None, got {self.layout!r}")
        if self.layout is not None and len(self.shape) != 3:
            raise SchemaError(f"layout {self.layout} needs samples of 3 dimensions, got shape {self.shape}")
        if self.chunk_samples is not None and not 1 <= self.chunk_samples < 2**31:
            raise SchemaError(f"chunk_samples must be at least 1, got {self.chunk_samples}")
        if self.exact not in ("auto", "codes", "never"):
            raise SchemaError(f"exact must be 'auto', 'codes' or 'never', got {self.exact!r}")
        if self.exact == "codes" and self.dtype not in QUANTISABLE:
            raise SchemaError(f"exact='codes' is for {', '.join(sorted(QUANTISABLE))}, not {self.dtype}")

    @cached_property
    def stored_dtype(self) -> np.dtype[Any]:
        """The numpy dtype that holds this field's bits: its own, or uint16 for bfloat16."""
        return np.dtype(STORED_AS[self.dtype])

    @cached_property
    def sample_nbytes(self) -> int:
        return math.prod(self.shape) * self.stored_dtype.itemsize

    @cached_property
    def channel_axis(self) -> int | None:
        """The axis of a sample that counts its channels; None where the field is no picture."""
        return {"CHW": 0, "HWC": -1, None: None}[self.layout]

    @property
    def channels(self) -> int:
        axis = self.channel_axis
        return 1 if axis is None else self.shape[axis]

    @property
    def may_be_coded_exactly(self) -> bool:
        """True where the writer should try to store exact 8-bit codes."""
        wanted = self.exact == "codes" or (self.exact == "auto" and self.codec == "auto")
        return wanted and self.dtype in QUANTISABLE and len(self.shape) > 0

    def to_config(self) -> dict[str, Any]:
        """Return the field as JSON values; `from_config` is the way back."""
        codec = self.codec if isinstance(self.codec, str) else self.codec.to_config()
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "codec": codec,
            "layout": self.layout,
            "chunk_samples": self.chunk_samples,
            "exact": self.exact,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Field:
        codec = config["codec"]
        resolved = codec if isinstance(codec, str) else codec_from_config(codec)
        return cls(**{**config, "shape": tuple(config["shape"]), "codec": resolved})


@dataclass(frozen=True)
class Schema(Mapping[str, Field]):
    """The fields of a dataset, by name, in order. An immutable mapping.

    >>> schema = Schema.of({"image": Field("uint8", (3, 32, 32)), "label": Field("int64")})
    >>> list(schema), schema["label"].dtype
    (['image', 'label'], 'int64')
    """

    items_: tuple[tuple[str, Field], ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name, field in self.items_:
            check_field_name(name)
            if name in seen:
                raise SchemaError(f"field {name!r} is given twice")
            if not isinstance(field, Field):
                raise SchemaError(f"field {name!r} must be a Field, got {type(field).__name__}")
            seen.add(name)
        if not self.items_:
            raise SchemaError("a dataset needs at least one field")

    @classmethod
    def of(cls, fields: Mapping[str, Field]) -> Schema:
        if not isinstance(fields, Mapping):
            raise SchemaError(f"fields must be a mapping of names to Fields, got {type(fields).__name__}")
        return fields if isinstance(fields, Schema) else cls(tuple(fields.items()))

    def __getitem__(self, name: str) -> Field:
        for own, field in self.items_:
            if own == name:
                return field
        raise KeyError(f"no field {name!r}; there are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {field.dtype} {field.shape}" for name, field in self.items_)

    def _repr_html_(self) -> str:
        rows = []
        for name, field in self.items_:
            shape = "x".join(map(str, field.shape)) or "scalar"
            codec = field.codec if isinstance(field.codec, str) else field.codec.name
            rows.append((name, field.dtype, shape, field.layout or "-", format_nbytes(field.sample_nbytes), codec))
        return in_notebook(table(("field", "dtype", "shape", "layout", "sample", "codec"), rows, numeric=(4,)))


def dtype_name(dtype: Any) -> str:
    """Return the name of a numpy or torch dtype, or of a name; SchemaError where h5cache does not store it."""
    try:
        return _known_dtype_name(dtype)
    except TypeError:  # cannot be hashed: a structured dtype written as a list
        return _dtype_name(dtype)


def _dtype_name(dtype: Any) -> str:
    text = str(dtype)
    if text.startswith("torch."):
        # torch says torch.float32; asking torch itself would import it.
        name = text.removeprefix("torch.")
    elif text == "bfloat16" or dtype is None:  # numpy takes None for float64
        name = text
    else:
        try:
            name = np.dtype(dtype).newbyteorder("=").name
        except TypeError:
            name = text
    if name not in STORED_AS:
        raise SchemaError(f"dtype {text!r} cannot be stored; use one of {', '.join(STORED_AS)}")
    return name


# Asked for every sample that is written, and numpy takes 5 us to name a dtype.
_known_dtype_name = functools.lru_cache(maxsize=64)(_dtype_name)


def check_field_name(name: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise SchemaError(f"field name {name!r} must be a Python identifier (it is an argument of Writer.append)")
    if name in RESERVED_NAMES:
        raise SchemaError(f"field name {name!r} is reserved; use another")


def _checked_shape(shape: Any) -> tuple[int, ...]:
    dims = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    checked = tuple(_whole_number("a dimension of a sample's shape", dim) for dim in dims)
    if any(dim < 1 for dim in checked):
        raise SchemaError(f"every dimension of a sample must be at least 1, got {shape!r}")
    return checked


def _whole_number(what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError as exc:
        raise SchemaError(f"{what} must be a whole number, got {value!r}") from exc


def _recognise_layout(shape: tuple[int, ...]) -> str | None:
    if len(shape) != 3:
        return None
    first, last = shape[0] in PICTURE_CHANNELS, shape[2] in PICTURE_CHANNELS
    if first:
        return "CHW"
    return "HWC" if last else None
