"""Read where everything in a shard lies: offsets and tables, checked, with the file closed again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import FormatError
from h5cache.format import hdf5, tables
from h5cache.format.layout import FieldLayout
from h5cache.format.root import read_root
from h5cache.format.shard import FieldPlan
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage, ShardFile, starts_of
from h5cache.format.tables import FieldTables
from h5cache.store.local import LocalFile

__all__ = ["check_storage", "read_plans", "read_resident", "read_shard", "read_storage", "storage_from_tables"]


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
