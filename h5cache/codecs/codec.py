"""The contract every codec keeps: a chunk of samples to stored bytes, and stored bytes back into caller memory.

Nothing here knows files, HDF5 libraries or torch. A codec is a frozen value: its options, complete after
`resolve`, travel as JSON in the schema.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BlockDecoder", "BlockSpans", "Buffer", "ChunkGeometry", "Codec"]

Buffer: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[np.uint8]"


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

    #: Bytes that must be free in front of a block's stored bytes for `decode_prefixed`.
    prefix_nbytes: int
    block_nbytes: int

    @abstractmethod
    def decode(self, stored: Buffer, out: npt.NDArray[Any]) -> None:
        """Decode one block's stored bytes into `out`, C-contiguous, of exactly `block_nbytes`; else CodecError."""

    @abstractmethod
    def decode_prefixed(self, scratch: npt.NDArray[np.uint8], stored_nbytes: int, out: npt.NDArray[Any]) -> None:
        """As `decode`, for stored bytes that lie at `scratch[prefix_nbytes : prefix_nbytes + stored_nbytes]`.

        The prefix is overwritten: one thread per scratch. This saves the hot path a copy of the stored bytes.
        """


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
