"""One HDF5 file of a dataset: written chunk by chunk in a canonical order, read as tables of where things lie."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import ChecksumError, CodecError, FormatError
from h5cache.format import hdf5, tables
from h5cache.format.encode import EncodedChunk, checksum
from h5cache.format.layout import FieldLayout
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage, ShardFile, starts_of
from h5cache.format.tables import CHUNK, CODED_BLOCK, RAW_BLOCK, FieldTables
from h5cache.quantise import Quantiser, ValueTable
from h5cache.schema import check_field_name
from h5cache.store.local import LocalFile

__all__ = [
    "FORMAT_NAME",
    "FORMAT_VERSION",
    "FieldEnd",
    "FieldPlan",
    "ShardEnd",
    "ShardWriter",
    "read_plans",
    "read_shard",
]

FORMAT_NAME = "h5cache"
FORMAT_VERSION = 1


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
        hdf5.write_attributes(self._file, root_attributes("shard", end))
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


def root_attributes(kind: str, end: ShardEnd) -> dict[str, Any]:
    schema = [{"name": name, **last.layout.to_config()} for name, last in end.fields.items()]
    attributes: dict[str, Any] = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "schema": json.dumps({"fields": schema}, sort_keys=True),
        "provenance": json.dumps(end.provenance, sort_keys=True),
    }
    if end.classes:
        attributes["classes"] = end.classes
    return attributes | {"checksum": _root_checksum(attributes)}


def _root_checksum(attributes: Mapping[str, Any]) -> np.uint64:
    """libhdf5 checksums what lies in object headers; long attributes (a thousand classes) lie elsewhere."""
    texts = [attributes["schema"], attributes["provenance"], *attributes.get("classes", ())]
    return np.uint64(checksum("\n".join(texts).encode()))


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


# Reading


@dataclass(frozen=True)
class _Root:
    """The checked root attributes of a file of ours."""

    kind: str
    layouts: dict[str, FieldLayout]
    classes: tuple[str, ...]
    provenance: dict[str, Any]


def read_root(file: Any) -> _Root | None:
    """Return the root attributes; None where the file is not h5cache's; FormatError where it is and cannot be read."""
    attributes = hdf5.read_attributes(file)
    if attributes.get("format") != FORMAT_NAME:
        return None
    version = attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{file.filename}: is of format version {version}, this h5cache reads {FORMAT_VERSION}; "
            "install a newer h5cache"
        )
    try:
        if int(_root_checksum(attributes)) != attributes["checksum"]:
            raise ChecksumError(
                f"{file.filename}: schema, provenance or classes are damaged or were changed: their checksum differs. "
                + tables.REMEDY
            )
        fields = json.loads(attributes["schema"])["fields"]
        layouts = {entry["name"]: FieldLayout.from_config(entry) for entry in fields}
        for name in layouts:
            check_field_name(name)
        provenance = dict(json.loads(attributes["provenance"]))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise FormatError(f"{file.filename}: the schema of the dataset cannot be read ({exc})") from exc
    if not layouts:
        raise FormatError(f"{file.filename}: the dataset has no fields")
    return _Root(str(attributes.get("kind")), layouts, attributes.get("classes", ()), provenance)


def read_plans(path: str) -> dict[str, FieldPlan]:
    """Return the decisions that a finished part holds, for the parts after it."""
    with hdf5.open_file(path) as file:
        root = read_root(file)
        if root is None:
            raise FormatError(f"{path}: is not h5cache's")
        found = {name: (layout, tables.read_tables(file, name, layout)) for name, layout in root.layouts.items()}
        return {name: FieldPlan(layout, own.quantiser, own.table) for name, (layout, own) in found.items()}


def read_shard(path: str) -> DatasetInfo | None:
    """Read where everything in a shard lies, and close it again. None: an HDF5 file that is not h5cache's."""
    path = os.path.abspath(path)
    identity = LocalFile.at(path).identity
    with hdf5.open_file(path) as file:
        root = read_root(file)
        if root is None:
            return None
        if root.kind != "shard":
            raise FormatError(
                f"{path}: is the {root.kind} of a folder; open the folder {os.path.dirname(path)} instead"
            )
        num_samples = read_num_samples(file)
        storage, resident = {}, {}
        for name, layout in root.layouts.items():
            storage[name] = read_storage(file, name, layout, num_samples, identity.nbytes)
            if layout.resident:
                resident[name] = read_resident(file, name, storage[name])
    shard = ShardFile(path, identity, num_samples)
    return DatasetInfo(
        path=path,
        shards=(shard,),
        starts=np.array([0, num_samples]),
        storage=storage,
        resident=resident,
        classes=root.classes,
        provenance=root.provenance,
        index_file=shard,
    )


def read_num_samples(file: Any) -> int:
    index = hdf5.find_dataset(file, tables.INDEX)
    if index.ndim != 1:
        raise FormatError(f"{file.filename}: /{tables.INDEX} is not a table")
    return int(index.shape[0])


def read_resident(file: Any, name: str, storage: FieldStorage) -> npt.NDArray[Any]:
    """Read a small field whole and check it; ChecksumError names the samples whose values differ."""
    rows = read_resident_unchecked(file, name, storage)
    tables.check_rows(file, name, rows, storage.layout.block_samples, storage.block_checksums)
    return rows


