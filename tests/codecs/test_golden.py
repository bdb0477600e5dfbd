"""Chunks encoded once and kept: files written long ago must decode for ever. Never regenerate these."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from h5cache.codecs import codec_from_config

GOLDEN = Path(__file__).with_name("golden")
ENTRIES = json.loads((GOLDEN / "golden.json").read_text())


def golden_chunk(kind: str, shape: list[int], dtype: str) -> np.ndarray:
    """Make the data by integer arithmetic alone, the same with any numpy."""
    n = np.arange(int(np.prod(shape)), dtype=np.int64)
    if kind == "zeros":
        return np.zeros(shape, dtype)
    if kind == "noise":
        mixed = n * 2654435761 % 4294967296
        mixed = (mixed ^ mixed >> 15) * 2246822519 % 4294967296
        return (mixed >> 13 & 255).astype(dtype).reshape(shape)
    return (n // 3 % 50 + n * n // 700 % 40 + n % 3 * 20).astype(dtype).reshape(shape)


@pytest.mark.parametrize("name", ENTRIES)
def test_golden_chunk_decodes_whole_and_by_block(name, blosc2_decoder):
    entry = ENTRIES[name]
    codec = codec_from_config(entry["codec"])
    expected = golden_chunk(entry["kind"], entry["shape"], entry["dtype"])
    stored = (GOLDEN / f"{name}.bin").read_bytes()
    out = np.empty_like(expected)
    codec.decode(stored, out)
    np.testing.assert_array_equal(out, expected)

    spans = codec.locate_blocks(stored)
    assert spans.header.hex() == entry["header"]
    decoder = codec.block_decoder(bytes.fromhex(entry["header"]))
    blocks = np.empty((len(spans.offsets), decoder.block_nbytes), np.uint8)
    for i, (offset, nbytes) in enumerate(zip(spans.offsets.tolist(), spans.nbytes.tolist(), strict=True)):
        decoder.decode(stored[offset : offset + nbytes], blocks[i])
    assert blocks.tobytes() == expected.tobytes()
