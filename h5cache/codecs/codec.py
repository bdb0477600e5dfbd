"""The contract every codec keeps: a chunk of samples to stored bytes, and stored bytes back into caller memory.

Nothing here knows files, HDF5 libraries or torch. A codec is a frozen value: its options, complete after
`resolve`, travel as JSON in the schema.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError

__all__ = [
    "BlockDecoder",
    "BlockSpans",
    "Buffer",
    "ChunkGeometry",
    "Codec",
    "DecodeRow",
    "check_scratch",
    "check_stored_nbytes",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[np.uint8]"
#: Called with the number of stored bytes in the scratch, and the row to decode them into.
DecodeRow: TypeAlias = "Callable[[int, int], None]"


@dataclass(frozen=True)
class ChunkGeometry:
    """How the samples of one field lie in a chunk. Every chunk is full: edge chunks are padded with zeros."""

    itemsize: int
    sample_nbytes: int
    block_samples: int
    chunk_samples: int
    #: Interleaved channels of an HWC picture, 1 for everything else.
    channels_last: int = 1

    @property
    def block_nbytes(self) -> int:
        return self.block_samples * self.sample_nbytes

    @property
    def chunk_nbytes(self) -> int:
        return self.chunk_samples * self.sample_nbytes


@dataclass(frozen=True)
class BlockSpans:
    """Where the blocks of one encoded chunk lie in its stored bytes, in block order.

    `nbytes` 0 means a block of zeros, `nbytes` equal to the block's size means raw bytes, anything else is coded.
    `header` is what a `BlockDecoder` needs besides a block's bytes; it is the same for all coded chunks of a field
    and empty where this chunk has no coded block.
    """

    offsets: npt.NDArray[np.uint32]
    nbytes: npt.NDArray[np.uint32]
    header: bytes


class BlockDecoder(ABC):
    """Decode single blocks of one field. Safe from many threads at once; the GIL is released while decoding."""

    #: Bytes that must be free in front of a block's stored bytes in the scratch of `bind`.
    prefix_nbytes: int = 0
    block_nbytes: int

    @abstractmethod
    def decode(self, stored: Buffer, out: npt.NDArray[Any]) -> None:
        """Decode one block's stored bytes into `out`, C-contiguous, of exactly `block_nbytes`; else CodecError."""

    def bind(self, scratch: npt.NDArray[np.uint8], rows: npt.NDArray[np.uint8]) -> DecodeRow:
        """Return `decode_row(stored_nbytes, row)`, for the thread that calls this: the hot path of reading.

        It decodes the bytes at `scratch[prefix_nbytes : prefix_nbytes + stored_nbytes]` into `rows[row]`, with the
        errors of `decode`; the prefix is overwritten. `rows` is C-contiguous `(any, block_nbytes)`. What can be
        checked once for all blocks is checked here, and nothing is copied.
        """
        check_scratch(scratch)

        def decode_row(stored_nbytes: int, row: int) -> None:
            check_stored_nbytes(stored_nbytes, scratch.nbytes)
            self.decode(scratch[:stored_nbytes], rows[row])

        return decode_row


def check_scratch(scratch: npt.NDArray[np.uint8]) -> None:
    if scratch.ndim != 1 or not scratch.flags.c_contiguous or not scratch.flags.writeable:
        raise CodecError("scratch must be one-dimensional, contiguous and writable")


def check_stored_nbytes(stored_nbytes: int, room_nbytes: int) -> None:
    if not 0 <= stored_nbytes <= room_nbytes:
        raise CodecError(f"a block of {stored_nbytes} stored bytes does not fit in {room_nbytes} bytes of scratch")


class Codec(ABC):
    """Options of one codec. Subclasses are frozen dataclasses whose fields are JSON values."""

    name: ClassVar[str]
    #: The registered HDF5 filter that reads what `encode` writes; None: no filter.
    filter_id: ClassVar[int | None]
    #: True where one block can be decoded without the rest of its chunk.
    has_blocks: ClassVar[bool]

    @abstractmethod
    def resolve(self, geometry: ChunkGeometry) -> Codec:
        """Return this codec with every automatic option fixed for `geometry`; CodecError where it cannot serve."""

    @abstractmethod
    def encode(self, chunk: npt.NDArray[Any]) -> bytes:
        """Encode one full, C-contiguous chunk `(samples, ...)`. Deterministic: same chunk, same bytes."""

    @abstractmethod
    def decode(self, data: Buffer, out: npt.NDArray[Any]) -> None:
        """Decode a whole chunk into `out`, C-contiguous, of the chunk's size; CodecError where it does not fit."""

    @abstractmethod
    def locate_blocks(self, data: bytes) -> BlockSpans:
        """Find the blocks in what `encode` returned."""

    @abstractmethod
    def block_decoder(self, header: bytes) -> BlockDecoder:
        """Make a decoder for single blocks. `header` is that of any coded chunk of the field (may be empty)."""

    @abstractmethod
    def filter_options(self, geometry: ChunkGeometry) -> tuple[int, ...]:
        """The HDF5 filter's client data (cd_values) for the dataset's creation properties."""

    def to_config(self) -> dict[str, Any]:
        """Return the codec as JSON values; `codec_from_config` is the way back."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]
