"""The automatic choice: sensible for each kind of data, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from h5cache.codecs import Blosc2, ChunkGeometry, Raw, auto, choose_codec, format_choice


def photographs(count: int = 4, size: int = 96) -> np.ndarray:
    """HWC uint8: smooth light, edges, and a sensor's noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:size, 0:size] / size
    pictures = []
    for _ in range(count):
        waves = sum(rng.normal() * np.sin(rng.normal(0, 8) * x + rng.normal(0, 8) * y + rng.normal()) for _ in range(6))
        edge = 60 * (x * rng.normal() + y * rng.normal() > 0.2)
        grey = 120 + 25 * waves + edge
        colours = grey[..., None] + rng.normal(0, 12, 3) + rng.normal(0, 2, (size, size, 3))
        pictures.append(np.clip(colours, 0, 255).astype(np.uint8))
    return np.stack(pictures)


def choose(chunk: np.ndarray, channels_last: int = 1, **options):
    geometry = ChunkGeometry(chunk.itemsize, chunk.nbytes // len(chunk), 1, len(chunk), channels_last)
    return choose_codec(np.ascontiguousarray(chunk), geometry, **options)


def test_photographs_chw_are_stored_by_bytedelta_and_zstd_1():
    codec = choose(photographs().transpose(0, 3, 1, 2)).codec
    assert (codec.cname, codec.clevel, codec.filter) == ("zstd", 1, "bytedelta")


def test_photographs_hwc_are_stored_with_a_delta_filter():
    codec = choose(photographs(), channels_last=3).codec
    assert isinstance(codec, Blosc2)
    assert "bytedelta" in codec.filter


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalised_floats_are_compressed(dtype):
    choice = choose((photographs().transpose(0, 3, 1, 2) / np.float32(255)).astype(dtype))
    assert isinstance(choice.codec, Blosc2)
    assert next(row for row in choice.rows if row.chosen).ratio > 1.3


def test_small_integers_in_wide_types_are_compressed_well():
    choice = choose(np.random.default_rng(0).integers(0, 100, (8, 4000)))
    assert next(row for row in choice.rows if row.chosen).ratio > 4


def test_noise_is_stored_as_it_is():
    noise = np.random.default_rng(0).integers(0, 256, (4, 30000), dtype=np.uint8)
    assert isinstance(choose(noise).codec, Raw)
    assert isinstance(choose(noise.view(np.float32)).codec, Raw)


def test_mask_of_few_values_is_compressed_well():
    mask = (photographs()[..., 0] // 64).astype(np.uint8)
    assert next(row for row in choose(mask).rows if row.chosen).ratio > 4


def test_zeros_say_nothing_so_the_first_candidate_is_taken():
    choice = choose(np.zeros((4, 3, 64, 64), np.uint8))
    assert choice.codec == choice.rows[0].codec
    assert choice.codec.filter == "bytedelta"


def test_choice_is_the_same_with_and_without_measuring():
    chunk = photographs()
    plain, measured = choose(chunk, 3), choose(chunk, 3, measure=True)
    assert plain.codec == measured.codec
    assert [row.stored_nbytes for row in plain.rows] == [row.stored_nbytes for row in measured.rows]
    assert all(row.decode_mb_s is None for row in plain.rows)
    assert all(row.decode_mb_s > 0 and row.encode_mb_s > 0 for row in measured.rows)


def test_choice_is_resolved_and_marked_once():
    choice = choose(photographs(), 3)
    assert [row.codec for row in choice.rows if row.chosen] == [choice.codec]
    assert choice.codec.block_nbytes == 96 * 96 * 3


def test_prime_sized_samples_list_no_codec_twice():
    chunk = photographs(1, 64).reshape(-1)[: 1009 * 8].reshape(8, 1009)
    codecs = [row.codec for row in choose(chunk).rows]
    assert len(codecs) == len(set(codecs))


def test_every_candidate_has_a_decode_rate():
    geometries = [ChunkGeometry(itemsize, 960, 1, 2, channels) for itemsize in (1, 2, 4, 8) for channels in (1, 3)]
    for codec in (c.resolve(g) for g in geometries for c in auto.candidates(g)):
        assert isinstance(codec, Raw) or (codec.cname, codec.filter) in auto.DECODE_MB_S


def test_formatted_choice_shows_each_candidate_and_marks_the_chosen():
    choice = choose(photographs().transpose(0, 3, 1, 2), measure=True)
    lines = format_choice(choice).splitlines()
    assert len(lines) == 1 + len(choice.rows)
    assert [line.startswith("*") for line in lines[1:]] == [row.chosen for row in choice.rows]
    assert "bytedelta" in lines[1]
