"""Open a dataset of any kind: a file, a folder of shards, or an HDF5 file that somebody else wrote."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from h5cache.codecs import Raw
from h5cache.errors import FormatError, SchemaError
from h5cache.format import hdf5, tables
from h5cache.format.layout import FieldLayout
from h5cache.format.locate import read_shard
from h5cache.format.manifest import read_manifest
from h5cache.format.storage import DatasetInfo, ShardFile, foreign_storage
from h5cache.schema import Field
from h5cache.store.local import LocalFile

__all__ = ["open_dataset", "read_dataset_index"]


def open_dataset(path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> DatasetInfo:
    """Read what is where in a dataset, and close it again.

    `fields` chooses datasets of a foreign HDF5 file by path; by default all at its root that have equally many rows.
    """
    name = os.path.abspath(os.fspath(path))
    if os.path.isdir(name):
        return read_manifest(name)
    return read_shard(name) or read_foreign(name, fields)


def read_dataset_index(info: DatasetInfo) -> tables.IndexRows:
    """Read the index table with keys as text; samples of a foreign file have none."""
    if info.index_file is None:
        return np.zeros(info.num_samples, [("key", "U1")])
    info.index_file.check_same()
    with hdf5.open_file(info.index_file.path) as file:
        rows = tables.read_index(file)
    info.index_file.check_same()  # it is read by its name, which may be given to another file at any time
    if len(rows) != info.num_samples:
        raise FormatError(f"{info.index_file.path}: /index has {len(rows)} rows for {info.num_samples} samples")
    keys = np.char.decode(rows["key"], "utf-8")
    names = rows.dtype.names or ()
    text = np.dtype([(name, keys.dtype if name == "key" else rows.dtype[name]) for name in names])
    decoded = np.empty(len(rows), text)
    for name in names:
        decoded[name] = keys if name == "key" else rows[name]
    return decoded


def read_foreign(path: str, wanted: Sequence[str] | None) -> DatasetInfo:
    """Describe an HDF5 file without our tables: libhdf5 will read it, slower but right."""
    if isinstance(wanted, str):
        raise SchemaError(f"fields must be a list of names, got {wanted!r}")
    identity = LocalFile.at(path).identity
    with hdf5.open_file(path) as file:
        names = list(wanted) if wanted is not None else hdf5.root_datasets(file)
        found = {name: hdf5.find_dataset(file, name) for name in names}
        if wanted is None:
            found = {name: dataset for name, dataset in found.items() if dataset.ndim and _field_of(dataset)}
        lengths = {name: dataset.shape[0] if dataset.ndim else 0 for name, dataset in found.items()}
        if not found or len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} ({length} rows)" for name, length in lengths.items()) or "none"
            raise FormatError(f"{path}: cannot tell which datasets are fields, found {listed}; pass fields=(...)")
        storage = {}
        for name, dataset in found.items():
            field = _field_of(dataset)
            if field is None:
                raise FormatError(f"{path}: /{name} is of dtype {dataset.dtype}, which cannot be a tensor")
            label = name.strip("/").replace("/", "_")
            layout = FieldLayout(field, Raw(), block_samples=1, chunk_samples=1, contiguous=True)
            storage[label] = foreign_storage(name, layout, hdf5.stored_nbytes(dataset))
    num_samples = next(iter(lengths.values()))
    return DatasetInfo(
        path=path,
        shards=(ShardFile(path, identity, num_samples),),
        starts=np.array([0, num_samples]),
        storage=storage,
        resident={},
        classes=(),
        provenance={},
        index_file=None,
    )


def _field_of(dataset: Any) -> Field | None:
    try:
        return Field(dataset.dtype, dataset.shape[1:], codec=Raw(), exact="never")
    except SchemaError:
        return None
