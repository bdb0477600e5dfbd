"""Encode a chunk and prove that it comes back, before anyone writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .codec import BlockSpans, Codec
from .memory import as_chunk_bytes

__all__ = ["encode_verified"]


def encode_verified(codec: Codec, chunk: npt.NDArray[Any], *, whole: bool = True) -> tuple[bytes, BlockSpans]:
    """Encode one full chunk with a resolved codec; return the stored bytes and where their blocks lie.

    CodecError, naming the first block that differs, unless every byte decodes as it was. h5cache decodes block by
    block, HDF5's filter the whole chunk: the first way is always tried, the other where `whole`. What the two can
    disagree about (headers, block starts) is the same in all chunks of a field, so that trying its first will do.
    """
    stored = codec.encode(chunk)
    spans = codec.locate_blocks(stored)
    source = as_chunk_bytes(chunk, chunk.nbytes)
    if whole or not codec.has_blocks:
        decoded = np.empty_like(source)
        codec.decode(stored, decoded)
        if not np.array_equal(source, decoded):
            raise _differs(codec, source, decoded, 0, len(spans.offsets), "whole")
    if codec.has_blocks:
        _check_blocks(codec, stored, spans, source)
    return stored, spans


def _check_blocks(codec: Codec, stored: bytes, spans: BlockSpans, source: npt.NDArray[np.uint8]) -> None:
    """Decode each block as readers do, into memory that stays in the cache, and compare it."""
    decoder = codec.block_decoder(spans.header)
    size, prefix = decoder.block_nbytes, decoder.prefix_nbytes
    if len(spans.offsets) * size != source.size:
        raise CodecError(
            f"{codec}: located {len(spans.offsets)} blocks of {size} bytes in a chunk of {source.size} bytes"
        )
    scratch, decoded = np.empty(prefix + int(spans.nbytes.max()), np.uint8), np.empty((1, size), np.uint8)
    decode_row = decoder.bind(scratch, decoded)
    data = np.frombuffer(stored, np.uint8)
    for block, (offset, nbytes) in enumerate(zip(spans.offsets.tolist(), spans.nbytes.tolist(), strict=True)):
        decoded.fill(0xA5)  # a decoder that writes nothing must not find the right bytes there already
        scratch[prefix : prefix + nbytes] = data[offset : offset + nbytes]
        decode_row(nbytes, 0)
        expected = source[block * size : (block + 1) * size]
        if not np.array_equal(expected, decoded[0]):
            raise _differs(codec, expected, decoded[0], block, 1, "block by block")


def _differs(
    codec: Codec,
    source: npt.NDArray[np.uint8],
    decoded: npt.NDArray[np.uint8],
    first_block: int,
    num_blocks: int,
    way: str,
) -> CodecError:
    first = int(np.argmax(source != decoded))
    block = first_block + first * num_blocks // source.size
    byte = first_block * source.size + first if num_blocks == 1 else first
    return CodecError(f"{codec} does not decode ({way}) to what was encoded: first at byte {byte}, in block {block}")
