"""Single blocks of a Blosc chunk: where they lie, and how to decode one by making it a chunk of its own.

That chunk is the field's header, one block start and the block's stored bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

from .blosc2_library import Decompressor, decompressor
from .blosc_chunk import block_starts, one_block_header, read_header
from .codec import BlockDecoder, BlockSpans, Buffer, DecodeRow, check_scratch, check_stored_nbytes
from .memory import as_bytes, check_out, copy_raw

__all__ = ["BloscBlockDecoder", "locate_blosc_blocks"]


def locate_blosc_blocks(chunk: bytes, start: int, block_nbytes: int, *, extended: bool) -> BlockSpans:
    """Find the blocks of `chunk`, which lies `start` bytes into its stored bytes; CodecError if of another size."""
    header = read_header(chunk, extended=extended)
    if header.memcpyed:
        offsets = start + header.overhead + np.arange(0, header.nbytes, block_nbytes)
        return BlockSpans(offsets.astype(np.uint32), np.full(offsets.size, block_nbytes, np.uint32), b"")
    if header.blocksize != block_nbytes:
        raise CodecError(f"Blosc made blocks of {header.blocksize} bytes, asked for were {block_nbytes}")
    starts = block_starts(chunk, header)
    stored = np.diff(starts, append=header.cbytes)
    if stored.min() <= 0:
        raise CodecError("blocks of a Blosc chunk are not in order: was it encoded with more than one thread?")
    return BlockSpans((start + starts).astype(np.uint32), stored.astype(np.uint32), one_block_header(chunk, header))


class BloscBlockDecoder(BlockDecoder):
    """Blocks of one field, coded by Blosc1 or Blosc2 (`extended`)."""

    def __init__(
        self, header: bytes, block_nbytes: int, *, extended: bool, decompress: Decompressor | None = None
    ) -> None:
        overhead = 32 if extended else 16
        self.prefix_nbytes = overhead + 4
        self.block_nbytes = block_nbytes
        self._header = header
        self._extended = extended
        self._decompress = decompress or decompressor()
        # All but cbytes, which differs from block to block, in one call: this runs once per sample.
        self._prefix = struct.Struct(f"<12si{overhead - 16}si")
        if header:
            self._check_header(header, overhead)

    def _check_header(self, header: bytes, overhead: int) -> None:
        if len(header) != overhead:
            raise CodecError(f"block header has {len(header)} bytes, expected {overhead}")
        checked = read_header(header[:12] + struct.pack("<i", overhead) + header[16:], extended=self._extended)
        if checked.memcpyed or checked.all_zero or not checked.nbytes == checked.blocksize == self.block_nbytes:
            raise CodecError(f"header is not that of one coded block of {self.block_nbytes} bytes: {header.hex()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self._header, self.block_nbytes, self._extended)

    def decode(self, stored: Buffer, out: npt.NDArray[Any]) -> None:
        source = as_bytes(stored)
        check_out(out, self.block_nbytes)
        scratch = np.empty(self.prefix_nbytes + source.size, np.uint8)
        scratch[self.prefix_nbytes :] = source
        self.bind(scratch, out.reshape(1, -1).view(np.uint8))(source.size, 0)

    def bind(self, scratch: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> DecodeRow:
        check_scratch(scratch)
        check_out(rows, len(rows) * self.block_nbytes)
        header, rest, prefix, block_nbytes = self._header, self._header[16:], self.prefix_nbytes, self.block_nbytes
        room, num_rows, head = scratch.nbytes - prefix, len(rows), scratch.data
        pack = self._prefix.pack_into
        decompress = self._decompress.bind(scratch, rows)

        def decode_row(stored_nbytes: int, row: int) -> None:
            if not 0 < stored_nbytes <= room or stored_nbytes == block_nbytes or not 0 <= row < num_rows or not header:
                self._decode_other(scratch, stored_nbytes, rows[row])
                return
            # cbytes = all of it; the only block starts right behind the prefix.
            pack(head, 0, header, prefix + stored_nbytes, rest, prefix)
            decompress(prefix + stored_nbytes, row)

        return decode_row

    def _decode_other(self, scratch: npt.NDArray[np.uint8], stored_nbytes: int, out: npt.NDArray[np.uint8]) -> None:
        """Zeros and raw blocks, which hold nothing that is coded; and errors."""
        check_stored_nbytes(stored_nbytes, scratch.nbytes - self.prefix_nbytes)
        if stored_nbytes not in (0, self.block_nbytes):
            raise CodecError("this field has no coded chunk, so no header to decode a block with")
        copy_raw(scratch[self.prefix_nbytes :][:stored_nbytes], out)


def _make(header: bytes, block_nbytes: int, extended: bool) -> BloscBlockDecoder:
    return BloscBlockDecoder(header, block_nbytes, extended=extended)
