"""The header of a Blosc chunk, read and checked before any byte of it reaches C.

Both generations begin alike: version, codec version, flags, typesize, then nbytes, blocksize and cbytes as
little-endian int32. Blosc1 ends there (16 bytes); Blosc2 marks both shuffle flags and goes on to 32 bytes with the
filter pipeline and flags of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

__all__ = ["ChunkHeader", "block_starts", "check_chunk", "one_block_header", "read_header"]

_MIN_HEADER = struct.Struct("<4B3i")
_MIN_NBYTES = 16
_EXTENDED_NBYTES = 32
_BOTH_SHUFFLES = 0x05  # an impossible pair in Blosc1: the mark of the extended header
_MEMCPYED = 0x02
_SPECIAL_ZERO = 0x10
# What h5cache writes: no filter, SHUFFLE, BITSHUFFLE, BYTEDELTA. Others could read outside the chunk (DELTA refers to
# another block) or make C load a plugin, so that a damaged header must not name them.
_FILTERS = frozenset((0, 1, 2, 35))
_BYTEDELTA = 35
# Stream formats of blosclz, lz4, zlib, zstd: bits 5-7 of the flags. Beyond 4 C looks for plugins; 2 is Blosc1's snappy.
_FORMATS = frozenset((0, 1, 3, 4))
# Versions of the chunk format up to 5 have fixed block sizes; 6 may have blocks of any length.
_MAX_VERSION = 5


@dataclass(frozen=True)
class ChunkHeader:
    """What a chunk says of itself. `overhead` is the header's length: 16 for Blosc1, 32 for Blosc2."""

    flags: int
    typesize: int
    nbytes: int
    blocksize: int
    cbytes: int
    overhead: int
    all_zero: bool

    @property
    def memcpyed(self) -> bool:
        """True where the chunk holds its samples raw, right after the header."""
        return bool(self.flags & _MEMCPYED)

    @property
    def num_blocks(self) -> int:
        return -(-self.nbytes // self.blocksize)


def read_header(chunk: bytes | npt.NDArray[np.uint8], *, extended: bool) -> ChunkHeader:
    """Read the header at the start of `chunk`, which may be longer than the chunk; CodecError if it is nonsense.

    `extended` says which generation is expected, as a header of the other one is damage here.
    """
    overhead = _EXTENDED_NBYTES if extended else _MIN_NBYTES
    if len(chunk) < overhead:
        raise CodecError(f"truncated Blosc chunk: got {len(chunk)} bytes, its header alone has {overhead}")
    raw = bytes(chunk[:overhead])
    version, _, flags, typesize, nbytes, blocksize, cbytes = _MIN_HEADER.unpack_from(raw)
    if version > _MAX_VERSION or (flags & _BOTH_SHUFFLES == _BOTH_SHUFFLES) is not extended:
        kind = "Blosc2" if extended else "Blosc1"
        raise CodecError(f"not a {kind} chunk: format version {version}, flags {flags:#04x}")
    if nbytes <= 0 or blocksize <= 0 or typesize == 0 or not overhead <= cbytes <= len(chunk):
        raise CodecError(
            f"damaged Blosc header: nbytes {nbytes}, blocksize {blocksize}, cbytes {cbytes}, typesize {typesize} "
            f"with {len(chunk)} bytes at hand"
        )
    if flags & 0x08 or flags >> 5 not in _FORMATS:
        raise CodecError(f"unsupported Blosc chunk: flags {flags:#04x}")
    header = ChunkHeader(flags, typesize, nbytes, blocksize, cbytes, overhead, extended and raw[31] == _SPECIAL_ZERO)
    if extended:
        _check_pipeline(raw, header)
    if header.memcpyed and not header.all_zero and cbytes != nbytes + overhead:
        raise CodecError(f"damaged Blosc header: a raw chunk of {nbytes} bytes claims {cbytes} stored bytes")
    return header


def _check_pipeline(raw: bytes, header: ChunkHeader) -> None:
    filters, metas = raw[16:22], raw[24:30]
    known = all(f in _FILTERS and (f != _BYTEDELTA or meta) for f, meta in zip(filters, metas, strict=True))
    if not known or raw[30] or raw[31] not in (0, _SPECIAL_ZERO):
        raise CodecError(f"unsupported Blosc2 chunk: filters {list(filters)}, flags {raw[30]:#04x} {raw[31]:#04x}")
    # Such a block comes back wrong without an error from C-Blosc2.
    if not header.memcpyed and any(filters) and min(header.blocksize, header.nbytes) % header.typesize:
        raise CodecError(f"Blosc2 block of {header.blocksize} bytes is no multiple of typesize {header.typesize}")


def check_chunk(chunk: npt.NDArray[np.uint8], out_nbytes: int, *, extended: bool) -> ChunkHeader:
    """Read the header of a chunk that is to be decoded into `out_nbytes`; CodecError unless it fits exactly."""
    header = read_header(chunk, extended=extended)
    if header.nbytes != out_nbytes:
        raise CodecError(f"chunk decodes to {header.nbytes} bytes, expected {out_nbytes}")
    if not header.memcpyed and not header.all_zero:
        block_starts(chunk, header)
    return header


def block_starts(chunk: bytes | npt.NDArray[np.uint8], header: ChunkHeader) -> npt.NDArray[np.int64]:
    """Return where each block of a coded chunk begins, counted from the chunk's start; CodecError if outside it."""
    first = header.overhead + 4 * header.num_blocks
    if first > header.cbytes:
        raise CodecError(f"damaged Blosc chunk: {header.num_blocks} block starts do not fit in {header.cbytes} bytes")
    starts = np.frombuffer(chunk, "<i4", header.num_blocks, header.overhead).astype(np.int64)
    if starts.min() < first or starts.max() > header.cbytes - 4:
        raise CodecError(f"damaged Blosc chunk: a block starts outside bytes {first} to {header.cbytes}")
    return starts


def one_block_header(chunk: bytes, header: ChunkHeader) -> bytes:
    """Return the header that makes one block of `chunk` a chunk of its own, with cbytes left 0."""
    raw = bytearray(chunk[: header.overhead])
    struct.pack_into("<3i", raw, 4, header.blocksize, header.blocksize, 0)
    return bytes(raw)
