"""What users append becomes rows of exactly their values, or a SchemaError that names the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache import Field, Schema
from h5cache.errors import SchemaError
from h5cache.format.rows import MAX_KEY_NBYTES, check_keys, infer_schema, to_rows

quick = settings(max_examples=100, deadline=None, derandomize=True)


def rows_of(field: Field, value: Any) -> np.ndarray[Any, Any]:
    return to_rows(Schema.of({"x": field}), {"x": value})["x"]


BIG = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
NUMPY = BIG.numpy()
VIEWS = {
    "transposed": (BIG.permute(0, 3, 2, 1), (5, 4, 3)),
    "expanded": (BIG[:1, :, :1].expand(6, 3, 4, 5), (3, 4, 5)),
    "slice of a batch": (BIG[1:, :, 1:3, ::2], (3, 2, 3)),
    "requires grad": (BIG.clone().requires_grad_(), (3, 4, 5)),
    "parameter": (torch.nn.Parameter(BIG.clone()), (3, 4, 5)),
    "channels_last": (BIG.to(memory_format=torch.channels_last), (3, 4, 5)),
    "negative bit": (torch.view_as_complex(BIG.reshape(-1, 2)).conj().imag.reshape(2, 30), (30,)),
    "conjugate's real part": (torch.view_as_complex(BIG.reshape(-1, 2)).conj().real, ()),
    "negative strides": (NUMPY[::-1, :, ::-1], (3, 4, 5)),
    "big-endian": (NUMPY.astype(">f4"), (3, 4, 5)),
    "fortran order": (np.asfortranarray(NUMPY), (3, 4, 5)),
    "broadcast": (np.broadcast_to(NUMPY[0], (7, 3, 4, 5)), (3, 4, 5)),
    "list of tensors": ([BIG[0], BIG[1].flip(0)], (3, 4, 5)),
    "tuple of arrays": ((NUMPY[0], NUMPY[1][::-1]), (3, 4, 5)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_any_strides_becomes_exactly_its_elements(name: str) -> None:
    value, shape = VIEWS[name]
    pieces = list(value) if isinstance(value, list | tuple) else [value]
    plain = [piece.detach().resolve_neg().numpy() if isinstance(piece, torch.Tensor) else piece for piece in pieces]
    expected = np.stack(plain) if isinstance(value, list | tuple) else plain[0]
    rows = rows_of(Field("float32", shape), value)
    assert rows.dtype == np.float32
    assert rows.dtype.isnative
    assert np.array_equal(rows, expected)


def test_read_only_arrays_are_taken() -> None:
    value = np.arange(6, dtype=np.uint8).reshape(2, 3)
    value.setflags(write=False)
    assert np.array_equal(rows_of(Field("uint8", (3,)), value), value)


def test_bfloat16_travels_as_its_bits() -> None:
    value = torch.tensor([[1.5, -0.0, float("nan")]], dtype=torch.bfloat16)
    rows = rows_of(Field("bfloat16", (3,)), value)
    assert rows.dtype == np.uint16
    assert np.array_equal(rows, value.view(torch.uint16).numpy())
    assert np.array_equal(rows_of(Field("bfloat16", (3,)), rows), rows)
    assert rows_of(Field("bfloat16"), value[0, 0]).tolist() == [0x3FC0]


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        ("int64", 7, [7]),
        ("int64", np.int64(7), [7]),
        ("int64", torch.tensor(7), [7]),
        ("int64", np.array(7), [7]),
        ("int64", range(3), [0, 1, 2]),
        ("int64", [torch.tensor(1), torch.tensor(2)], [1, 2]),
        ("int64", [np.int64(1), 2], [1, 2]),
        ("uint8", [0, 255], [0, 255]),
        ("bool", [True, False], [True, False]),
        ("bool", np.True_, [True]),
        ("float32", 0.1, [np.float32(0.1)]),
        ("float32", [1, 2], [1.0, 2.0]),
        ("float16", [float("inf"), 1.0], [np.inf, 1.0]),
        ("int64", [], []),
    ],
)
def test_numbers_become_samples_of_scalar_fields(dtype: str, value: Any, expected: list[Any]) -> None:
    rows = rows_of(Field(dtype), value)
    assert rows.dtype == np.dtype(dtype)
    assert rows.tolist() == expected


def test_an_empty_list_is_a_batch_of_no_samples_whatever_the_shape() -> None:
    assert rows_of(Field("float32", (3, 4)), []).shape == (0, 3, 4)


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int64", 2**63),
        ("int64", 2**70),
        ("int64", 1.5),
        ("int64", float("nan")),
        ("bool", 2),
        ("float32", 2**24 + 1),
        ("float64", 2**53 + 1),
        ("float32", 1e300),
        ("float16", 70000.0),
        ("int64", "7"),
        ("int64", None),
        ("int64", [None]),
        ("int64", {1: 2}),
        ("int64", b"1"),
        ("bfloat16", 1.0),
    ],
)
def test_a_number_that_its_field_cannot_hold_is_refused(dtype: str, value: Any) -> None:
    with pytest.raises(SchemaError, match="field 'x'"):
        rows_of(Field(dtype), value)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 3), np.float64),
        np.zeros((2, 3), np.uint8),
        np.zeros((2, 3), np.uint32),
        np.zeros((2, 3), np.complex64),
        np.zeros((2, 3), "S3"),
        np.zeros((2, 3), object),
        np.zeros((2, 3), "datetime64[s]"),
        torch.zeros(2, 3, dtype=torch.float16),
        torch.zeros(2, 3, dtype=torch.complex64),
        np.float64(1),
        [np.zeros(3, np.float32), np.zeros(3, np.float64)],
    ],
)
def test_an_array_of_another_dtype_is_refused_and_never_cast(value: Any) -> None:
    with pytest.raises(SchemaError, match="field 'x': expected dtype float32, got .*; cast it yourself"):
        rows_of(Field("float32", (3,)), value)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 4), np.float32),
        np.zeros((2, 3, 1), np.float32),
        np.zeros((), np.float32),
        [[1.0, 2.0, 3.0], [1.0]],
        [torch.zeros(3), torch.zeros(2)],
        [[torch.zeros(1, requires_grad=True)] * 3],
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3).to_sparse(),
        torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)], layout=torch.jagged),
    ],
)
def test_values_that_are_no_batch_of_the_fields_shape_are_refused(value: Any) -> None:
    with pytest.raises(SchemaError, match="field 'x'"):
        rows_of(Field("float32", (3,)), value)


def test_unequal_lengths_and_unknown_and_missing_fields_are_named() -> None:
    schema = Schema.of({"a": Field("int64"), "b": Field("int64")})
    with pytest.raises(SchemaError, match="equally many samples, got a 2, b 3"):
        to_rows(schema, {"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(SchemaError, match="unknown field 'c', field 'b' is missing; the fields are a, b"):
        to_rows(schema, {"a": [1], "c": [1]})


def test_the_schema_of_a_first_batch_is_that_of_its_samples() -> None:
    schema = infer_schema(
        {
            "image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
            "half": [torch.zeros(5, dtype=torch.bfloat16, requires_grad=True)] * 4,
            "box": np.zeros((4, 2), ">f8"),
            "label": [1, 2, 3, 4],
        }
    )
    assert {name: (field.dtype, field.shape) for name, field in schema.items()} == {
        "image": ("uint8", (3, 8, 8)),
        "half": ("bfloat16", (5,)),
        "box": ("float64", (2,)),
        "label": ("int64", ()),
    }


def test_a_single_number_says_that_all_values_are_single_samples() -> None:
    schema = infer_schema({"image": torch.zeros(3, 8, 8), "label": 3})
    assert schema["image"].shape == (3, 8, 8)
    assert schema["label"].shape == ()


@pytest.mark.parametrize(
    "value",
    [[], [[1], [2, 3]], "text", ["a"], object(), [object()], torch.zeros(2, dtype=torch.complex64), np.zeros((2, 0))],
)
def test_a_first_batch_that_tells_no_schema_is_refused(value: Any) -> None:
    with pytest.raises(SchemaError, match="field 'x'"):
        infer_schema({"x": value})


@quick
@given(keys=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=50)))
def test_any_text_without_nul_is_a_key(keys: list[str]) -> None:
    assert check_keys(keys, len(keys)) == keys


@pytest.mark.parametrize(
    "keys",
    [
        ["a\0"],
        ["\0"],
        [b"a"],
        [1],
        ["\udc80"],
        ["x" * (MAX_KEY_NBYTES + 1)],
        ["é" * MAX_KEY_NBYTES],
        5,
        "ab\0",
        [],
        ["a", "b"],
    ],
)
def test_a_key_that_cannot_be_stored_is_refused(keys: Any) -> None:
    with pytest.raises(SchemaError, match="key"):
        check_keys(keys, 1)
