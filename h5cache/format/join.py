"""Join finished parts into one file by copying chunk bytes, or re-encode a part whose exact codes did not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import FormatError
from h5cache.format import hdf5, tables
from h5cache.format.chunks import decode_stored, iter_field_rows, num_rows, read_chunk
from h5cache.format.encode import EncodedChunk, encode_chunk
from h5cache.format.layout import FieldLayout
from h5cache.format.locate import read_plans, read_shard
from h5cache.format.part import PartWriter, concat_index
from h5cache.format.shard import FieldEnd, FieldPlan, ShardEnd, ShardWriter
from h5cache.format.storage import DatasetInfo, concat_storage, starts_of
from h5cache.schema import Schema
from h5cache.store.local import LocalStore

__all__ = ["PartJoiner", "join_parts", "replay_part", "select_samples"]

#: Decoded chunks kept while samples are gathered: those that come from the tail share few chunks.
GATHER_CHUNKS = 4


@dataclass(frozen=True, order=True)
class _Step:
    """One chunk to copy. Steps sort in the canonical order of a shard's chunks."""

    stop: int
    #: An edge chunk: stored when its field is closed, so after full ones that end with the same sample.
    partial: bool
    field: int
    part: int
    chunk: int


def plan_join(infos: Sequence[DatasetInfo]) -> list[_Step]:
    """Return every chunk of every part in the order in which one writer would have stored them."""
    steps = []
    base = 0
    for part, info in enumerate(infos):
        for position, storage in enumerate(info.storage.values()):
            if storage.layout.resident:
                continue
            for chunk in range(storage.layout.num_chunks(info.num_samples)):
                per_chunk = storage.layout.chunk_samples
                rows = num_rows(storage, chunk, info.num_samples)
                steps.append(_Step(base + chunk * per_chunk + rows, rows < per_chunk, position, part, chunk))
        base += info.num_samples
    return sorted(steps)


class PartJoiner:
    """Write `out` from parts, one after the other, as soon as they are finished. Not thread-safe.

    All but the last part must end with whole chunks. Contiguous fields need `num_samples`, that of all parts.
    """

    def __init__(self, out: str, num_samples: int | None = None) -> None:
        self._writer = ShardWriter(out, num_samples)
        self._infos: list[DatasetInfo] = []
        self._plans: dict[str, FieldPlan] = {}
        self._index: list[tables.IndexRows] = []
        self._num_samples = 0

    def add(self, path: str, progress: Callable[[int], None] | None = None) -> None:
        """Copy the chunks of the next part. `progress` gets bytes copied."""
        info = read_part(path)
        self._plans = self._plans or read_plans(path)
        store = LocalStore(info.shards)
        try:
            for step in plan_join([info]):
                name, storage = list(info.storage.items())[step.field]
                chunk = read_chunk(store, storage, step.chunk)
                self._writer.append_chunk(name, storage.layout, chunk, self._num_samples + step.stop)
                if progress is not None:
                    progress(len(chunk.data))
        finally:
            store.close()
        self._infos.append(info)
        self._index.append(read_part_index(path))
        self._num_samples += info.num_samples

    def finish(self, provenance: Mapping[str, Any] | None = None) -> None:
        """Write what closes the file, and close it. `provenance`: by default that of the first part."""
        everything = np.arange(self._num_samples)
        self._writer.finish(_joined_end(self._infos, self._plans, self._index, everything, provenance))

    def close(self) -> None:
        """Close the file; unless `finish` was called, it is unfinished and the caller removes it. Idempotent."""
        self._writer.close()


def join_parts(paths: Sequence[str], out: str, progress: Callable[[int], None] | None = None) -> None:
    """Write `out` from parts in order. All but the last must end with whole chunks. `progress` gets bytes copied."""
    joiner = PartJoiner(out, sum(read_part(path).num_samples for path in paths))
    try:
        for path in paths:
            joiner.add(path, progress)
        joiner.finish()
    finally:
        joiner.close()


@dataclass(frozen=True, order=True)
class _OutputChunk:
    """One chunk of a selection: copied where it is a stored chunk as it stands, else gathered and encoded anew."""

    stop: int
    partial: bool
    field: int
    start: int


