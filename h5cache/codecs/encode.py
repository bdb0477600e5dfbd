"""Encode a chunk and prove that it comes back, before anyone writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .codec import BlockSpans, Codec
from .memory import as_chunk_bytes

__all__ = ["encode_verified"]


def encode_verified(codec: Codec, chunk: npt.NDArray[Any]) -> tuple[bytes, BlockSpans]:
    """Encode one full chunk with a resolved codec; return the stored bytes and where their blocks lie.

    CodecError, naming the first block that differs, unless every byte decodes as it was.
    """
    stored = codec.encode(chunk)
    spans = codec.locate_blocks(stored)
    source = as_chunk_bytes(chunk, chunk.nbytes)
    # Both ways that readers take: h5cache decodes block by block, HDF5's filter the whole chunk. The second decode is
    # 1.6 ms per 2.4 MB against 4.2 ms of encoding, and the two differ in all that is easy to get wrong: headers,
    # block starts, lengths.
    decoded = np.empty_like(source)
    codec.decode(stored, decoded)
    _check_same(codec, source, decoded, spans, "whole")
    if codec.has_blocks:
        decoded.fill(0xA5)  # a decoder that writes nothing must not find the right bytes there already
        _decode_blocks(codec, stored, spans, decoded)
        _check_same(codec, source, decoded, spans, "block by block")
    return stored, spans


def _decode_blocks(codec: Codec, stored: bytes, spans: BlockSpans, out: npt.NDArray[np.uint8]) -> None:
    decoder = codec.block_decoder(spans.header)
    size = decoder.block_nbytes
    if len(spans.offsets) * size != out.size:
        raise CodecError(f"{codec}: located {len(spans.offsets)} blocks of {size} bytes in a chunk of {out.size} bytes")
    view = memoryview(stored)
    for i, (offset, nbytes) in enumerate(zip(spans.offsets.tolist(), spans.nbytes.tolist(), strict=True)):
        decoder.decode(view[offset : offset + nbytes], out[i * size : (i + 1) * size])


def _check_same(
    codec: Codec, source: npt.NDArray[np.uint8], decoded: npt.NDArray[np.uint8], spans: BlockSpans, way: str
) -> None:
    if np.array_equal(source, decoded):
        return
    first = int(np.argmax(source != decoded))
    block = first * len(spans.offsets) // source.size
    raise CodecError(f"{codec} does not decode ({way}) to what was encoded: first at byte {first}, in block {block}")
