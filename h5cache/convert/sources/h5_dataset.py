"""Another h5cache dataset, or any HDF5 file: to encode it anew, in other chunks, or some of its samples."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import BlockDecoder
from h5cache.errors import ChecksumError, CodecError, DatasetChangedError, H5CacheError, MissingDatasetError
from h5cache.format import hdf5
from h5cache.format.encode import checksum
from h5cache.format.open import open_dataset, read_dataset_index
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage
from h5cache.schema import Schema
from h5cache.store.local import LocalStore
from h5cache.value_table import expand

from .columns import labels_of
from .source import (
    BadSampleError,
    MissingSourceError,
    Numbers,
    Selection,
    Source,
    SourceError,
    SourceFiles,
    check_samples,
    digest,
    number_keys,
    take_files,
)

__all__ = ["H5Dataset"]


class H5Dataset(Source):
    """All fields of a dataset, or those named; keys, sizes and times of the original files, and classes, are kept.

    bfloat16 fields load as their bits, uint16, as `schema` says. Every block read is checked against its checksum.
    """

    kind = "h5cache"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        try:
            info = open_dataset(path, fields)
        except MissingDatasetError as exc:
            raise MissingSourceError(errno.ENOENT, exc.strerror or str(exc), exc.filename or os.fspath(path)) from exc
        except H5CacheError as exc:
            raise SourceError(str(exc)) from exc
        names = list(info.storage) if fields is None or info.is_foreign else list(fields)
        unknown = [name for name in names if name not in info.storage]
        if unknown:
            raise SourceError(f"{info.path}: no field {', '.join(unknown)}; there are {', '.join(info.storage)}")
        if not info.num_samples:
            raise SourceError(f"{info.path}: the dataset has no samples")
        self._names = names
        self._reader = RowReader(replace(info, storage={name: info.storage[name] for name in names}))
        self._files = _read_files(info)

    def __len__(self) -> int:
        return self._info.num_samples

    @property
    def _info(self) -> DatasetInfo:
        return self._reader.info

    @property
    def files(self) -> SourceFiles:
        return self._files

    @property
    def classes(self) -> tuple[str, ...]:
        return self._info.classes

    @property
    def labels(self) -> Numbers | None:
        return labels_of({name: rows for name, rows in self._info.resident.items() if name in self._info.storage})

    @property
    def schema(self) -> Schema:
        """The fields, with codec and chunks left to be chosen anew."""
        fields = self._info.schema.items()
        return Schema(tuple((name, replace(f, codec="auto", chunk_samples=None, exact="auto")) for name, f in fields))

    def load(self, sample: int) -> Mapping[str, Any]:
        return {name: self._reader.read(name, sample) for name in self._names}

    def take(self, samples: Numbers) -> Source:
        return H5Selection(self, samples)

    def fingerprint(self) -> Mapping[str, Any]:
        contents = {
            name: digest(storage.chunk_checksums, storage.block_checksums, self._info.resident.get(name))
            for name, storage in self._info.storage.items()
        }
        state = None
        if self._info.is_foreign:  # without checksums, size and time must do
            state = [[shard.identity.nbytes, shard.identity.mtime_ns] for shard in self._info.shards]
        return {
            "kind": self.kind,
            "fields": contents,
            "schema": {name: field.to_config() for name, field in self.schema.items()},
            "classes": list(self.classes),
            "keys": digest(self._files.keys),
            "files": state,
        }


class H5Selection(Selection):
    """Some samples of a dataset. Pickles without its tables, which grow with all samples: workers read them."""

    def __init__(self, source: H5Dataset, samples: Numbers) -> None:
        super().__init__(source, samples)
        self._path, self._names = source._info.path, source._names
        self._state = _state_of(source._info)
        self._files = take_files(source.files, self._samples)
        labels = source.labels
        self._labels = None if labels is None else labels[self._samples]
        self._classes, self._schema = source.classes, source.schema
        self._opened: H5Dataset | None = source

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None, "_source": None}

    @property
    def files(self) -> SourceFiles:
        return self._files

    @property
    def labels(self) -> Numbers | None:
        return self._labels

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def schema(self) -> Schema:
        return self._schema

    def load(self, sample: int) -> Mapping[str, Any]:
        try:
            return self._open().load(int(self._samples[sample]))
        except SourceError as exc:
            raise BadSampleError(str(exc)) from exc

    def fingerprint(self) -> Mapping[str, Any]:
        return {**self._open().fingerprint(), "samples": digest(self._samples)}

    def take(self, samples: Numbers) -> Source:
        return H5Selection(self._open(), self._samples[check_samples(samples, len(self))])

    def _open(self) -> H5Dataset:
        if self._opened is None:
            opened = _open_once(self._path, tuple(self._names), self._state)
            if _state_of(opened._info) != self._state:
                raise SourceError(f"{self._path}: the dataset has changed since the conversion began")
            self._opened = opened
        return self._opened


@lru_cache(maxsize=1)
def _open_once(path: str, names: tuple[str, ...], state: str) -> H5Dataset:
    """Open once per worker, not once per task; `state` tells a newer dataset at the same path."""
    return H5Dataset(path, names)


def _state_of(info: DatasetInfo) -> str:
    return digest(np.array([(s.identity.nbytes, s.identity.mtime_ns) for s in info.shards], np.int64))


class RowReader:
    """Read single samples of single fields: one pread, one checksum, one block. Pickles as paths and tables."""

    def __init__(self, info: DatasetInfo) -> None:
        self.info = info
        self._start()

    def __getstate__(self) -> DatasetInfo:
        return self.info

    def __setstate__(self, info: DatasetInfo) -> None:
        self.info = info
        self._start()

    def _start(self) -> None:
        self._store = LocalStore(self.info.shards)
        self._decoders: dict[str, BlockDecoder] = {}

    def read(self, name: str, sample: int) -> Any:
        """Return one sample of one field in its stored dtype. BadSampleError where its bytes are damaged."""
        resident = self.info.resident.get(name)
        if resident is not None:
            return np.array(resident[sample])
        storage = self.info.storage[name]
        shard = int(np.searchsorted(self.info.starts, sample, side="right")) - 1
        local = sample - int(self.info.starts[shard])
        try:
            return self._read_row(storage, shard, local)
        except (ChecksumError, CodecError, DatasetChangedError, OSError) as exc:
            raise BadSampleError(f"field {name!r}: {exc}") from exc

    def _read_row(self, storage: FieldStorage, shard: int, local: int) -> npt.NDArray[Any]:
        layout = storage.layout
        chunk = 0 if layout.contiguous else local // layout.chunk_samples
        offset = int(storage.chunk_offsets[int(storage.chunk_starts[shard]) + chunk])
        stored: npt.NDArray[Any]
        if offset == THROUGH_HDF5:
            rows = np.empty((1, *layout.field.shape), layout.stored_dtype)
            hdf5.read_rows(self._store.path(shard), storage.name, np.array([local]), rows)
            stored = rows
        else:
            block_in_shard = local // layout.block_samples
            block = self._read_block(storage, shard, offset, block_in_shard)
            stored = block[local % layout.block_samples][np.newaxis]
        if storage.table is None:
            return np.array(stored[0])
        out: npt.NDArray[Any] = np.empty((1, *layout.field.shape), layout.field.stored_dtype)
        expand(np.ascontiguousarray(stored), storage.table, out, layout.field.channel_axis)
        return out.reshape(layout.field.shape)

    def _read_block(self, storage: FieldStorage, shard: int, offset: int, block_in_shard: int) -> npt.NDArray[Any]:
        """Return the samples of one block, in stored form."""
        layout = storage.layout
        block = int(storage.block_starts[shard]) + block_in_shard
        if layout.is_raw:
            count = layout.block_samples
            place = block_in_shard % layout.blocks_per_chunk
            if layout.contiguous:  # ends with its rows, not with a full block
                place = block_in_shard
                rows = int(self.info.starts[shard + 1] - self.info.starts[shard])
                count = min(count, rows - block_in_shard * layout.block_samples)
            offset += place * layout.block_nbytes
            nbytes = count * layout.sample_nbytes
        else:
            count = layout.block_samples
            offset += int(storage.block_offsets[block])
            nbytes = int(storage.block_nbytes[block])
        out = np.zeros((count, *layout.field.shape), layout.stored_dtype)
        if not nbytes:
            return out
        data = self._store.read(shard, offset, nbytes)
        if checksum(data) != int(storage.block_checksums[block]):
            raise ChecksumError(
                f"{self._store.path(shard)}: damaged, or rewritten by another program: checksum differs"
            )
        if nbytes == out.nbytes:
            out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        else:
            self._decoder(storage).decode(data, out.reshape(-1).view(np.uint8))
        return out

    def _decoder(self, storage: FieldStorage) -> BlockDecoder:
        decoder = self._decoders.get(storage.name)
        if decoder is None:
            decoder = self._decoders[storage.name] = storage.layout.codec.block_decoder(storage.block_header)
        return decoder


def _read_files(info: DatasetInfo) -> SourceFiles:
    index = read_dataset_index(info)
    names = index.dtype.names or ()
    keys = np.char.encode(index["key"], "utf-8")
    if not np.char.str_len(keys).all() or len(np.unique(keys)) != len(keys):
        keys = number_keys(len(index))  # foreign files, and Writers that gave no keys or the same twice
    columns = [
        np.array(index[name], np.int64) if name in names else None for name in ("source_nbytes", "source_mtime_ns")
    ]
    return SourceFiles(keys, columns[0], columns[1])