def select_samples(
    paths: Sequence[str], samples: npt.NDArray[np.int64], out: str, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write `out` from samples of the parts, in the order asked; they are numbered through all parts.

    Chunks that lie in a part just so are copied; the others are put together and encoded. The bytes depend only on
    the samples chosen, not on which chunks were copied.
    """
    infos = [read_part(path) for path in paths]
    stores = [LocalStore(info.shards) for info in infos]
    starts = starts_of([info.num_samples for info in infos])
    names = list(infos[0].storage)
    gatherers = {name: _Gatherer(infos, stores, starts, name) for name in names}
    writer = ShardWriter(out, len(samples))
    try:
        for step in _plan_selection(infos[0], len(samples)):
            name = names[step.field]
            chunk = gatherers[name].chunk(samples[step.start : step.stop])
            writer.append_chunk(name, infos[0].storage[name].layout, chunk, step.stop)
        index = [read_part_index(path) for path in paths]
        writer.finish(_joined_end(infos, read_plans(paths[0]), index, samples, provenance))
    finally:
        writer.close()
        for store in stores:
            store.close()


def _plan_selection(info: DatasetInfo, num_samples: int) -> list[_OutputChunk]:
    """Return the chunks of a file of `num_samples` in the canonical order."""
    layouts = [storage.layout for storage in info.storage.values()]
    return sorted(
        _OutputChunk(
            min(num_samples, start + layout.chunk_samples), start + layout.chunk_samples > num_samples, position, start
        )
        for position, layout in enumerate(layouts)
        if not layout.resident
        for start in range(0, num_samples, layout.chunk_samples)
    )


class _Gatherer:
    """Make chunks of one field from samples that lie anywhere in the parts."""

    def __init__(
        self, infos: Sequence[DatasetInfo], stores: Sequence[LocalStore], starts: npt.NDArray[np.int64], name: str
    ) -> None:
        self._storages = [info.storage[name] for info in infos]
        self._stores = stores
        self._starts = starts
        self._decoded: dict[tuple[int, int], npt.NDArray[Any]] = {}

    @property
    def _layout(self) -> FieldLayout:
        return self._storages[0].layout

    def chunk(self, samples: npt.NDArray[np.int64]) -> EncodedChunk:
        place = self._find_whole(samples)
        if place is not None:
            part, chunk = place
            return read_chunk(self._stores[part], self._storages[part], chunk)
        rows = np.stack([self._row(sample) for sample in samples.tolist()])
        return encode_chunk(self._layout, rows)

    def _find_whole(self, samples: npt.NDArray[np.int64]) -> tuple[int, int] | None:
        """Return part and number of the stored chunk that holds exactly these samples."""
        first = int(samples[0])
        part, local = self._locate(first)
        rows = min(self._layout.chunk_samples, int(self._starts[part + 1]) - first)
        if local % self._layout.chunk_samples or rows != len(samples):
            return None
        same = np.array_equal(samples, np.arange(first, first + len(samples)))
        return (part, local // self._layout.chunk_samples) if same else None

    def _row(self, sample: int) -> npt.NDArray[Any]:
        part, local = self._locate(sample)
        chunk, place = divmod(local, self._layout.chunk_samples)
        if (part, chunk) not in self._decoded:
            if len(self._decoded) >= GATHER_CHUNKS:
                self._decoded.pop(next(iter(self._decoded)))
            stored = read_chunk(self._stores[part], self._storages[part], chunk)
            self._decoded[part, chunk] = decode_stored(self._layout, stored.data)
        return np.asarray(self._decoded[part, chunk][place])

    def _locate(self, sample: int) -> tuple[int, int]:
        part = int(np.searchsorted(self._starts, sample, side="right")) - 1
        return part, sample - int(self._starts[part])


def _joined_end(
    infos: Sequence[DatasetInfo],
    plans: Mapping[str, FieldPlan],
    index: Sequence[tables.IndexRows],
    samples: npt.NDArray[np.int64],
    provenance: Mapping[str, Any] | None,
) -> ShardEnd:
    fields = {}
    for name in infos[0].storage:
        whole = concat_storage([info.storage[name] for info in infos])
        resident = name in infos[0].resident
        fields[name] = FieldEnd(
            layout=whole.layout,
            rows=np.concatenate([info.resident[name] for info in infos])[samples] if resident else None,
            table=whole.table,
            quantiser=plans[name].quantiser,
        )
    # The second pass makes the column of keys as wide as the keys that are left.
    chosen = concat_index([concat_index(index)[samples]])
    return ShardEnd(fields, chosen, infos[0].classes, infos[0].provenance if provenance is None else provenance)


def read_part(path: str) -> DatasetInfo:
    info = read_shard(path)
    if info is None:
        raise FormatError(f"{path}: is not a part of a dataset; remove it")
    return info


def read_part_index(path: str) -> tables.IndexRows:
    with hdf5.open_file(path) as file:
        return tables.read_index(file)


def replay_part(
    path: str,
    out: str,
    schema: Schema,
    plans: Mapping[str, FieldPlan],
    step: int,
    num_samples: int | None = None,
) -> PartWriter:
    """Append all samples of a part to a new one of `schema` at `out`; return it, open, for more.

    Plans of contiguous fields need `num_samples`, that of the new part.
    """
    info = read_part(path)
    index = read_part_index(path)
    store = LocalStore(info.shards)
    writer = PartWriter(out, schema, plans, num_samples)
    try:
        start = 0
        for rows in zip(*_columns(info, store, step), strict=True):
            stop = start + len(rows[0])
            writer.append(dict(zip(info.storage, rows, strict=True)), index[start:stop])
            start = stop
    except BaseException:
        writer.abort()
        raise
    finally:
        store.close()
    return writer


def _columns(info: DatasetInfo, store: LocalStore, step: int) -> list[Iterator[tables.IndexRows]]:
    return [iter_field_rows(info, store, name, step) for name in info.storage]
