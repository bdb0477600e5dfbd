"""Fields and schemas: what may be stored, and a clear refusal of the rest."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache import Blosc2, Field, Raw, Schema, Zstd
from h5cache.errors import SchemaError
from h5cache.schema import STORED_AS, dtype_name

quick = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("name", STORED_AS)
def test_every_dtype_is_known_by_its_name_and_by_torchs_dtype(name: str) -> None:
    assert Field(name).dtype == name
    assert Field(getattr(torch, name)).dtype == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dtype, name",
    [(np.float32, "float32"), (np.dtype(">i2"), "int16"), ("f4", "float32"), (int, "int64"), (bool, "bool")],
)
def test_numpy_and_python_types_name_dtypes_whatever_their_byte_order(dtype: Any, name: str) -> None:
    assert dtype_name(dtype) == name


@pytest.mark.parametrize(
    "dtype",
    [None, "complex64", "uint32", "uint64", "S4", "O", "float128", "nonsense", torch.complex64, torch.float8_e5m2],
)
def test_a_dtype_that_cannot_be_stored_is_refused_by_name(dtype: Any) -> None:
    with pytest.raises(SchemaError, match="cannot be stored; use one of bool, uint8"):
        Field(dtype)


@pytest.mark.parametrize("shape", [(0,), (3, -1), (2.5,), ("a",), "ab", (None,), 0])
def test_a_shape_that_is_not_of_whole_numbers_from_1_is_refused(shape: Any) -> None:
    with pytest.raises(SchemaError):
        Field("uint8", shape)


@pytest.mark.parametrize("shape", [5, np.int64(5), (np.int32(5),), torch.Size([5]), [5], np.array([5])])
def test_a_shape_may_come_as_any_whole_numbers(shape: Any) -> None:
    field = Field("uint8", shape)
    assert field.shape == (5,)
    assert all(type(dim) is int for dim in field.shape)


@pytest.mark.parametrize("chunk_samples", [0, -1, 2**31, 1.5, "8"])
def test_chunk_samples_that_no_chunk_can_have_are_refused(chunk_samples: Any) -> None:
    with pytest.raises(SchemaError, match="chunk_samples"):
        Field("uint8", (3,), chunk_samples=chunk_samples)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"codec": "gzip"}, "unknown codec 'gzip'"),
        ({"codec": 7}, "codec must be a name or a codec object"),
        ({"layout": "CWH"}, "layout must be"),
        ({"exact": "maybe"}, "exact must be"),
        ({"exact": "codes"}, "exact='codes' is for"),
    ],
)
def test_an_option_that_is_not_known_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        Field("uint8", (3, 8, 8), **options)


def test_a_layout_for_samples_that_are_no_pictures_is_refused() -> None:
    with pytest.raises(SchemaError, match="needs samples of 3 dimensions"):
        Field("uint8", (3, 8), layout="CHW")


@pytest.mark.parametrize(
    "shape, layout",
    [((3, 9, 9), "CHW"), ((9, 9, 3), "HWC"), ((1, 9, 1), "CHW"), ((9, 9, 4), "HWC"), ((5, 9, 9), None), ((3, 9), None)],
)
def test_the_layout_of_pictures_is_recognised(shape: tuple[int, ...], layout: str | None) -> None:
    assert Field("uint8", shape).layout == layout


def test_bfloat16_is_stored_as_uint16() -> None:
    field = Field("bfloat16", (4, 4))
    assert field.stored_dtype == np.uint16
    assert field.sample_nbytes == 32


@pytest.mark.parametrize("name", ["index", "h5cache", "key", "shards", "a b", "", "1st", "class", "a/b", 7])
def test_a_field_name_that_append_or_the_format_needs_is_refused(name: Any) -> None:
    with pytest.raises(SchemaError, match="field name"):
        Schema.of({name: Field("uint8")})


@pytest.mark.parametrize("fields", [{}, ["image"], "image", {"image": "uint8"}])
def test_a_schema_that_is_no_mapping_of_fields_is_refused(fields: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.of(fields)


def test_a_field_given_twice_is_refused() -> None:
    with pytest.raises(SchemaError, match="twice"):
        Schema((("a", Field("uint8")), ("a", Field("uint8"))))


def test_a_schema_is_a_mapping_in_order_that_says_what_it_lacks() -> None:
    schema = Schema.of({"b": Field("uint8"), "a": Field("int64")})
    assert list(schema) == ["b", "a"]
    assert Schema.of(schema) is schema
    assert str(schema) == "b: uint8 ()\na: int64 ()"
    with pytest.raises(KeyError, match="no field 'c'; there are b, a"):
        schema["c"]


@quick
@given(
    dtype=st.sampled_from(sorted(STORED_AS)),
    shape=st.lists(st.integers(1, 300), max_size=4),
    codec=st.sampled_from(["auto", "none", "blosc2", "blosc", "zstd", Raw(), Zstd(level=5), Blosc2(clevel=3)]),
    chunk_samples=st.none() | st.integers(1, 2**31 - 1),
)
def test_a_field_comes_back_equal_from_its_config_and_from_pickle(
    dtype: str, shape: list[int], codec: Any, chunk_samples: int | None
) -> None:
    field = Field(dtype, tuple(shape), codec, chunk_samples=chunk_samples)
    assert Field.from_config(field.to_config()) == field
    assert pickle.loads(pickle.dumps(field)) == field
    assert field.sample_nbytes == np.zeros(shape, field.stored_dtype).nbytes