def read_resident_unchecked(file: Any, name: str, storage: FieldStorage) -> npt.NDArray[Any]:
    rows = hdf5.read_array(hdf5.find_dataset(file, name))
    if rows.dtype != storage.layout.stored_dtype or rows.shape[1:] != storage.layout.field.shape or not rows.ndim:
        raise FormatError(f"{file.filename}: /{name} is {rows.dtype} {rows.shape}, its schema says otherwise")
    return rows


def read_storage(file: Any, name: str, layout: FieldLayout, num_samples: int, file_nbytes: int) -> FieldStorage:
    dataset = hdf5.find_dataset(file, name)
    expected = (num_samples, *layout.field.shape)
    if dataset.shape != expected or dataset.dtype != layout.stored_dtype:
        raise FormatError(
            f"{file.filename}: /{name} is {dataset.dtype} {dataset.shape}, its schema says "
            f"{layout.stored_dtype} {expected}; the file was changed, convert it again"
        )
    found = tables.read_tables(file, name, layout)
    # Before anything is sized by the number of samples, which a hostile file may set to 2**60.
    if len(found.blocks) != layout.num_blocks(num_samples):
        raise FormatError(f"{file.filename}: field {name!r} has a block table of the wrong length")
    if num_samples and not hdf5.stored_nbytes(dataset):
        raise FormatError(f"{file.filename}: /{name} claims {num_samples} samples, none is stored")
    offsets, nbytes = _locate(file, dataset, layout, found.chunks, num_samples)
    storage = storage_from_tables(name, layout, found, offsets, nbytes, [len(offsets)], [len(found.blocks)])
    check_storage(file.filename, storage, num_samples, file_nbytes)
    return storage


def storage_from_tables(
    name: str,
    layout: FieldLayout,
    found: FieldTables,
    offsets: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    chunks_per_shard: Sequence[int],
    blocks_per_shard: Sequence[int],
) -> FieldStorage:
    """Put a field's tables as they lie on disk into the columns that readers use."""
    return FieldStorage(
        layout=layout,
        chunk_starts=starts_of(chunks_per_shard),
        block_starts=starts_of(blocks_per_shard),
        chunk_offsets=np.ascontiguousarray(offsets),
        chunk_nbytes=np.ascontiguousarray(nbytes),
        chunk_checksums=np.ascontiguousarray(found.chunks["checksum"]),
        block_offsets=_column(found.blocks, "offset"),
        block_nbytes=_column(found.blocks, "nbytes"),
        block_checksums=np.ascontiguousarray(found.blocks["checksum"]),
        block_header=found.header,
        table=found.table,
        name=name,
    )


def _column(rows: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows[name]) if name in (rows.dtype.names or ()) else np.zeros(0, np.uint32)


def _locate(
    file: Any, dataset: Any, layout: FieldLayout, chunks: npt.NDArray[Any], num_samples: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return byte offset and size per chunk. What is no longer as we wrote it goes THROUGH_HDF5.

    h5repack moves chunks (so offsets come from libhdf5) and may re-filter them or choose another chunk shape; an
    `r+` write re-encodes single chunks as n-D frames, whose pixels lie in another order.
    """
    filters = () if layout.is_raw else (layout.codec.filter_id,)
    displaced = hdf5.userblock_nbytes(file) != 0 or hdf5.filter_ids(dataset) != filters
    if layout.contiguous:
        offset = hdf5.byte_offset(dataset)
        nbytes = np.array([num_samples * layout.sample_nbytes])
        place = THROUGH_HDF5 if displaced or offset is None else offset
        return np.array([place]), nbytes
    if dataset.chunks != layout.chunk_shape:
        displaced = True
    count = layout.num_chunks(num_samples)
    expected = np.full(count, layout.chunk_nbytes) if layout.is_raw else chunks["nbytes"].astype(np.int64)
    if displaced or len(expected) != count:
        return np.full(count, THROUGH_HDF5), expected if len(expected) == count else np.zeros(count, np.int64)
    found = hdf5.chunk_table(dataset)
    ours = (found.nbytes == expected) & (found.filter_masks == 0)
    return np.where(ours, found.offsets, THROUGH_HDF5), expected


def check_storage(path: str, storage: FieldStorage, num_samples: int, file_nbytes: int) -> None:
    """Raise FormatError where tables point outside the file or the chunk: readers trust them afterwards."""
    layout = storage.layout
    if len(storage.block_checksums) != layout.num_blocks(num_samples):
        raise FormatError(f"{path}: field {storage.name!r} has a block table of the wrong length")
    if not layout.is_raw and len(storage.chunk_checksums) != layout.num_chunks(num_samples):
        raise FormatError(f"{path}: field {storage.name!r} has a chunk table of the wrong length")
    ours = storage.chunk_offsets != THROUGH_HDF5
    if np.any(storage.chunk_offsets[ours] < 0) or np.any(
        storage.chunk_offsets[ours] + storage.chunk_nbytes[ours] > file_nbytes
    ):
        raise FormatError(f"{path}: field {storage.name!r} points beyond the end of the file; it is truncated")
    if layout.is_raw:
        return
    ends = storage.block_offsets.astype(np.int64) + storage.block_nbytes
    limits = np.repeat(storage.chunk_nbytes, layout.blocks_per_chunk)
    # A block that does not compress is stored a few bytes longer than it is, so only the chunk bounds it.
    if len(limits) != len(ends) or np.any(ends > limits):
        raise FormatError(f"{path}: field {storage.name!r} has a block table that does not fit its chunks")
