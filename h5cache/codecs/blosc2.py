"""Blosc2: a contiguous frame of one chunk whose blocks are decoded one by one (HDF5 filter 32026)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .blosc2_frame import is_own_frame, read_frame
from .blosc2_library import decompressor
from .blosc_block import BloscBlockDecoder, locate_blosc_blocks
from .blosc_chunk import check_chunk
from .codec import BlockDecoder, BlockSpans, Buffer, ChunkGeometry, Codec
from .geometry import check_choice, check_geometry, smallest_divisor
from .memory import as_bytes, as_chunk_bytes, check_out, copy_raw

__all__ = ["Blosc2", "is_own_frame"]

_COMPCODES = {"lz4": 1, "zstd": 5}
#: What HDF5's Blosc2 filter is told. It has no BYTEDELTA; only an `r+` write would use it, reading never does.
_FILTER_CODES = {"none": 0, "shuffle": 1, "bitshuffle": 2, "bytedelta": 0, "shuffle+bytedelta": 1}
_MAX_TYPESIZE = 255
_MAX_STREAMS = 127  # python-blosc2 takes BYTEDELTA's meta, the number of streams, as an int8
_MAX_BLOCK_NBYTES = 536_866_816  # BLOSC2_MAXBLOCKSIZE
_MAX_CHUNK_NBYTES = 2**31 - 1 - 32
_MIN_CODED_NBYTES = 32  # BLOSC_MIN_BUFFERSIZE: C-Blosc2 raises smaller block sizes to it


@dataclass(frozen=True)
class Blosc2(Codec):
    """Blosc2 with one block per sample, or per few small samples.

    `bytedelta` stores each byte as its difference from the one before, `shuffle` gathers the bytes of equal
    significance (or of equal channel, where pictures are interleaved), `shuffle+bytedelta` does both.
    """

    name: ClassVar[str] = "blosc2"
    filter_id: ClassVar[int | None] = 32026
    has_blocks: ClassVar[bool] = True

    cname: str = "zstd"
    clevel: int = 1
    filter: str = "bytedelta"
    #: 0: chosen by `resolve`.
    typesize: int = 0
    block_nbytes: int = 0

    def __post_init__(self) -> None:
        check_choice("cname", self.cname, _COMPCODES)
        check_choice("filter", self.filter, _FILTER_CODES)
        check_choice("clevel", self.clevel, range(10))
        check_choice("typesize", self.typesize, range(_MAX_TYPESIZE + 1))

    def resolve(self, geometry: ChunkGeometry) -> Blosc2:
        check_geometry(geometry, self.block_nbytes, _MAX_BLOCK_NBYTES, _MAX_CHUNK_NBYTES)
        typesize = self.typesize or self._choose_typesize(geometry)
        # A block that is no multiple of the typesize comes back wrong, without an error.
        if geometry.sample_nbytes % typesize:
            raise CodecError(f"typesize {typesize} does not divide a sample of {geometry.sample_nbytes} bytes")
        if self.filter == "shuffle+bytedelta" and typesize > _MAX_STREAMS:
            raise CodecError(f"typesize {typesize} is more than {_MAX_STREAMS}, the most for filter {self.filter!r}")
        # These filters do nothing at typesize 1, but cost their time.
        useless = typesize == 1 and self.filter != "bitshuffle"
        return replace(
            self,
            typesize=typesize,
            filter="none" if useless else self.filter,
            block_nbytes=geometry.block_nbytes,
        )

    def _choose_typesize(self, geometry: ChunkGeometry) -> int:
        if geometry.itemsize > 1 or self.filter == "bitshuffle":
            return geometry.itemsize
        channels = geometry.channels_last
        if self.filter == "shuffle+bytedelta" and 2 <= channels <= 4 and geometry.sample_nbytes % channels == 0:
            return channels
        return smallest_divisor(
            geometry.sample_nbytes, _MAX_STREAMS if self.filter == "shuffle+bytedelta" else _MAX_TYPESIZE
        )

    def encode(self, chunk: npt.NDArray[Any]) -> bytes:
        data = as_chunk_bytes(chunk, self.block_nbytes)
        if self.block_nbytes < _MIN_CODED_NBYTES:
            return self._encode(data, clevel=0)
        frame = self._encode(data, self.clevel)
        spans = self.locate_blocks(frame)
        # The table of blocks reads this length as "raw". It may come about by chance: then all of the chunk is raw.
        if spans.header and bool((spans.nbytes == self.block_nbytes).any()):
            return self._encode(data, clevel=0)
        return frame

    def _encode(self, data: npt.NDArray[np.uint8], clevel: int) -> bytes:
        import blosc2

        filters, metas = self._pipeline(blosc2.Filter)
        chunk = blosc2.SChunk(
            chunksize=data.nbytes,
            data=data,
            contiguous=True,
            cparams={
                "codec": blosc2.Codec.ZSTD if self.cname == "zstd" else blosc2.Codec.LZ4,
                "clevel": clevel,
                "typesize": self.typesize,
                "blocksize": self.block_nbytes,
                "filters": filters,
                "filters_meta": metas,
                # With more, blocks are stored in the order in which threads finish them.
                "nthreads": 1,
            },
            dparams={"nthreads": 1},
        )
        return bytes(chunk.to_cframe())

    def _pipeline(self, names: Any) -> tuple[list[Any], list[int]]:
        # BYTEDELTA's meta is the number of streams it runs through one after another. Planar data is one stream;
        # after SHUFFLE there are as many as the typesize.
        return {
            "none": ([names.NOFILTER], [0]),
            "shuffle": ([names.SHUFFLE], [0]),
            "bitshuffle": ([names.BITSHUFFLE], [0]),
            "bytedelta": ([names.BYTEDELTA], [1]),
            "shuffle+bytedelta": ([names.SHUFFLE, names.BYTEDELTA], [0, self.typesize]),
        }[self.filter]

    def decode(self, data: Buffer, out: npt.NDArray[Any]) -> None:
        source = as_bytes(data)
        frame = read_frame(source)
        check_out(out, frame.nbytes)
        chunk = source[frame.chunk_start : frame.chunk_start + frame.chunk_nbytes]
        if chunk.size:
            check_chunk(chunk, out.nbytes, extended=True)
            decompressor()(chunk, out)
        else:
            copy_raw(chunk, out)

    def locate_blocks(self, data: bytes) -> BlockSpans:
        frame = read_frame(as_bytes(data))
        start = frame.chunk_start
        if frame.chunk_nbytes == 0:
            num_blocks = frame.nbytes // self.block_nbytes
            return BlockSpans(np.full(num_blocks, start, np.uint32), np.zeros(num_blocks, np.uint32), b"")
        return locate_blosc_blocks(data[start : start + frame.chunk_nbytes], start, self.block_nbytes, extended=True)

    def block_decoder(self, header: bytes) -> BlockDecoder:
        return BloscBlockDecoder(header, self.block_nbytes, extended=True)

    def filter_options(self, geometry: ChunkGeometry) -> tuple[int, ...]:
        # Four values that the filter's set_local fills, then level, filter and compressor.
        return (0, 0, 0, 0, self.clevel, _FILTER_CODES[self.filter], _COMPCODES[self.cname])
