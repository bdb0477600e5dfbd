"""Write one part of a dataset, from batches of rows to a finished HDF5 file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import QuantiseConflictError
from h5cache.format.collect import RowStack, collector_for
from h5cache.format.shard import FieldPlan, ShardEnd, ShardWriter
from h5cache.schema import Schema

__all__ = ["PartConflict", "PartWriter"]

log = logging.getLogger(__name__)

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
    Plans of contiguous fields need `num_samples`, the exact number of samples to come.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        plans: Mapping[str, FieldPlan] | None = None,
        num_samples: int | None = None,
    ) -> None:
        self.path = path
        self.num_samples = 0
        self._collectors = {name: collector_for(field, (plans or {}).get(name)) for name, field in schema.items()}
        self._index = RowStack(concat_index)
        self._shard = ShardWriter(path, num_samples)

    @property
    def plans(self) -> dict[str, FieldPlan]:
        """What has been decided so far; all fields once the part is finished."""
        return {name: collector.plan for name, collector in self._collectors.items() if collector.plan}

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the chunks written so far."""
        return self._shard.stored_nbytes

    def append(self, rows: Rows, index: npt.NDArray[Any]) -> None:
        """Append a batch: for each field its rows in stored dtype, and the samples' rows of the index table.

        Chunks are stored in the canonical order whatever the batches: by their last sample, then by field. That
        is why rows are added in steps that end where the next chunk of any field ends.
        """
        self._append(rows, index, prepare=True)

    def append_zeros(self, index: npt.NDArray[Any]) -> None:
        """Append samples of zero bytes, one per row of `index`: places that are to be filled or dropped later.

        They enter no value table, so that exact codes do not depend on them. Every field must have a plan.
        """
        layouts = {name: plan.layout for name, plan in self.plans.items()}
        rows = {name: np.zeros((len(index), *lay.field.shape), lay.stored_dtype) for name, lay in layouts.items()}
        self._append(rows, index, prepare=False)

    def _append(self, rows: Rows, index: npt.NDArray[Any], prepare: bool) -> None:
        taken, count = 0, len(index)
        while taken < count:
            room = min((c.room for c in self._collectors.values() if c.room is not None), default=count)
            stop = min(count, taken + room)
            prepared = {}
            for name, collector in self._collectors.items():
                piece = rows[name][taken:stop]
                try:
                    prepared[name] = collector.prepare(piece) if prepare else piece
                except QuantiseConflictError as exc:
                    raise PartConflict(name, taken, exc) from exc
            for name, collector in self._collectors.items():
                ready = collector.add(prepared[name])
                if ready is not None:
                    self._shard.append_chunk(name, ready.layout, ready.chunk, ready.stop)
            self._index.add(index[taken:stop])
            self.num_samples += stop - taken
            taken = stop

    def finish(self, classes: tuple[str, ...], provenance: Mapping[str, Any]) -> None:
        """Store what is left, close the file and sync it to disk."""
        fields = {}
        for name, collector in self._collectors.items():
            ready, fields[name] = collector.finish()
            if ready is not None:
                self._shard.append_chunk(name, ready.layout, ready.chunk, ready.stop)
        self._shard.finish(ShardEnd(fields, concat_index(self._index.pieces), classes, provenance))

    def abort(self) -> None:
        """Close and remove the unfinished file; idempotent."""
        if os.path.exists(self.path):
            # libhdf5 writes what it has buffered before it lets go of a file: on a full disk it needs room for that.
            os.truncate(self.path, 0)
        try:
            self._shard.close()
        except OSError as exc:
            log.info("%s is thrown away; libhdf5 could not write its buffers before: %s", self.path, exc)
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
