"""Blosc1: one buffer per chunk, whose blocks are decoded one by one (HDF5 filter 32001).

For files that must be read where the Blosc2 plugin is missing. C-Blosc2 reads these buffers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .blosc2_library import decompressor
from .blosc_block import BloscBlockDecoder, locate_blosc_blocks
from .blosc_chunk import check_chunk
from .codec import BlockDecoder, BlockSpans, Buffer, ChunkGeometry, Codec
from .geometry import check_choice, check_geometry, smallest_divisor
from .memory import as_bytes, as_chunk_bytes, check_out

__all__ = ["Blosc"]

#: Zstd alone: Blosc1 enlarges the blocks of all others to its liking (lz4: 1200 bytes asked for became 4800).
_COMPCODES = {"zstd": 5}
_SHUFFLE_CODES = {"none": 0, "shuffle": 1, "bitshuffle": 2}
_MAX_TYPESIZE = 255
_MAX_NBYTES = (2**31 - 1 - 255 * 4) // 3  # BLOSC_MAX_BLOCKSIZE
_MIN_CODED_NBYTES = 128  # BLOSC_MIN_BUFFERSIZE: smaller block sizes are raised to it


@dataclass(frozen=True)
class Blosc(Codec):
    """Blosc1 with one block per sample, or per few small samples."""

    name: ClassVar[str] = "blosc"
    filter_id: ClassVar[int | None] = 32001
    has_blocks: ClassVar[bool] = True

    cname: str = "zstd"
    clevel: int = 1
    shuffle: str = "shuffle"
    #: 0: chosen by `resolve`.
    typesize: int = 0
    block_nbytes: int = 0

    def __post_init__(self) -> None:
        check_choice("cname", self.cname, _COMPCODES)
        check_choice("shuffle", self.shuffle, _SHUFFLE_CODES)
        check_choice("clevel", self.clevel, range(10))
        check_choice("typesize", self.typesize, range(_MAX_TYPESIZE + 1))

    def resolve(self, geometry: ChunkGeometry) -> Blosc:
        check_geometry(geometry, self.block_nbytes, _MAX_NBYTES, _MAX_NBYTES)
        typesize = self.typesize or self._choose_typesize(geometry)
        # Blosc1 would round the block down to a multiple of it.
        if geometry.sample_nbytes % typesize:
            raise CodecError(f"typesize {typesize} does not divide a sample of {geometry.sample_nbytes} bytes")
        useless = typesize == 1 and self.shuffle == "shuffle"
        return replace(
            self,
            typesize=typesize,
            shuffle="none" if useless else self.shuffle,
            block_nbytes=geometry.block_nbytes,
        )

    def _choose_typesize(self, geometry: ChunkGeometry) -> int:
        if geometry.itemsize > 1 or self.shuffle == "bitshuffle":
            return geometry.itemsize
        return smallest_divisor(geometry.sample_nbytes, _MAX_TYPESIZE)

    def encode(self, chunk: npt.NDArray[Any]) -> bytes:
        data = as_chunk_bytes(chunk, self.block_nbytes)
        if self.block_nbytes < _MIN_CODED_NBYTES:
            return self._encode(data, clevel=0)
        stored = self._encode(data, self.clevel)
        spans = self.locate_blocks(stored)
        # The table of blocks reads this length as "raw". It may come about by chance: then all of the chunk is raw.
        if spans.header and bool((spans.nbytes == self.block_nbytes).any()):
            return self._encode(data, clevel=0)
        return stored

    def _encode(self, data: npt.NDArray[np.uint8], clevel: int) -> bytes:
        from numcodecs import blosc

        # In the main thread numcodecs lets Blosc use threads, and blocks are stored in the order these finish. The
        # alternatives are global switches of numcodecs; a thread costs 0.1 ms, and none survives to trouble a fork.
        with ThreadPoolExecutor(1) as pool:
            encoded = pool.submit(
                blosc.compress,
                data,
                self.cname.encode(),
                clevel,
                _SHUFFLE_CODES[self.shuffle],
                self.block_nbytes,
                self.typesize,
            )
            return bytes(encoded.result())

    def decode(self, data: Buffer, out: npt.NDArray[Any]) -> None:
        source = as_bytes(data)
        check_out(out, out.nbytes)
        header = check_chunk(source, out.nbytes, extended=False)
        decompressor()(source[: header.cbytes], out)

    def locate_blocks(self, data: bytes) -> BlockSpans:
        return locate_blosc_blocks(data, 0, self.block_nbytes, extended=False)

    def block_decoder(self, header: bytes) -> BlockDecoder:
        return BloscBlockDecoder(header, self.block_nbytes, extended=False)

    def filter_options(self, geometry: ChunkGeometry) -> tuple[int, ...]:
        # Four values that the filter's set_local fills, then level, shuffle and compressor.
        return (0, 0, 0, 0, self.clevel, _SHUFFLE_CODES[self.shuffle], _COMPCODES[self.cname])
