"""Zstandard: one frame per chunk (HDF5 filter 32015). A chunk is its only block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .codec import BlockDecoder, BlockSpans, Buffer, ChunkGeometry, Codec
from .geometry import check_choice, check_geometry
from .memory import as_bytes, as_chunk_bytes, check_out, copy_raw

__all__ = ["Zstd"]

_MAX_NBYTES = 2**31 - 1
_MAGIC = bytes.fromhex("28b52ffd")
#: A frame that decoders skip, of no content.
_EMPTY_SKIPPABLE_FRAME = bytes.fromhex("502a4d1800000000")


@dataclass(frozen=True)
class Zstd(Codec):
    """Plain zstd, without filters: for text-like data, and for readers that know no Blosc."""

    name: ClassVar[str] = "zstd"
    filter_id: ClassVar[int | None] = 32015
    has_blocks: ClassVar[bool] = False

    level: int = 1
    #: The whole chunk; 0: set by `resolve`.
    block_nbytes: int = 0

    def __post_init__(self) -> None:
        check_choice("level", self.level, range(1, 23))

    def resolve(self, geometry: ChunkGeometry) -> Zstd:
        check_geometry(geometry, 0, _MAX_NBYTES, _MAX_NBYTES)
        if self.block_nbytes not in (0, geometry.chunk_nbytes):
            raise CodecError(f"block_nbytes is {self.block_nbytes}, but the chunk has {geometry.chunk_nbytes} bytes")
        return replace(self, block_nbytes=geometry.chunk_nbytes)

    def encode(self, chunk: npt.NDArray[Any]) -> bytes:
        from numcodecs import zstd

        stored = bytes(zstd.compress(as_chunk_bytes(chunk, chunk.nbytes), self.level))
        # Bytes of just the chunk's size would be read as raw ones.
        return stored + _EMPTY_SKIPPABLE_FRAME if len(stored) == chunk.nbytes else stored

    def decode(self, data: Buffer, out: npt.NDArray[Any]) -> None:
        check_out(out, out.nbytes)
        _decode_frame(as_bytes(data), out)

    def locate_blocks(self, data: bytes) -> BlockSpans:
        return BlockSpans(np.zeros(1, np.uint32), np.array([len(data)], np.uint32), b"")

    def block_decoder(self, header: bytes) -> BlockDecoder:
        return _ZstdBlockDecoder(self.block_nbytes)

    def filter_options(self, geometry: ChunkGeometry) -> tuple[int, ...]:
        return (self.level,)


class _ZstdBlockDecoder(BlockDecoder):
    def __init__(self, block_nbytes: int) -> None:
        self.block_nbytes = block_nbytes

    def decode(self, stored: Buffer, out: npt.NDArray[Any]) -> None:
        source = as_bytes(stored)
        check_out(out, self.block_nbytes)
        if source.size in (0, self.block_nbytes):
            copy_raw(source, out)
        else:
            _decode_frame(source, out)


def _decode_frame(source: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
    from numcodecs import zstd

    content_nbytes = _content_nbytes(source[:18].tobytes())
    if content_nbytes != out.nbytes:
        raise CodecError(f"zstd frame decodes to {content_nbytes} bytes, expected {out.nbytes}")
    try:
        zstd.decompress(source, out.reshape(-1).view(np.uint8))
    except (RuntimeError, ValueError) as exc:
        raise CodecError(f"damaged zstd frame of {source.size} bytes: {exc}") from exc


def _content_nbytes(head: bytes) -> int:
    """Read the content size in a frame's header (RFC 8878, 3.1.1.1); CodecError where there is none."""
    if len(head) < 6 or head[:4] != _MAGIC:
        raise CodecError(f"not a zstd frame: begins with {head[:4].hex() or 'nothing'}")
    descriptor = head[4]
    size_flag, single_segment, dict_flag = descriptor >> 6, descriptor >> 5 & 1, descriptor & 3
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[dict_flag]
    width = (single_segment, 2, 4, 8)[size_flag]
    if width == 0 or len(head) < start + width:
        raise CodecError("zstd frame does not carry its content size; read it with h5py")
    return int.from_bytes(head[start : start + width], "little") + (256 if width == 2 else 0)
