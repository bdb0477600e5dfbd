"""Checks and plain copies on caller memory, shared by all codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .codec import Buffer

__all__ = ["as_bytes", "as_chunk_bytes", "check_out", "copy_raw"]


def as_bytes(data: Buffer) -> npt.NDArray[np.uint8]:
    """View `data` as a flat array of bytes, without a copy."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise CodecError("stored bytes must lie contiguous in memory")
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def as_chunk_bytes(chunk: npt.NDArray[Any], block_nbytes: int) -> npt.NDArray[np.uint8]:
    """View a chunk that is to be encoded as flat bytes; CodecError unless it is contiguous and of whole blocks."""
    if block_nbytes <= 0:
        raise CodecError("codec has no block size yet: call resolve(geometry) first")
    if not chunk.flags.c_contiguous:
        raise CodecError("a chunk must be C-contiguous to be encoded: use numpy.ascontiguousarray")
    if chunk.nbytes == 0 or chunk.nbytes % block_nbytes:
        raise CodecError(f"chunk of {chunk.nbytes} bytes is not made of whole blocks of {block_nbytes} bytes")
    return chunk.reshape(-1).view(np.uint8)


def check_out(out: npt.NDArray[Any], nbytes: int) -> None:
    """CodecError unless `out` is writable, C-contiguous memory of exactly `nbytes`."""
    flags = out.flags
    if out.nbytes != nbytes or not flags.c_contiguous or not flags.writeable:
        raise CodecError(
            f"cannot decode into {out.nbytes} bytes (contiguous: {flags.c_contiguous}, writable: {flags.writeable}); "
            f"expected {nbytes} contiguous writable bytes"
        )


def copy_raw(stored: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
    """Copy raw stored bytes into `out`, or zero it where nothing is stored."""
    target = out.reshape(-1).view(np.uint8)
    if stored.size == 0:
        target[:] = 0
    elif stored.size == target.size:
        target[:] = stored
    else:
        raise CodecError(f"got {stored.size} raw bytes, expected {target.size}")
