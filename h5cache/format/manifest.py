"""The manifest of a folder of shards: one small HDF5 file that says where everything in all shards lies.

Opening a dataset of 500 shards opens this one file. It is written last: a folder without it is not a dataset.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from h5cache.errors import FormatError, MissingDatasetError, UnsafeFileError
from h5cache.format import hdf5, tables
from h5cache.format.join import read_part, read_part_index
from h5cache.format.layout import FieldLayout
from h5cache.format.locate import check_storage, read_resident, storage_from_tables
from h5cache.format.part import concat_index
from h5cache.format.root import Root, read_root, root_attributes
from h5cache.format.storage import (
    THROUGH_HDF5,
    DatasetInfo,
    FieldStorage,
    ShardFile,
    concat_storage,
    split_storage,
    starts_of,
)
from h5cache.format.tables import PLACED_CHUNK, FieldTables
from h5cache.store.local import FileIdentity, LocalFile

__all__ = ["MANIFEST_NAME", "read_manifest", "read_shard_names", "refresh_shard", "write_manifest"]

MANIFEST_NAME = "manifest.h5"


def write_manifest(folder: str, names: Sequence[str], out: str, provenance: Mapping[str, Any] | None = None) -> None:
    """Write the manifest of the shards `names` in `folder` to `out`; the caller publishes it.

    `provenance` is the dataset's; by default that of the first shard.
    """
    paths = [os.path.join(folder, name) for name in names]
    infos = [read_part(path) for path in paths]
    joined = {name: concat_storage([info.storage[name] for info in infos]) for name in infos[0].storage}
    with hdf5.create_file(out) as file:
        tables.write_shards(file, _shard_rows(names, infos))
        for name, storage in joined.items():
            if storage.layout.resident:
                rows = np.concatenate([info.resident[name] for info in infos])
                tables.write_rows(file, name, rows, storage.layout)
            else:
                tables.write_tables(file, name, _placed_tables(storage))
        tables.write_index(file, concat_index([read_part_index(path) for path in paths]))
        layouts = {name: storage.layout for name, storage in joined.items()}
        known = infos[0].provenance if provenance is None else provenance
        root = Root("manifest", layouts, infos[0].classes, known)
        hdf5.write_attributes(file, root_attributes(root))


def read_shard_names(folder: str) -> list[str]:
    """Return the names of the shards that a folder's manifest counts; none where there is no manifest."""
    path = os.path.join(folder, MANIFEST_NAME)
    if not os.path.exists(path):
        return []
    with hdf5.open_file(path) as file:
        return [bytes(row["name"]).decode() for row in tables.read_shards(file)]


def _shard_rows(names: Sequence[str], infos: Sequence[DatasetInfo]) -> tables.IndexRows:
    width = max(len(name.encode()) for name in names)
    rows = np.zeros(len(names), [("name", f"S{width}"), ("num_samples", "<i8"), ("nbytes", "<i8")])
    rows["name"] = [name.encode() for name in names]
    rows["num_samples"] = [info.num_samples for info in infos]
    rows["nbytes"] = [info.shards[0].identity.nbytes for info in infos]
    return rows


def _placed_tables(storage: FieldStorage) -> FieldTables:
    chunks = np.zeros(len(storage.chunk_offsets), PLACED_CHUNK)
    chunks["offset"], chunks["nbytes"] = storage.chunk_offsets, storage.chunk_nbytes
    blocks = np.zeros(len(storage.block_checksums), tables.RAW_BLOCK if storage.layout.is_raw else tables.CODED_BLOCK)
    blocks["checksum"] = storage.block_checksums
    if not storage.layout.is_raw:
        chunks["checksum"] = storage.chunk_checksums
        blocks["offset"], blocks["nbytes"] = storage.block_offsets, storage.block_nbytes
    return FieldTables(blocks, chunks, storage.block_header, storage.table)


