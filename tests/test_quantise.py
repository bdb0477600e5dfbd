"""Exact quantisation: whatever is taken comes back bit for bit; whatever does not fit is refused, never changed."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache import value_table
from h5cache.errors import QuantiseConflictError, SchemaError
from h5cache.quantise import Quantiser, fit_quantiser
from h5cache.value_table import ValueTable, check_codes, expand

Array = np.ndarray[Any, Any]

quick = settings(max_examples=25, deadline=None, derandomize=True)

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NORMALISATIONS = [IMAGENET, ((0.5,) * 3, (0.5,) * 3), ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))]
BITS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}


def bits_of(array: Array) -> Array:
    return array.view(BITS[array.dtype.name])


def pictures(seed: int, n: int = 2, size: int = 24, low: int = 0, high: int = 255) -> Array:
    """CHW uint8 samples that hold both `low` and `high` in every channel."""
    out = np.random.default_rng(seed).integers(low, high + 1, (n, 3, size, size), dtype=np.uint8)
    out[0, :, 0, 0], out[0, :, 0, 1] = low, high
    return out


def planes(values: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)[:, None, None]


# Each computes (u / 255 - mean) / std on (n, 3, h, w) pictures in its own order of roundings.
def torch_usual(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    return (torch.from_numpy(u).to(dtype) / 255 - planes(mean, dtype)) / planes(std, dtype)


def torch_in_place(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(u).to(dtype).div_(255).sub_(planes(mean, dtype)).div_(planes(std, dtype))


def torch_reciprocal(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    return (torch.from_numpy(u).to(dtype) * (1 / 255) - planes(mean, dtype)) * (1 / planes(std, dtype))


def torch_scaled_constants(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    return (torch.from_numpy(u).to(dtype) - planes(mean, dtype) * 255) / (planes(std, dtype) * 255)


def torch_scale_and_bias(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    scale = 1 / (255 * planes(std, dtype))
    return torch.from_numpy(u).to(dtype) * scale + (-planes(mean, dtype) / planes(std, dtype))


def torch_addcmul(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    scale = 1 / (255 * planes(std, dtype))
    return torch.addcmul(-planes(mean, dtype) / planes(std, dtype), torch.from_numpy(u).to(dtype), scale)


def torch_double_then_cast(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch_usual(u, mean, std, torch.float64).to(dtype)


def torch_single_then_cast(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch_usual(u, mean, std, torch.float32).to(dtype)


def numpy_usual(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    kind = np.float16 if dtype == torch.float16 else np.float32
    m, s = (np.array(values, kind)[:, None, None] for values in (mean, std))
    return torch.from_numpy((u.astype(kind) / kind(255) - m) / s)


def numpy_default_dtypes(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    m, s = (np.array(values)[:, None, None] for values in (mean, std))
    return torch.from_numpy((u / 255.0 - m) / s).to(dtype)


def cv2_convert(u: Array, mean: Any, std: Any, dtype: torch.dtype) -> torch.Tensor:
    out = np.empty(u.shape, np.float32)
    for sample, target in zip(u.astype(np.float32), out, strict=True):
        for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
            plane = sample[channel]
            target[channel] = cv2.addWeighted(plane, 1 / (255 * s), plane, 0, -m / s)
    return torch.from_numpy(out).to(dtype)


ORDERS: list[Callable[..., torch.Tensor]] = [
    torch_usual,
    torch_in_place,
    torch_reciprocal,
    torch_scaled_constants,
    torch_scale_and_bias,
    torch_addcmul,
    torch_double_then_cast,
    torch_single_then_cast,
    numpy_usual,
    numpy_default_dtypes,
    cv2_convert,
]

LAYOUTS = {"chw": ((0, 1, 2, 3), 0), "hwc": ((0, 2, 3, 1), -1), "hcw": ((0, 2, 1, 3), 1)}


def assert_comes_back(quantiser: Quantiser, samples: Array, channel_axis: int | None) -> ValueTable:
    before = samples.copy()
    codes, table = quantiser.encode(samples, channel_axis)
    out = np.full_like(samples, 7)
    expand(codes, table, out, channel_axis)
    np.testing.assert_array_equal(bits_of(out), bits_of(samples))
    np.testing.assert_array_equal(bits_of(samples), bits_of(before))
    check_codes(codes, table, channel_axis)
    return table


def fitted(samples: Array, channel_axis: int | None) -> Quantiser:
    quantiser = fit_quantiser(samples, channel_axis)
    assert quantiser is not None
    return quantiser


def column(values: Any, dtype: str = "float32") -> Array:
    """One sample without channels that holds the given values."""
    return np.array(values, dtype)[None]


statistics = st.tuples(
    st.tuples(*[st.floats(0, 1)] * 3),
    st.tuples(*[st.floats(0.05, 1)] * 3),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
class TestNormalisedPictures:
    @settings(quick, max_examples=30)
    @given(
        stats=st.sampled_from(NORMALISATIONS) | statistics, seed=st.integers(0, 99), layout=st.sampled_from([*LAYOUTS])
    )
    def test_picture_of_all_levels_comes_back_bit_for_bit(
        self, order: Callable[..., torch.Tensor], dtype: torch.dtype, stats: Any, seed: int, layout: str
    ) -> None:
        axes, channel_axis = LAYOUTS[layout]
        samples = np.ascontiguousarray(order(pictures(seed), *stats, dtype).numpy().transpose(axes))
        assert_comes_back(fitted(samples, channel_axis), samples, channel_axis)

    @settings(quick, max_examples=30)
    @given(
        stats=st.sampled_from(NORMALISATIONS) | statistics,
        seed=st.integers(0, 99),
        bounds=st.tuples(st.integers(0, 255), st.integers(0, 255)),
    )
    def test_first_pictures_of_few_levels_never_make_later_ones_wrong(
        self, order: Callable[..., torch.Tensor], dtype: torch.dtype, stats: Any, seed: int, bounds: tuple[int, int]
    ) -> None:
        first = order(pictures(seed, low=min(bounds), high=max(bounds)), *stats, dtype).numpy()
        later = order(pictures(seed + 100), *stats, dtype).numpy()
        quantiser = fitted(first, 0)
        table = assert_comes_back(quantiser, first, 0)
        try:
            table = table.union(assert_comes_back(quantiser, later, 0))
        except QuantiseConflictError:
            return
        for samples in (first, later):
            out = np.empty_like(samples)
            expand(quantiser.encode(samples, 0)[0], table, out, 0)
            np.testing.assert_array_equal(bits_of(out), bits_of(samples))

    @pytest.mark.parametrize("stats", NORMALISATIONS, ids=["imagenet", "half", "cifar"])
    def test_known_normalisation_without_its_extremes_is_anchored_right(
        self, order: Callable[..., torch.Tensor], dtype: torch.dtype, stats: Any
    ) -> None:
        quantiser = fitted(order(pictures(1, low=60, high=180), *stats, dtype).numpy(), 0)
        later = pictures(2)
        codes, _ = quantiser.encode(order(later, *stats, dtype).numpy(), 0)
        np.testing.assert_array_equal(codes, later)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 1 / 255], ids=["bytes", "unit"])
@quick
@given(levels=st.lists(st.integers(0, 255), min_size=20, unique=True))
def test_multiples_of_a_step_get_their_own_number_as_code(scale: float, dtype: str, levels: list[int]) -> None:
    numbers = np.array(levels, np.uint8)[None]
    samples = (numbers * scale).astype(dtype)
    codes, _ = fitted(samples, None).encode(samples, None)
    np.testing.assert_array_equal(codes, numbers)


@quick
@given(
    levels=st.lists(st.integers(20, 200), min_size=40, max_size=120, unique=True),
    mean=st.floats(0.0, 1.0),
    std=st.floats(0.05, 1.0),
)
def test_unknown_normalisation_leaves_room_for_unseen_levels_on_both_sides(
    levels: list[int], mean: float, std: float
) -> None:
    def normalise(k: Any) -> Array:
        return column((np.array(k, np.float64) / 255 - mean) / std - 3.0)

    # Neighbouring levels are there, so the step is no multiple of the true one.
    first = sorted({*levels, 100, 101})
    quantiser = fitted(normalise(first), None)
    room = (255 - (first[-1] - first[0])) // 2
    lowest, highest = max(0, first[0] - room), min(255, first[-1] + room)
    assert_comes_back(quantiser, normalise(range(lowest, highest + 1)), None)


@quick
@given(seed=st.integers(0, 99), dtype=st.sampled_from(["float16", "float32", "float64"]))
def test_codes_rise_with_the_value(seed: int, dtype: str) -> None:
    samples = np.sort((pictures(seed)[:, :1].reshape(1, -1) / 255 - 0.4) / 0.3).astype(dtype)
    codes, _ = fitted(samples, None).encode(samples, None)
    assert (np.diff(codes[0].astype(int)) >= 0).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "values",
    [[0.0], [-0.0], [1.0], [-2.1179], [1e-3], [0, 1], [-1, 1], [-7.25, 1e4], [0.1, 0.3, 3.0], [-3.0, -2.9, 11.0]],
    ids=str,
)
def test_one_to_three_levels_are_taken_exactly(values: list[float], dtype: str) -> None:
    samples = column(values * 5, dtype)
    assert_comes_back(fitted(samples, None), samples, None)


@pytest.mark.parametrize("flat", [0, 255, 17])
@pytest.mark.parametrize("channel", [0, 1, 2])
def test_flat_channel_beside_full_ones_keeps_room_for_its_levels(flat: int, channel: int) -> None:
    first = pictures(3)
    first[:, channel] = flat
    quantiser = fitted(torch_usual(first, (0.3,) * 3, (0.7,) * 3, torch.float32).numpy(), 0)
    assert_comes_back(quantiser, torch_usual(pictures(4), (0.3,) * 3, (0.7,) * 3, torch.float32).numpy(), 0)


def test_single_channel_in_every_layout_comes_back() -> None:
    grey = ((pictures(5)[:, :1] / 255 - 0.1307) / 0.3081).astype(np.float32)
    for samples, channel_axis in ((grey, 0), (grey.reshape(2, 24, 24, 1), -1), (grey, None), (grey[:, 0], None)):
        assert_comes_back(fitted(samples, channel_axis), samples, channel_axis)


def test_samples_larger_than_a_slab_come_back() -> None:
    u = pictures(6, n=3, size=200)
    for dtype in (torch.float32, torch.float16):
        chw = torch_usual(u, *IMAGENET, dtype).numpy()
        hwc = np.ascontiguousarray(chw.transpose(0, 2, 3, 1))
        table = assert_comes_back(fitted(chw, 0), chw, 0)
        assert assert_comes_back(fitted(hwc, 2), hwc, 2) == table


@pytest.mark.parametrize("channels", [2, 4, 5, 128, 129])
def test_any_number_of_channels_comes_back_interleaved_or_not(channels: int) -> None:
    u = np.random.default_rng(7).integers(0, 256, (2, channels, 40, 3))
    chw = (u / 255 * np.arange(1, channels + 1)[:, None, None]).astype(np.float32)
    hwc = np.ascontiguousarray(chw.transpose(0, 2, 3, 1))
    assert_comes_back(fitted(chw, 0), chw, 0)
    assert_comes_back(fitted(hwc, -1), hwc, -1)


def test_scalar_and_empty_samples_are_handled() -> None:
    scalars = np.array([0.0, 0.5, 1.0, 0.5], np.float32)
    assert_comes_back(fitted(scalars, None), scalars, None)
    empty = np.empty((0, 3, 4, 4), np.float32)
    assert fit_quantiser(empty, 0) is None
    codes, table = Quantiser(np.zeros(3), np.ones(3)).encode(empty, 0)
    assert codes.shape == empty.shape
    assert table == ValueTable.empty("float32", 3)
    expand(codes, table, empty, 0)


def test_denormal_levels_come_back_bit_for_bit() -> None:
    for dtype in ("float16", "float32", "float64"):
        samples = np.arange(256, dtype=BITS[dtype]).view(dtype)[None]
        assert_comes_back(fitted(samples, None), samples, None)


def test_levels_far_from_zero_come_back_bit_for_bit() -> None:
    for samples in (column(1e7 + np.arange(256)), column(1e15 + np.arange(256), "float64")):
        assert_comes_back(fitted(samples, None), samples, None)


def test_bfloat16_as_uint16_comes_back_bit_for_bit() -> None:
    tensor = torch.arange(256).to(torch.bfloat16)[None] / 256
    samples = tensor.view(torch.uint16).numpy()
    quantiser = fit_quantiser(samples, None, dtype="bfloat16")
    assert quantiser is not None
    codes, table = quantiser.encode(samples, None, dtype="bfloat16")
    out = np.empty_like(samples)
    expand(codes, table, out, None)
    assert table.dtype == "bfloat16"
    np.testing.assert_array_equal(out, samples)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "values",
    [
        np.arange(257),
        np.random.default_rng(0).normal(size=1000),
        np.random.default_rng(0).random(256),
        np.geomspace(0.1, 1e4, 200),
        [0.0, -0.0, 0.5],
        [0.0, 1.0, np.nan],
        [0.0, 1.0, np.inf],
        [-np.inf, 0.0],
        [-3.0, -2.99, 11.0],
    ],
    ids=[
        "257 levels",
        "normal",
        "uneven",
        "logarithmic",
        "both zeros",
        "nan",
        "inf",
        "minus inf",
        "gaps of 1 and 1399",
    ],
)
def test_fit_refuses_what_has_no_even_exact_table(values: Any, dtype: str) -> None:
    assert fit_quantiser(column(values, dtype), None) is None


def test_fit_refuses_when_only_one_channel_does_not_fit() -> None:
    samples = torch_usual(pictures(8), *IMAGENET, torch.float32).numpy()
    samples[1, 2] = np.random.default_rng(8).random(samples[1, 2].shape)
    assert fit_quantiser(samples, 0) is None


def test_fit_refuses_extreme_ranges_without_overflow_warnings() -> None:
    largest = np.finfo(np.float64).max
    for values in ([-largest, 0.0, largest], [-largest, largest], [5e-324, 1.0, largest, 3.0]):
        samples = column(values, "float64")
        quantiser = fit_quantiser(samples, None)
        if quantiser is not None:
            assert_comes_back(quantiser, samples, None)


UNIT = Quantiser(np.zeros(1), np.full(1, 1 / 255))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("bad", [-0.01, 1.01, np.nan, np.inf, -np.inf, 6e4], ids=str)
def test_encode_of_a_value_without_place_raises_and_names_it(bad: float, dtype: str) -> None:
    samples = column([0.0, 1.0, bad, 0.0], dtype)
    with pytest.raises(QuantiseConflictError, match=re.escape(f"channel 0: {samples[0, 2]!s} ")):
        UNIT.encode(samples, None)


@pytest.mark.parametrize("payload", [0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xFFC12345], ids=hex)
def test_encode_of_nan_with_any_payload_raises_with_its_bits(payload: int) -> None:
    samples = np.array([[0, payload]], np.uint32).view(np.float32)
    with pytest.raises(QuantiseConflictError, match=f"0x{payload:08x}"):
        UNIT.encode(samples, None)


def test_encode_of_both_zeros_raises() -> None:
    with pytest.raises(QuantiseConflictError, match="channel 0: code 0 .*0x80000000.*0x00000000"):
        UNIT.encode(column([0.0, 0.5, -0.0]), None)


def test_encode_of_two_neighbouring_floats_on_one_code_raises() -> None:
    half = np.float32(128 / 255)
    with pytest.raises(QuantiseConflictError, match="code 128"):
        UNIT.encode(column([half, np.nextafter(half, np.float32(1))]), None)


def test_encode_of_a_conflict_in_a_later_slab_raises() -> None:
    samples = np.zeros((3, 1, 70_000), np.float32)
    samples[2, 0, 69_999] = -0.0
    with pytest.raises(QuantiseConflictError):
        UNIT.encode(samples, 0)


@settings(quick, max_examples=100)
@given(patterns=st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 1 << 31, 0x3F800000]), max_size=12))
def test_encode_of_arbitrary_bits_is_exact_or_raises(patterns: list[int]) -> None:
    samples = np.array([patterns], np.uint32).view(np.float32)
    for quantiser in (UNIT, fit_quantiser(samples, None)):
        try:
            if quantiser is not None:
                assert_comes_back(quantiser, samples, None)
        except QuantiseConflictError:
            assert quantiser is UNIT


def test_encode_with_the_wrong_channels_dtype_or_layout_raises() -> None:
    for samples, channel_axis in (
        (np.zeros((2, 4, 5), np.float32), 0),
        (np.zeros((2, 1, 5), np.int32), 0),
        (np.zeros((2, 1, 5), ">f4"), 0),
        (np.zeros((2, 5, 1), np.float32).transpose(0, 2, 1)[:, :, ::2], 0),
        (np.zeros((2, 1, 5), np.float32), 2),
    ):
        with pytest.raises(SchemaError):
            UNIT.encode(samples, channel_axis)


def test_quantiser_through_json_stays_equal() -> None:
    quantiser = fitted(torch_usual(pictures(9), (0.1, 0.2, 0.3), (0.7, 0.8, 0.9), torch.float32).numpy(), 0)
    assert Quantiser.from_config(json.loads(json.dumps(quantiser.to_config()))) == quantiser
    assert quantiser != UNIT


@st.composite
def tables(draw: st.DrawFn) -> ValueTable:
    """Tables of two channels; few codes and patterns, so that conflicts and agreements both happen."""
    bits, used = np.zeros((2, 256), np.uint32), np.zeros((2, 256), np.bool_)
    entries = st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 5)), st.integers(0, 1), max_size=5)
    for place, pattern in draw(entries).items():
        bits[place], used[place] = pattern, True
    return ValueTable("float32", bits, used)


def united(first: ValueTable | None, second: ValueTable | None) -> ValueTable | None:
    try:
        return first.union(second) if first is not None and second is not None else None
    except QuantiseConflictError:
        return None


@settings(quick, max_examples=200)
@given(tables(), tables(), tables())
def test_union_is_associative_commutative_and_idempotent(a: ValueTable, b: ValueTable, c: ValueTable) -> None:
    assert united(united(a, b), c) == united(a, united(b, c))
    assert united(a, b) == united(b, a)
    assert united(a, a) == a
    assert united(a, ValueTable.empty("float32", 2)) == a


def test_union_of_parts_that_disagree_raises_with_channel_code_and_patterns() -> None:
    half = np.float32(128 / 255)
    _, first = UNIT.encode(column([0.0, half]), None)
    _, second = UNIT.encode(column([1.0, np.nextafter(half, np.float32(1))]), None)
    with pytest.raises(QuantiseConflictError, match=r"channel 0: code 128 .*0x3f008081.*0x3f008082"):
        first.union(second)


def test_union_of_a_used_zero_with_an_unused_entry_keeps_it_used() -> None:
    _, zero = UNIT.encode(column([0.0]), None)
    _, one = UNIT.encode(column([1.0]), None)
    both = zero.union(one)
    assert np.flatnonzero(both.used[0]).tolist() == [0, 255]
    assert both != one


def test_union_of_different_dtypes_or_channels_raises() -> None:
    for other in (ValueTable.empty("float16", 1), ValueTable.empty("float32", 2)):
        with pytest.raises(QuantiseConflictError):
            ValueTable.empty("float32", 1).union(other)


def test_table_of_wrong_form_raises() -> None:
    good = ValueTable.empty("float32", 1)
    for change in ({"dtype": "int8"}, {"dtype": "float16"}, {"bits": good.bits[:, :9]}, {"used": good.used[0]}):
        with pytest.raises(SchemaError):
            dataclasses.replace(good, **change)


def test_table_is_immutable_and_survives_pickling() -> None:
    _, table = UNIT.encode(column([0.0, 1.0]), None)
    with pytest.raises(ValueError, match="read-only"):
        table.bits[0, 0] = 1
    assert pickle.loads(pickle.dumps(table)) == table


@pytest.mark.parametrize("dtype", [*BITS])
@pytest.mark.parametrize(("shape", "channel_axis"), [((3, 5, 7), 0), ((5, 7, 3), -1), ((5, 3, 7), 1), ((3, 1), 0)])
@settings(quick, max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_expand_of_arbitrary_patterns_is_a_plain_lookup(
    shape: tuple[int, ...], channel_axis: int, dtype: str, seed: int
) -> None:
    # Arbitrary bits: quiet and signalling NaN, infinities, denormals and both zeros among them.
    rng = np.random.default_rng(seed)
    kind = BITS[dtype]
    bits = rng.integers(0, np.iinfo(kind).max, (3, 256), kind, endpoint=True)
    sign = 8 * bits.itemsize - 1
    bits[:, :4] = np.array([0, 1 << sign, 1, (1 << sign) | 1], kind)
    codes = rng.integers(0, 256, (2, *shape), np.uint8)
    out = np.empty(codes.shape, kind if dtype == "bfloat16" else dtype)
    expand(codes, ValueTable(dtype, bits, np.ones(bits.shape, np.bool_)), out, channel_axis)
    axis = channel_axis % len(shape) + 1
    by_channel = zip(bits, np.moveaxis(codes, axis, 0), np.moveaxis(out.view(kind), axis, 0), strict=True)
    for row, channel_codes, result in by_channel:
        np.testing.assert_array_equal(result, row[channel_codes])


def test_expand_with_denormals_flushed_to_zero_keeps_the_bits() -> None:
    samples = np.arange(256, dtype=np.uint32).view(np.float32)[None]
    codes, table = fitted(samples, None).encode(samples, None)
    out = np.empty_like(samples)
    torch.set_flush_denormal(True)
    try:
        expand(codes, table, out, None)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(bits_of(out), bits_of(samples))


def test_expand_from_many_threads_gives_each_its_own_result() -> None:
    samples = torch_usual(pictures(10, n=32), *IMAGENET, torch.float32).numpy()
    codes, table = fitted(samples, 0).encode(samples, 0)
    out = np.empty_like(samples)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: expand(codes[row : row + 1], table, out[row : row + 1], 0), [*range(32)] * 5))
    np.testing.assert_array_equal(bits_of(out), bits_of(samples))


def test_expand_into_unfit_memory_raises() -> None:
    codes, table = UNIT.encode(np.zeros((2, 1, 4), np.float32), 0)
    strided = np.empty((2, 1, 8), np.float32)[:, :, ::2]
    for out in (np.empty((2, 1, 4)), np.empty((2, 1, 4), ">f4"), np.empty((2, 4), np.float32), strided):
        with pytest.raises(SchemaError):
            expand(codes, table, out, 0)
    with pytest.raises(SchemaError):
        expand(np.zeros((2, 3, 4), np.uint8), table, np.empty((2, 3, 4), np.float32), 0)


def test_check_codes_with_a_code_that_is_not_in_the_table_raises() -> None:
    codes, table = Quantiser(np.zeros(2), np.ones(2)).encode(np.array([[[0, 1], [5, 6]]], np.float32), 0)
    check_codes(codes, table, 0)
    codes[0, 1, 0] = 1
    with pytest.raises(QuantiseConflictError, match="channel 1: code 1 "):
        check_codes(codes, table, 0)


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 4, 6), 0), ((3, 5, 7), 0), ((4, 6, 3), -1), ((5,), None), ((1, 2, 3), 0)]
)
def test_codes_looked_up_by_pairs_or_one_by_one_are_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, pairs: bool, dtype: str, shape: tuple[int, ...], axis: int | None
) -> None:
    monkeypatch.setattr(value_table, "_has_pair_lookup", lambda: pairs)
    rng = np.random.default_rng(0)
    channels = 1 if axis is None else shape[axis]
    unsigned = value_table.BITS_DTYPES[dtype]
    # Any bits: signalling NaNs and subnormals too must come through untouched.
    bits = rng.integers(0, np.iinfo(unsigned).max, (channels, 256), dtype=unsigned, endpoint=True)
    table = ValueTable(dtype, bits, np.ones(bits.shape, bool))
    codes = rng.integers(0, 256, (9, *shape), dtype=np.uint8)
    out = np.empty(codes.shape, unsigned)
    expand(codes, table, out, axis)
    number = np.zeros(codes.shape, np.int64)
    if axis is not None:
        number += np.arange(channels).reshape([-1 if place == axis % 3 + 1 else 1 for place in range(4)])
    assert np.array_equal(out, bits[number, codes])


def test_a_table_pickles_without_its_pairs() -> None:
    table = ValueTable("float32", np.zeros((3, 256), np.uint32), np.ones((3, 256), bool))
    before = len(pickle.dumps(table))
    assert table.pairs.nbytes > 1_000_000
    assert len(pickle.dumps(table)) == before
    assert pickle.loads(pickle.dumps(table)) == table
