"""Feed damaged bytes to the codecs and watch the memory around the output. A crash here ends only this process.

Run by test_hostile.py as a script: `hostile.py library|fallback`. Prints how many inputs were tried and refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from h5cache.codecs import Blosc, Blosc2, ChunkGeometry, Codec, Raw, Zstd, blosc2_library
from h5cache.errors import CodecError

GUARD = 4096
HEADER_NBYTES = {"none": 0, "zstd": 18, "blosc": 16 + 4 * 4, "blosc2": 97 + 32 + 4 * 4}


def chunks() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    smooth = (128 + np.cumsum(rng.integers(-1, 2, (4, 600)), axis=-1)).astype(np.uint8)
    yield smooth
    yield np.zeros_like(smooth)
    yield rng.integers(0, 256, smooth.shape, dtype=np.uint8)


def damaged(stored: bytes, header_nbytes: int) -> Iterator[bytes]:
    rng = np.random.default_rng(1)
    for stop in range(len(stored)):
        yield stored[:stop]
    for position in range(min(header_nbytes, len(stored))):
        for value in {
            0,
            1,
            2,
            0x7F,
            0x80,
            0xFF,
            stored[position] ^ 1,
            stored[position] ^ 0x10,
            stored[position] ^ 0x40,
        }:
            yield stored[:position] + bytes([value]) + stored[position + 1 :]
    for _ in range(1500):
        copy = bytearray(stored)
        for _ in range(int(rng.integers(1, 5))):
            copy[int(rng.integers(len(copy)))] = int(rng.integers(256))
        yield bytes(copy)
    yield stored + b"\0" * 40


def attempt(decode, data: bytes, nbytes: int) -> bool:
    memory = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
    try:
        decode(data, memory[GUARD : GUARD + nbytes])
        refused = False
    except CodecError:
        refused = True
    if not ((memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all()):
        raise SystemExit(f"wrote outside its memory: {data.hex()}")
    return refused


def attack(codec: Codec, chunk: np.ndarray) -> tuple[int, int]:
    codec = codec.resolve(ChunkGeometry(1, 600, 1, 4))
    stored = codec.encode(chunk)
    spans = codec.locate_blocks(stored)
    outcomes = [attempt(codec.decode, data, chunk.nbytes) for data in damaged(stored, HEADER_NBYTES[codec.name])]
    decoder = codec.block_decoder(spans.header)
    block = stored[spans.offsets[0] : spans.offsets[0] + spans.nbytes[0]]
    if block:
        outcomes += [attempt(decoder.decode, data, decoder.block_nbytes) for data in damaged(block, 40)]
    for header in damaged(spans.header, 36) if spans.header else ():
        outcomes.append(attempt(lambda data, out, h=header: codec.block_decoder(h).decode(data, out), block, 600))
    return len(outcomes), sum(outcomes)


def main() -> None:
    blosc2_library._loaded["library"] = blosc2_library.decompressor(sys.argv[1])
    codecs = [Raw(), Zstd(), Blosc(), Blosc(shuffle="bitshuffle"), Blosc2(), Blosc2(filter="shuffle+bytedelta")]
    codecs += [Blosc2(cname="lz4", filter="shuffle"), Blosc2(filter="bitshuffle"), Blosc2(filter="none")]
    tried = refused = 0
    for codec in codecs:
        for chunk in chunks():
            counts = attack(codec, chunk)
            tried, refused = tried + counts[0], refused + counts[1]
    print(f"tried {tried}, refused {refused}")


if __name__ == "__main__":
    main()