def read_manifest(folder: str) -> DatasetInfo:
    """Read a folder of shards without opening any shard that is as it was written."""
    folder = os.path.abspath(folder)
    path = os.path.join(folder, MANIFEST_NAME)
    if not os.path.exists(path):
        raise MissingDatasetError(
            errno.ENOENT,
            f"the folder has no {MANIFEST_NAME}: it is no dataset, or its conversion is unfinished",
            folder,
        )
    manifest = LocalFile.at(path)
    with hdf5.open_file(path) as file:
        root = read_root(file)
        if root is None or root.kind != "manifest":
            raise FormatError(f"{path}: is not the manifest of an h5cache dataset")
        rows = tables.read_shards(file)
        shards = tuple(_find_shard(folder, row) for row in rows)
        counts = [shard.num_samples for shard in shards]
        storage = {}
        resident = {}
        for name, layout in root.layouts.items():
            storage[name] = read_placed(file, name, layout, counts)
            if layout.resident:
                resident[name] = read_resident(file, name, storage[name])
    info = DatasetInfo(
        path=folder,
        shards=shards,
        starts=starts_of(counts),
        storage=storage,
        resident=resident,
        classes=root.classes,
        provenance=root.provenance,
        index_file=manifest,
    )
    changed = [number for number, row in enumerate(rows) if shards[number].identity.nbytes != int(row["nbytes"])]
    for number in changed:
        info = refresh_shard(info, number)
    for part in info.storage.values():
        _check_placed(info, part)
    return info


def _find_shard(folder: str, row: Any) -> ShardFile:
    name = bytes(row["name"]).decode()
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise UnsafeFileError(f"{folder}: the manifest names a shard outside the folder: {name!r}; refused")
    if row["num_samples"] < 0:
        raise FormatError(f"{folder}: the manifest counts {row['num_samples']} samples in {name!r}")
    path = os.path.join(folder, name)
    try:
        return ShardFile(path, FileIdentity.of(os.stat(path)), int(row["num_samples"]))
    except FileNotFoundError as exc:
        raise MissingDatasetError(
            errno.ENOENT, "a shard of the dataset is missing; restore it or convert again", path
        ) from exc


def read_placed(file: Any, name: str, layout: FieldLayout, counts: Sequence[int]) -> FieldStorage:
    found = tables.read_tables(file, name, layout)
    total = sum(counts)
    if layout.resident:
        # The manifest itself holds the rows of all shards, in one piece.
        chunks = np.array([(THROUGH_HDF5, total * layout.sample_nbytes, 0)], PLACED_CHUNK)
        per_shard, blocks = [1], [layout.num_blocks(total)]
    else:
        chunks = found.chunks if len(found.chunks) else np.zeros(0, PLACED_CHUNK)
        per_shard = [1 if layout.contiguous else layout.num_chunks(count) for count in counts]
        blocks = [layout.num_blocks(count) for count in counts]
    if len(chunks) != sum(per_shard) or len(found.blocks) != sum(blocks):
        raise FormatError(f"{file.filename}: the tables of field {name!r} do not fit the shards")
    return storage_from_tables(name, layout, found, chunks["offset"], chunks["nbytes"], per_shard, blocks)


def _check_placed(info: DatasetInfo, storage: FieldStorage) -> None:
    if storage.layout.resident:
        return
    for shard, part in zip(info.shards, split_storage(storage), strict=True):
        check_storage(shard.path, part, shard.num_samples, shard.identity.nbytes)


def refresh_shard(info: DatasetInfo, number: int) -> DatasetInfo:
    """Return `info` with one shard's tables read from the shard itself: it was repacked or written to."""
    old = info.shards[number]
    fresh = read_part(old.path)
    strange = fresh.num_samples != old.num_samples or fresh.schema != info.schema
    storage = {}
    for name, whole in info.storage.items() if not strange else ():
        if whole.layout.resident:
            rows = info.resident[name][info.starts[number] : info.starts[number + 1]]
            strange = strange or not np.array_equal(rows, fresh.resident[name])
            storage[name] = whole
            continue
        parts = split_storage(whole)
        # Repacking moves chunks but keeps the tables, so these tell another shard of the same shape.
        strange = strange or not np.array_equal(parts[number].block_checksums, fresh.storage[name].block_checksums)
        parts[number] = fresh.storage[name]
        storage[name] = concat_storage(parts)
    if strange:
        raise FormatError(f"{old.path}: is not the shard the manifest was written for; convert the dataset again")
    shards = tuple(fresh.shards[0] if place == number else shard for place, shard in enumerate(info.shards))
    return replace(info, shards=shards, storage=storage)
