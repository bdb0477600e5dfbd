"""A contiguous Blosc2 frame of one chunk: what the Blosc2 filter of HDF5 stores.

Only the fixed part of the frame's header is read (all its integers are big-endian): nothing here knows how a chunk
is coded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .codec import Buffer
from .memory import as_bytes

__all__ = ["Frame", "is_own_frame", "read_frame"]

# magic, header length, frame length, nbytes, cbytes, chunksize, with the msgpack marks between them skipped.
_FIXED = struct.Struct(">2x8sx i x Q x 4x x q x q x 4x x 4x x i")
_MAGIC = b"b2frame\0"
_HAS_TRAILING_METALAYERS = 68
_METALAYERS = 87
# array of 3: size of the section, an empty map of names, an empty list of contents.
_NO_METALAYERS = bytes.fromhex("93cd0007de0000dc0000")
_HEADER_NBYTES = _METALAYERS + len(_NO_METALAYERS)
# An all-zero chunk is not stored: its entry in the frame's index (one raw Blosc2 chunk of 8 bytes) says so.
_ZERO_INDEX_NBYTES = 32 + 8
_ZERO_ENTRY = bytes.fromhex("0000000000000081")


@dataclass(frozen=True)
class Frame:
    """Where the chunk lies in a frame. `chunk_nbytes` is its stored size, 0 for a chunk of zeros."""

    nbytes: int
    chunk_start: int
    chunk_nbytes: int


def is_own_frame(data: Buffer) -> bool:
    """Tell whether `data` is a frame as h5cache writes it: one chunk, pixels in C order, no metalayers."""
    try:
        read_frame(as_bytes(data))
    except CodecError:
        return False
    return True


def read_frame(data: npt.NDArray[np.uint8]) -> Frame:
    """Read and check the frame that fills `data`; CodecError where its pixels may lie in another order."""
    if data.size < _HEADER_NBYTES:
        raise CodecError(f"truncated Blosc2 frame: got {data.size} bytes, its header alone has {_HEADER_NBYTES}")
    raw = data[:_HEADER_NBYTES].tobytes()
    magic, header_nbytes, frame_nbytes, nbytes, chunk_nbytes, chunksize = _FIXED.unpack_from(raw)
    if magic != _MAGIC:
        raise CodecError(f"not a Blosc2 frame: begins with {raw[:10].hex()}")
    if raw[_METALAYERS:] != _NO_METALAYERS or raw[_HAS_TRAILING_METALAYERS] != 0xC2:
        if b"b2nd" in data[: min(max(header_nbytes, 0), data.size)].tobytes():
            raise CodecError("Blosc2 frame has a b2nd metalayer: its pixels lie in n-D block order; read it with h5py")
        raise CodecError("Blosc2 frame has metalayers, so it was not written by h5cache; read it with h5py")
    if header_nbytes != _HEADER_NBYTES or frame_nbytes != data.size:
        raise CodecError(f"damaged Blosc2 frame: claims {frame_nbytes} bytes, got {data.size}")
    if nbytes <= 0 or chunksize != nbytes or not 0 <= chunk_nbytes <= data.size - _HEADER_NBYTES:
        raise CodecError(
            f"Blosc2 frame is not one chunk: {nbytes} bytes in chunks of {chunksize}, {chunk_nbytes} bytes stored"
        )
    if chunk_nbytes == 0:
        _check_zero_entry(data)
    return Frame(nbytes, _HEADER_NBYTES, chunk_nbytes)


def _check_zero_entry(data: npt.NDArray[np.uint8]) -> None:
    stop = _HEADER_NBYTES + _ZERO_INDEX_NBYTES
    if data[stop - 8 : stop].tobytes() != _ZERO_ENTRY:
        raise CodecError("Blosc2 frame holds no chunk, nor is it marked as zeros; read it with h5py")
