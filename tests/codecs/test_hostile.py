"""Damaged bytes give CodecError or some bytes, never a crash, never a write outside the output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import h5cache.codecs
from h5cache.codecs import Blosc2
from h5cache.errors import CodecError

ROOT = Path(h5cache.codecs.__file__).parents[2]


@pytest.mark.parametrize("decoder", ["library", "fallback"])
def test_damaged_bytes_are_refused_or_decoded_within_bounds(decoder):
    command = [sys.executable, str(Path(__file__).with_name("hostile.py")), decoder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    tried, refused = (int(word) for word in result.stdout.replace(",", "").split() if word.isdigit())
    assert tried > 10_000
    assert refused > tried // 3


def test_every_truncation_of_a_chunk_raises(codec, make):
    case = make("prime-sized-samples")
    resolved = codec.resolve(case.geometry)
    stored = resolved.encode(case.chunk)
    out = np.empty_like(case.chunk)
    for stop in range(0, len(stored), 7):
        with pytest.raises(CodecError):
            resolved.decode(stored[:stop], out)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(4, 2**31 - 1), (4, -1), (8, 0), (8, -5), (8, 1), (12, 2**31 - 1), (12, 0), (12, -1)],
    ids=[
        "nbytes-huge",
        "nbytes-negative",
        "block-0",
        "block-negative",
        "block-1",
        "cbytes-huge",
        "cbytes-0",
        "cbytes-neg",
    ],
)
def test_sizes_in_a_chunk_header_that_cannot_be_raise(make, offset, value, blosc2_decoder):
    case = make("uint8")
    codec = Blosc2().resolve(case.geometry)
    stored = bytearray(codec.encode(case.chunk))
    stored[97 + offset : 97 + offset + 4] = value.to_bytes(4, "little", signed=True)
    with pytest.raises(CodecError):
        codec.decode(bytes(stored), np.empty_like(case.chunk))


@pytest.mark.parametrize(
    ("position", "value"), [(16, 3), (16, 160), (22, 40), (30, 1), (31, 1), (31, 8), (31, 0x20), (0, 6)]
)
def test_chunk_with_features_h5cache_never_writes_raises(make, position, value):
    case = make("uint8")
    codec = Blosc2().resolve(case.geometry)
    stored = bytearray(codec.encode(case.chunk))
    stored[97 + position] = value
    if position == 22:
        stored[97 + 2] |= 0xE0  # a codec beyond the built-in ones, named by byte 22
    with pytest.raises(CodecError):
        codec.decode(bytes(stored), np.empty_like(case.chunk))
