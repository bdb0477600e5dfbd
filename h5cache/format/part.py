"""Write one part of a dataset, from batches of rows to a finished HDF5 file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import QuantiseConflictError
from h5cache.format.collect import collector_for
from h5cache.format.shard import FieldPlan, ShardEnd, ShardWriter
from h5cache.schema import Schema

__all__ = ["PartConflict", "PartWriter"]

Rows = Mapping[str, npt.NDArray[Any]]


class PartConflict(Exception):
    """A field stored as exact codes met a value that has none. `num_taken` rows of the batch were appended."""

    def __init__(self, field: str, num_taken: int, cause: QuantiseConflictError) -> None:
        super().__init__(f"field {field!r}: {cause}")
        self.field = field
        self.num_taken = num_taken


class PartWriter:
    """Turn rows into one HDF5 file, with a chunk or two of memory per field. Not thread-safe.

    Rows must have been checked against the schema. `plans` are decisions of an earlier part of the same dataset.
    """

    def __init__(self, path: str, schema: Schema, plans: Mapping[str, FieldPlan] | None = None) -> None:
        self.path = path
        self.num_samples = 0
        self._collectors = {name: collector_for(field, (plans or {}).get(name)) for name, field in schema.items()}
        self._index: list[npt.NDArray[Any]] = []
        self._shard = ShardWriter(path)

    @property
    def plans(self) -> dict[str, FieldPlan]:
        """What has been decided so far; all fields once the part is finished."""
        return {name: collector.plan for name, collector in self._collectors.items() if collector.plan}

    def append(self, rows: Rows, index: npt.NDArray[Any]) -> None:
        """Append a batch: for each field its rows in stored dtype, and the samples' rows of the index table.

        Chunks are stored in the canonical order whatever the batches: by their last sample, then by field. That
        is why rows are added in steps that end where the next chunk of any field ends.
        """
        taken, count = 0, len(index)
        while taken < count:
            room = min((c.room for c in self._collectors.values() if c.room is not None), default=count)
            stop = min(count, taken + room)
            prepared = {}
            for name, collector in self._collectors.items():
                try:
                    prepared[name] = collector.prepare(rows[name][taken:stop])
                except QuantiseConflictError as exc:
                    raise PartConflict(name, taken, exc) from exc
            for name, collector in self._collectors.items():
                ready = collector.add(prepared[name])
                if ready is not None:
                    self._shard.append_chunk(name, ready.layout, ready.chunk, ready.stop)
            self._index.append(index[taken:stop].copy())
            self.num_samples += stop - taken
            taken = stop

    def finish(self, classes: tuple[str, ...], provenance: Mapping[str, Any]) -> None:
        """Store what is left, close the file and sync it to disk."""
        fields = {}
        for name, collector in self._collectors.items():
            ready, fields[name] = collector.finish()
            if ready is not None:
                self._shard.append_chunk(name, ready.layout, ready.chunk, ready.stop)
        self._shard.finish(ShardEnd(fields, concat_index(self._index), classes, provenance))

    def abort(self) -> None:
        """Close and remove the unfinished file; idempotent."""
        self._shard.close()
        if os.path.exists(self.path):
            os.unlink(self.path)


def make_index(keys: Sequence[str] | None, count: int) -> npt.NDArray[Any]:
    """Return rows of an index table that holds nothing but keys (empty where none are given)."""
    encoded = np.array([key.encode() for key in keys] if keys is not None else [b""] * count, dtype=np.bytes_)
    width = max(1, encoded.dtype.itemsize)
    rows = np.zeros(count, np.dtype([("key", f"S{width}")]))
    rows["key"] = encoded
    return rows


def concat_index(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join index tables; the key column becomes as wide as the longest key."""
    if not parts:
        return make_index(None, 0)
    names = parts[0].dtype.names or ()
    width = max(max(1, _longest(part["key"])) for part in parts)
    kinds = [(name, f"S{width}" if name == "key" else parts[0].dtype[name]) for name in names]
    joined = np.zeros(sum(len(part) for part in parts), np.dtype(kinds))
    for name in names:
        joined[name] = np.concatenate([part[name] for part in parts])
    return joined


def _longest(keys: npt.NDArray[Any]) -> int:
    return int(np.char.str_len(keys).max(initial=0))
