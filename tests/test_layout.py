"""Where samples lie: properties of the arithmetic, with nothing on disk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache import Field, Schema
from h5cache.codecs import codec_from_name
from h5cache.errors import FormatError, SchemaError
from h5cache.format.build import plan_part_samples
from h5cache.format.layout import (
    CHUNK_NBYTES,
    MOST_CHUNK_SAMPLES,
    OWN_BLOCK_NBYTES,
    SHARED_BLOCK_NBYTES,
    FieldLayout,
    check_chunk_sizes,
    is_resident,
    plan_block_samples,
    plan_chunk_samples,
    plan_chunking,
    plan_layout,
    plan_resident_layout,
)

quick = settings(max_examples=150, deadline=None, derandomize=True)

sizes = st.integers(1, 40_000) | st.integers(1, 2**24)
fields = st.builds(
    lambda nbytes, dtype, chunk: Field(dtype, (nbytes,), chunk_samples=chunk),
    st.integers(1, 60_000),
    st.sampled_from(["uint8", "float16", "float32", "float64", "bfloat16"]),
    st.none() | st.integers(1, 1000),
)


def is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


@quick
@given(nbytes=sizes)
def test_blocks_are_one_sample_or_a_power_of_two_within_their_bounds(nbytes: int) -> None:
    count = plan_block_samples(nbytes)
    assert is_power_of_two(count)
    if nbytes >= OWN_BLOCK_NBYTES:
        assert count == 1
    else:
        assert SHARED_BLOCK_NBYTES // 2 < count * nbytes <= SHARED_BLOCK_NBYTES


@quick
@given(nbytes=sizes)
def test_chunks_are_whole_blocks_of_2_to_4_mebibytes_or_1024_samples(nbytes: int) -> None:
    block = min(plan_block_samples(nbytes), MOST_CHUNK_SAMPLES)
    chunk = plan_chunk_samples(nbytes, block)
    assert chunk % block == 0
    assert is_power_of_two(chunk)
    assert chunk <= MOST_CHUNK_SAMPLES
    assert chunk * nbytes >= CHUNK_NBYTES or chunk == MOST_CHUNK_SAMPLES
    assert chunk * nbytes < 2 * CHUNK_NBYTES or chunk == block == 1


@quick
@given(
    field=fields,
    codes=st.booleans(),
    codec=st.sampled_from(["none", "blosc2", "blosc", "zstd"]),
    num_samples=st.none() | st.integers(0, 5000),
)
def test_every_plan_has_whole_blocks_and_keeps_the_chunk_size_asked_for(
    field: Field, codes: bool, codec: str, num_samples: int | None
) -> None:
    codes = codes and field.dtype not in {"bfloat16", "uint8"}
    layout = plan_layout(field, codec_from_name(codec), codes=codes, num_samples=num_samples)
    layout.check()
    assert layout.chunk_nbytes == layout.geometry.chunk_nbytes
    if field.chunk_samples is not None:
        assert layout.chunk_samples == field.chunk_samples
    elif num_samples is not None:
        # No more than a block of padding for a dataset smaller than a chunk.
        assert layout.chunk_samples < num_samples + layout.block_samples or num_samples < layout.block_samples


@quick
@given(field=fields, num_samples=st.integers(0, 3000))
def test_every_sample_is_in_exactly_one_block_of_one_chunk(field: Field, num_samples: int) -> None:
    layout = plan_layout(field, codec_from_name("blosc2"))
    sample = np.arange(num_samples)
    chunk, in_chunk = np.divmod(sample, layout.chunk_samples)
    block = chunk * layout.blocks_per_chunk + in_chunk // layout.block_samples
    assert np.array_equal(block, sample // layout.block_samples)
    assert layout.num_chunks(num_samples) == (chunk[-1] + 1 if num_samples else 0)
    assert layout.num_blocks(num_samples) == layout.num_chunks(num_samples) * layout.blocks_per_chunk
    if num_samples:
        assert np.bincount(block).max() <= layout.block_samples
        assert block[-1] < layout.num_blocks(num_samples)


@quick
@given(num_samples=st.integers(0, 100_000), nbytes=st.integers(1, 16))
def test_a_field_in_one_piece_ends_with_its_rows(num_samples: int, nbytes: int) -> None:
    layout = plan_resident_layout(Field("uint8", (nbytes,)))
    assert layout.resident
    assert layout.num_blocks(num_samples) == -(-num_samples // layout.block_samples)


@pytest.mark.parametrize("chunk_samples", [1, 7, 13, 97, 210, 1009])
def test_an_odd_chunk_size_is_kept_and_its_blocks_divide_it(chunk_samples: int) -> None:
    field = Field("uint8", (3, 32, 32), chunk_samples=chunk_samples)
    block, chunk = plan_chunking(field, False, True, None)
    assert chunk == chunk_samples
    assert chunk % block == 0
    assert block * field.sample_nbytes <= SHARED_BLOCK_NBYTES
    assert plan_chunking(field, False, False, None) == (chunk, chunk)


@quick
@given(listed=st.lists(fields, min_size=1, max_size=3), wanted=st.integers(0, 3000))
def test_parts_end_with_whole_chunks_of_every_field_stored_either_way(listed: list[Field], wanted: int) -> None:
    schema = Schema.of({f"f{number}": field for number, field in enumerate(listed)})
    count = plan_part_samples(schema, wanted)
    assert count >= max(1, wanted)
    for field in schema.values():
        if is_resident(field):
            continue
        for codes in {False, field.may_be_coded_exactly}:
            for codec in ("none", "blosc2", "blosc", "zstd"):
                _, chunk = plan_chunking(field, codes, codec_from_name(codec).has_blocks, None)
                assert count % chunk == 0


def test_parts_of_fields_without_odd_chunks_are_at_most_a_chunk_larger_than_wanted() -> None:
    schema = Schema.of(
        {"image": Field("uint8", (3, 224, 224)), "small": Field("uint8", (300,)), "label": Field("int64")}
    )
    largest = max(plan_chunking(field, False, True, None)[1] for field in schema.values() if not is_resident(field))
    assert 1024 <= plan_part_samples(schema, 1024) < 1024 + largest


def test_a_chunk_that_is_too_large_is_refused_before_memory_is_asked_for_it() -> None:
    schema = Schema.of({"x": Field("uint8", (1000, 1000), chunk_samples=2**31 - 1)})
    with pytest.raises(SchemaError, match="field 'x': a chunk of 2147483647 samples.*smaller chunk_samples"):
        check_chunk_sizes(schema)


def test_a_layout_comes_back_equal_from_its_config_and_a_contradictory_one_is_refused() -> None:
    layout = plan_layout(Field("float32", (3, 20, 20)), codec_from_name("blosc2"), codes=True)
    config = layout.to_config()
    assert FieldLayout.from_config(config) == layout
    with pytest.raises(FormatError):
        FieldLayout.from_config({**config, "chunk_samples": layout.chunk_samples + 1})
    with pytest.raises(FormatError, match="newer h5cache"):
        FieldLayout.from_config({**config, "kind": "ragged"})


def test_a_small_field_beside_pictures_does_not_enlarge_parts() -> None:
    schema = Schema.of({"image": Field("uint8", (3, 224, 224)), "box": Field("float32", (10,))})
    assert plan_part_samples(schema, 1024) == 1024
