"""No compression: the stored bytes are the array's bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .codec import BlockDecoder, BlockSpans, Buffer, ChunkGeometry, Codec
from .geometry import check_geometry
from .memory import as_bytes, as_chunk_bytes, check_out, copy_raw

__all__ = ["Raw"]

_MAX_NBYTES = 2**32 - 1  # block offsets are uint32


@dataclass(frozen=True)
class Raw(Codec):
    """Codec "none"."""

    name: ClassVar[str] = "none"
    filter_id: ClassVar[int | None] = None
    has_blocks: ClassVar[bool] = True

    #: 0: set by `resolve`.
    block_nbytes: int = 0

    def resolve(self, geometry: ChunkGeometry) -> Raw:
        check_geometry(geometry, self.block_nbytes, _MAX_NBYTES, _MAX_NBYTES)
        return replace(self, block_nbytes=geometry.block_nbytes)

    def encode(self, chunk: npt.NDArray[Any]) -> bytes:
        return as_chunk_bytes(chunk, self.block_nbytes).tobytes()

    def decode(self, data: Buffer, out: npt.NDArray[Any]) -> None:
        source = as_bytes(data)
        check_out(out, source.size)
        copy_raw(source, out)

    def locate_blocks(self, data: bytes) -> BlockSpans:
        offsets = np.arange(0, len(data), self.block_nbytes).astype(np.uint32)
        return BlockSpans(offsets, np.full(offsets.size, self.block_nbytes, np.uint32), b"")

    def block_decoder(self, header: bytes) -> BlockDecoder:
        return _RawBlockDecoder(self.block_nbytes)

    def filter_options(self, geometry: ChunkGeometry) -> tuple[int, ...]:
        return ()


class _RawBlockDecoder(BlockDecoder):
    def __init__(self, block_nbytes: int) -> None:
        self.block_nbytes = block_nbytes

    def decode(self, stored: Buffer, out: npt.NDArray[Any]) -> None:
        check_out(out, self.block_nbytes)
        copy_raw(as_bytes(stored), out)
