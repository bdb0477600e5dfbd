"""Write one HDF5 file of a dataset, chunk by chunk, in an order that depends on nothing but the samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError, FormatError
from h5cache.format import hdf5, tables
from h5cache.format.encode import EncodedChunk
from h5cache.format.layout import FieldLayout
from h5cache.format.root import Root, root_attributes
from h5cache.format.tables import CHUNK, CODED_BLOCK, RAW_BLOCK, FieldTables
from h5cache.quantise import Quantiser
from h5cache.value_table import ValueTable

__all__ = ["FieldEnd", "FieldPlan", "ShardEnd", "ShardWriter"]


@dataclass(frozen=True)
class FieldPlan:
    """How a field is stored, decided once per dataset and then used by every part."""

    layout: FieldLayout
    quantiser: Quantiser | None = None
    #: What codes mean in the parts so far: a later part must not give them another meaning.
    table: ValueTable | None = None


@dataclass(frozen=True, eq=False)
class FieldEnd:
    """What is known of a field when its last chunk is written."""

    layout: FieldLayout
    #: All rows of a resident field, None for one in chunks.
    rows: npt.NDArray[Any] | None = None
    table: ValueTable | None = None
    quantiser: Quantiser | None = None


@dataclass(frozen=True, eq=False)
class ShardEnd:
    """All that closes a shard: fields in schema order, index table, classes, provenance (JSON values)."""

    fields: Mapping[str, FieldEnd]
    index: npt.NDArray[Any]
    classes: tuple[str, ...]
    provenance: Mapping[str, Any]

    def root(self, kind: str) -> Root:
        """Return what the root attributes of a file of that kind say."""
        layouts = {name: last.layout for name, last in self.fields.items()}
        return Root(kind, layouts, self.classes, self.provenance)


@dataclass
class _Column:
    """A field in chunks while its shard is being written."""

    dataset: Any
    layout: FieldLayout
    header: bytes = b""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[npt.NDArray[Any]] = field(default_factory=list)


class ShardWriter:
    """Write one HDF5 file. The bytes depend only on the sequence of calls.

    Chunks come in the canonical order, by the sample they end with, edge chunks after full ones, then by the field's
    place in the schema: a file joined from parts is the same as one written in one go. Not thread-safe. `close`
    without `finish` leaves an unfinished file that nobody may read; the caller removes it. Contiguous fields need
    `num_samples`, the exact number of samples to come.
    """

    def __init__(self, path: str, num_samples: int | None = None) -> None:
        self.path = path
        self._num_samples = num_samples
        self._stack = ExitStack()
        self._file = self._stack.enter_context(hdf5.create_file(path))
        self._columns: dict[str, _Column] = {}
        self._stored_nbytes = 0

    def append_chunk(self, name: str, layout: FieldLayout, chunk: EncodedChunk, stop: int) -> None:
        """Store the next chunk of a field, whose last sample is `stop - 1`."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = _Column(self._create(name, layout), layout)
        if chunk.spans.header and column.header and chunk.spans.header != column.header:
            # One-block decoding rests on one header for all chunks of a field.
            raise CodecError(f"{self.path}: field {name!r}: the codec's block header changed between chunks")
        column.header = column.header or chunk.spans.header
        start = len(column.chunks) * layout.chunk_samples
        if layout.contiguous:
            rows = np.frombuffer(chunk.data, layout.stored_dtype).reshape(-1, *layout.field.shape)
            hdf5.write_rows(column.dataset, start, rows)
        else:
            hdf5.append_chunk(column.dataset, start, stop, chunk.data)
        column.chunks.append((len(chunk.data), chunk.checksum))
        self._stored_nbytes += len(chunk.data)
        blocks = np.zeros(len(chunk.block_checksums), RAW_BLOCK if layout.is_raw else CODED_BLOCK)
        blocks["checksum"] = chunk.block_checksums
        if not layout.is_raw:
            blocks["offset"], blocks["nbytes"] = chunk.spans.offsets, chunk.spans.nbytes
        column.blocks.append(blocks)

    def finish(self, end: ShardEnd) -> None:
        """Write small fields, index, tables and attributes, and close the file. It is not synced to disk here."""
        for name, last in end.fields.items():
            if last.rows is not None:
                tables.write_rows(self._file, name, last.rows, last.layout)
            else:
                self._finish_column(name, last)
        for name, last in end.fields.items():
            hdf5.write_attributes(self._file[name], _describe(name, last.layout))
        tables.write_index(self._file, end.index)
        hdf5.write_attributes(self._file, root_attributes(end.root("shard")))
        self.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._stack.close()

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the chunks written so far."""
        return self._stored_nbytes

    def _create(self, name: str, layout: FieldLayout) -> Any:
        if layout.contiguous:
            if self._num_samples is None:
                raise FormatError(f"{self.path}: field {name!r} in one piece needs the number of samples beforehand")
            shape = (self._num_samples, *layout.field.shape)
            return hdf5.create_contiguous(self._file, name, layout.stored_dtype, shape)
        return hdf5.create_chunked(
            self._file,
            name,
            layout.stored_dtype,
            layout.chunk_shape,
            layout.codec.filter_id,
            () if layout.is_raw else layout.codec.filter_options(layout.geometry),
        )

    def _finish_column(self, name: str, last: FieldEnd) -> None:
        column = self._columns.get(name) or _Column(self._create(name, last.layout), last.layout)
        blocks = np.concatenate([np.zeros(0, RAW_BLOCK if last.layout.is_raw else CODED_BLOCK), *column.blocks])
        chunks = np.array([] if last.layout.is_raw else column.chunks, CHUNK)
        written = FieldTables(blocks, chunks, column.header, last.table, last.quantiser)
        tables.write_tables(self._file, name, written)


def _describe(name: str, layout: FieldLayout) -> dict[str, Any]:
    """Notes for people who open the file with other tools."""
    notes: dict[str, Any] = {}
    if layout.field.layout is not None:
        notes["layout"] = layout.field.layout
    if layout.field.dtype != layout.stored_dtype.name:
        notes["logical_dtype"] = layout.field.dtype
    if layout.codes:
        notes["value_table"] = f"/{tables.GROUP}/{name}/values"
    return notes
