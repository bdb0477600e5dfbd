"""Where the stored bytes of a dataset lie: immutable tables in columns, as one value that pickles small.

Made when a dataset is opened, from the file or from the manifest of a folder; nothing here reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import FormatError
from h5cache.format.layout import FieldLayout
from h5cache.schema import Schema
from h5cache.store.local import LocalFile
from h5cache.value_table import ValueTable

__all__ = ["DatasetInfo", "FieldStorage", "ShardFile", "concat_storage", "split_storage"]

#: In `FieldStorage.chunk_offsets`: these bytes are not ours to read, libhdf5 must.
THROUGH_HDF5 = -1


@dataclass(frozen=True)
class ShardFile(LocalFile):
    """One HDF5 file of a dataset, as it was when its tables were read."""

    num_samples: int


@dataclass(frozen=True, eq=False)
class FieldStorage:
    """The tables of one field over all shards. `starts` columns have one entry per shard and one more.

    A contiguous field has one "chunk" per shard: its whole extent. Raw fields have no spans (a row is found by
    multiplication) and no chunk checksums (blocks cover every byte).
    """

    layout: FieldLayout
    chunk_starts: npt.NDArray[np.int64]
    block_starts: npt.NDArray[np.int64]
    chunk_offsets: npt.NDArray[np.int64]
    chunk_nbytes: npt.NDArray[np.int64]
    chunk_checksums: npt.NDArray[np.uint64]
    block_offsets: npt.NDArray[np.uint32]
    block_nbytes: npt.NDArray[np.uint32]
    #: Empty where a foreign file has none.
    block_checksums: npt.NDArray[np.uint64]
    block_header: bytes = b""
    table: ValueTable | None = None
    #: The dataset's path in its file.
    name: str = ""

    @cached_property
    def needs_hdf5(self) -> bool:
        """True where libhdf5 must read some of the chunks."""
        return bool((self.chunk_offsets == THROUGH_HDF5).any())

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the field in its files."""
        return int(self.chunk_nbytes.sum())


@dataclass(frozen=True, eq=False)
class DatasetInfo:
    """All that readers need of a dataset: paths and arrays, no handles."""

    path: str
    shards: tuple[ShardFile, ...]
    #: First sample of each shard, and the number of samples.
    starts: npt.NDArray[np.int64]
    storage: Mapping[str, FieldStorage]
    #: Small fields, whole, in stored dtype.
    resident: Mapping[str, npt.NDArray[Any]]
    classes: tuple[str, ...]
    provenance: Mapping[str, Any]
    #: The file that holds /index (the dataset itself or its manifest); empty for foreign files.
    index_file: LocalFile | None

    @property
    def num_samples(self) -> int:
        return int(self.starts[-1])

    @property
    def schema(self) -> Schema:
        return Schema(tuple((name, storage.layout.field) for name, storage in self.storage.items()))

    @property
    def is_foreign(self) -> bool:
        return self.index_file is None


_PER_CHUNK = ("chunk_offsets", "chunk_nbytes", "chunk_checksums")
_PER_BLOCK = ("block_offsets", "block_nbytes", "block_checksums")


def split_storage(storage: FieldStorage) -> list[FieldStorage]:
    """Return one storage per shard."""
    parts = []
    for shard in range(len(storage.chunk_starts) - 1):
        chunks = slice(*storage.chunk_starts[shard : shard + 2].tolist())
        blocks = slice(*storage.block_starts[shard : shard + 2].tolist())
        columns: dict[str, Any] = {name: getattr(storage, name)[chunks] for name in _PER_CHUNK}
        columns |= {name: getattr(storage, name)[blocks] for name in _PER_BLOCK}
        columns |= {
            "chunk_starts": np.array([0, chunks.stop - chunks.start]),
            "block_starts": np.array([0, blocks.stop - blocks.start]),
        }
        parts.append(replace(storage, **columns))
    return parts


def concat_storage(parts: Sequence[FieldStorage]) -> FieldStorage:
    """Return the tables of several shards as those of one dataset; FormatError where shards are of another kind."""
    first = parts[0]
    header, table = first.block_header, first.table
    for part in parts[1:]:
        if part.layout != first.layout or part.name != first.name:
            raise FormatError(f"field {first.name!r} is stored differently in two shards; convert the dataset again")
        if header and part.block_header and part.block_header != header:
            raise FormatError(f"field {first.name!r}: shards were written by incompatible versions of Blosc")
        header = header or part.block_header
        table = table.union(part.table) if table is not None and part.table is not None else table
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _PER_CHUNK + _PER_BLOCK
    }
    return replace(
        first,
        chunk_starts=starts_of([int(part.chunk_starts[-1]) for part in parts]),
        block_starts=starts_of([int(part.block_starts[-1]) for part in parts]),
        block_header=header,
        table=table,
        **columns,
    )


def starts_of(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return where each of several runs begins, and the end of the last."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def foreign_storage(name: str, layout: FieldLayout, stored_nbytes: int) -> FieldStorage:
    """Return the storage of a field that is read through libhdf5 alone: it has no tables."""
    none64, none32 = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    return FieldStorage(
        layout=layout,
        chunk_starts=np.array([0, 1]),
        block_starts=np.array([0, 0]),
        chunk_offsets=np.array([THROUGH_HDF5]),
        chunk_nbytes=np.array([stored_nbytes]),
        chunk_checksums=none64,
        block_offsets=none32,
        block_nbytes=none32,
        block_checksums=none64,
        name=name,
    )
