"""Where samples lie: pure arithmetic on samples, blocks and chunks. Reads and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from h5cache.codecs import ChunkGeometry, Codec, Raw, codec_from_config
from h5cache.errors import FormatError, SchemaError
from h5cache.schema import QUANTISABLE, Field, Schema
from h5cache.value_table import ValueTable

__all__ = [
    "FieldLayout",
    "check_chunk_sizes",
    "plan_block_samples",
    "plan_chunk_samples",
    "plan_contiguous",
    "plan_layout",
]

#: From this size on a sample is a block of its own: one pread and one decode (fine up to 12 MB).
OWN_BLOCK_NBYTES = 16 * 1024
#: Smaller samples share a block of about this size: 49,900 random 3 kB samples/s per thread, whole chunks 1,049.
SHARED_BLOCK_NBYTES = 32 * 1024
#: Chunks of 2 to 4 MiB: large enough that libhdf5's chunk index stays small, small enough to buffer.
CHUNK_NBYTES = 2 * 1024 * 1024
#: Parts and shards hold whole chunks of every field: a field of 40 bytes must not make a part of 65,536 pictures.
MOST_CHUNK_SAMPLES = 1024
#: Fields up to this size per sample (labels, a box) live in memory when reading and are written at close.
RESIDENT_NBYTES = 16
#: Blosc's and the block table's limit: sizes are 32-bit.
MAX_CHUNK_NBYTES = 2**31 - 2**16


@dataclass(frozen=True)
class FieldLayout:
    """How one field is stored: complete, and all a reader must know besides where the chunks are.

    `field` is what the user sees (its codec resolved); `codes` says that the stored bytes are exact 8-bit codes.
    """

    field: Field
    codec: Codec
    block_samples: int
    chunk_samples: int
    codes: bool = False
    #: Written in one piece (an HDF5 contiguous dataset) rather than in chunks.
    contiguous: bool = False

    @cached_property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.codes else self.field.stored_dtype

    @cached_property
    def sample_nbytes(self) -> int:
        """Bytes of one sample as stored, before coding."""
        return self.field.sample_nbytes // (self.field.stored_dtype.itemsize if self.codes else 1)

    @cached_property
    def block_nbytes(self) -> int:
        return self.block_samples * self.sample_nbytes

    @cached_property
    def chunk_nbytes(self) -> int:
        return self.chunk_samples * self.sample_nbytes

    @cached_property
    def chunk_shape(self) -> tuple[int, ...]:
        return (self.chunk_samples, *self.field.shape)

    @cached_property
    def blocks_per_chunk(self) -> int:
        return self.chunk_samples // self.block_samples

    @cached_property
    def resident(self) -> bool:
        return self.contiguous and self.sample_nbytes <= RESIDENT_NBYTES

    @cached_property
    def is_raw(self) -> bool:
        """True where stored bytes are the samples themselves, so that a row is found by multiplication."""
        return self.codec.filter_id is None

    @cached_property
    def geometry(self) -> ChunkGeometry:
        return plan_geometry(self.field, self.codes, self.block_samples, self.chunk_samples)

    def num_chunks(self, num_samples: int) -> int:
        return -(-num_samples // self.chunk_samples)

    def num_blocks(self, num_samples: int) -> int:
        """Blocks of the field: chunks are padded and so have all of theirs, a contiguous field ends with its rows."""
        if self.contiguous:
            return -(-num_samples // self.block_samples)
        return self.num_chunks(num_samples) * self.blocks_per_chunk

    def empty_table(self) -> ValueTable:
        return ValueTable.empty(self.field.dtype, self.field.channels)

    def to_config(self) -> dict[str, Any]:
        return {
            "kind": "fixed",
            "dtype": self.field.dtype,
            "shape": list(self.field.shape),
            "layout": self.field.layout,
            "codec": self.codec.to_config(),
            "block_samples": self.block_samples,
            "chunk_samples": self.chunk_samples,
            "codes": self.codes,
            "contiguous": self.contiguous,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FieldLayout:
        if config.get("kind") != "fixed":
            raise FormatError(f"fields of kind {config.get('kind')!r} need a newer h5cache")
        codec = codec_from_config(config["codec"])
        layout = cls(
            field=Field(config["dtype"], tuple(config["shape"]), codec, config["layout"], exact="never"),
            codec=codec,
            block_samples=int(config["block_samples"]),
            chunk_samples=int(config["chunk_samples"]),
            codes=bool(config["codes"]),
            contiguous=bool(config["contiguous"]),
        )
        layout.check()
        return layout

    def check(self) -> None:
        """Raise FormatError where the numbers contradict each other (a damaged or hostile schema)."""
        if self.block_samples < 1 or self.chunk_samples < 1 or self.chunk_samples % self.block_samples:
            raise FormatError(
                f"chunks of {self.chunk_samples} samples do not hold whole blocks of {self.block_samples}"
            )
        largest = self.sample_nbytes if self.contiguous else self.chunk_nbytes
        if largest > MAX_CHUNK_NBYTES:
            raise FormatError(f"a chunk or sample of {largest} bytes is beyond the format's limit")
        if self.contiguous and not self.is_raw:
            raise FormatError("a contiguous field cannot have a codec")
        if self.codes and self.field.dtype not in QUANTISABLE:
            raise FormatError(f"a field of dtype {self.field.dtype} cannot be stored as exact codes")
        if not self.contiguous and self.codec.to_config()["block_nbytes"] != self.block_nbytes:
            raise FormatError(f"{self.codec} does not fit blocks of {self.block_samples} samples")


def plan_geometry(field: Field, codes: bool, block_samples: int, chunk_samples: int) -> ChunkGeometry:
    itemsize = 1 if codes else field.stored_dtype.itemsize
    return ChunkGeometry(
        itemsize=itemsize,
        sample_nbytes=field.sample_nbytes // field.stored_dtype.itemsize * itemsize,
        block_samples=block_samples,
        chunk_samples=chunk_samples,
        channels_last=field.channels if field.layout == "HWC" else 1,
    )


def plan_block_samples(sample_nbytes: int) -> int:
    """One sample from 16 KiB up; smaller ones share a block of at most 32 KiB.

    A power of two, as chunks are: the chunks of all fields then end together, which parts and shards rely on.
    """
    if sample_nbytes >= OWN_BLOCK_NBYTES:
        return 1
    return int(2 ** ((SHARED_BLOCK_NBYTES // sample_nbytes).bit_length() - 1))


def plan_chunk_samples(sample_nbytes: int, block_samples: int) -> int:
    """The smallest power of two of blocks that makes 2 MiB or 1,024 samples; one block where that is more already."""
    blocks = 1
    while blocks * block_samples * sample_nbytes < CHUNK_NBYTES and blocks * block_samples < MOST_CHUNK_SAMPLES:
        blocks *= 2
    return blocks * block_samples


def plan_chunking(field: Field, codes: bool, has_blocks: bool, num_samples: int | None) -> tuple[int, int]:
    """Return (block_samples, chunk_samples) of a field stored as itself or as 8-bit codes.

    A codec without blocks decodes whole chunks, so its chunks are as small as blocks are. A `chunk_samples` asked
    for is kept to the sample; blocks then divide it. A dataset that is known to be smaller than a chunk gets one
    chunk of its own size, so that one raw sample does not cost 2 MiB.
    """
    sample_nbytes = field.sample_nbytes // (field.stored_dtype.itemsize if codes else 1)
    block_samples = min(plan_block_samples(sample_nbytes), MOST_CHUNK_SAMPLES)
    if field.chunk_samples is None:
        chunk_samples = plan_chunk_samples(sample_nbytes, block_samples) if has_blocks else block_samples
        if num_samples is not None and num_samples < chunk_samples:
            if num_samples < block_samples:
                block_samples = max(1, num_samples)
            chunk_samples = max(1, -(-num_samples // block_samples)) * block_samples
        return block_samples, chunk_samples
    chunk_samples = int(field.chunk_samples)
    if not has_blocks:
        return chunk_samples, chunk_samples
    block_samples = next(
        count for count in range(min(block_samples, chunk_samples), 0, -1) if chunk_samples % count == 0
    )
    return block_samples, chunk_samples


def plan_layout(field: Field, codec: Codec, *, codes: bool = False, num_samples: int | None = None) -> FieldLayout:
    """Return the layout of a field stored in chunks; SchemaError where a chunk would be too large.

    Give `num_samples` only where the whole dataset is smaller than a chunk and nothing has been written yet.
    """
    block_samples, chunk_samples = plan_chunking(field, codes, codec.has_blocks, num_samples)
    geometry = plan_geometry(field, codes, block_samples, chunk_samples)
    _check_chunk_size(geometry)
    resolved = codec.resolve(geometry)
    return FieldLayout(
        field=replace(field, codec=resolved, chunk_samples=None, exact="never"),
        codec=resolved,
        block_samples=block_samples,
        chunk_samples=chunk_samples,
        codes=codes,
    )


def plan_contiguous(layout: FieldLayout) -> FieldLayout:
    """Return the layout of a field whose number of samples is known before it is written.

    Uncompressed fields then lie in one piece, where a row is found by multiplication and may be mapped; others stay
    as they are.
    """
    return replace(layout, contiguous=True) if layout.is_raw else layout


def check_chunk_sizes(schema: Schema) -> None:
    """Raise SchemaError where a chunk of a field would be too large: before memory is asked for it."""
    for name, field in schema.items():
        if is_resident(field):
            continue
        try:
            _check_chunk_size(plan_geometry(field, False, *plan_chunking(field, False, True, None)))
        except SchemaError as exc:
            raise SchemaError(f"field {name!r}: {exc}") from exc


def _check_chunk_size(geometry: ChunkGeometry) -> None:
    if geometry.chunk_nbytes > MAX_CHUNK_NBYTES:
        raise SchemaError(
            f"a chunk of {geometry.chunk_samples} samples of {geometry.sample_nbytes} bytes is over "
            f"{MAX_CHUNK_NBYTES} bytes; give the field a smaller chunk_samples, or split the sample"
        )


def is_resident(field: Field) -> bool:
    """True for small uncompressed fields: written in one piece at close, kept in memory when reading."""
    raw = field.codec in ("auto", "none") or isinstance(field.codec, Raw)
    return raw and field.sample_nbytes <= RESIDENT_NBYTES


def plan_resident_layout(field: Field) -> FieldLayout:
    """Return the layout of a small field that is written in one piece at close."""
    codec = Raw()
    block_samples = plan_block_samples(field.sample_nbytes)
    return FieldLayout(
        field=replace(field, codec=codec, chunk_samples=None, exact="never"),
        codec=codec,
        block_samples=block_samples,
        chunk_samples=block_samples,
        contiguous=True,
    )
