"""Join finished parts into one file by copying chunk bytes, or re-encode a part whose exact codes did not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from h5cache.errors import FormatError
from h5cache.format import hdf5, tables
from h5cache.format.chunks import iter_field_rows, num_rows, read_chunk
from h5cache.format.part import PartWriter, concat_index
from h5cache.format.shard import FieldEnd, FieldPlan, ShardEnd, ShardWriter, read_plans, read_shard
from h5cache.format.storage import DatasetInfo, concat_storage
from h5cache.schema import Schema
from h5cache.store.local import LocalStore

__all__ = ["join_parts", "replay_part"]


@dataclass(frozen=True, order=True)
class _Step:
    """One chunk to copy. Steps sort in the canonical order of a shard's chunks."""

    stop: int
    field: int
    part: int
    chunk: int


def plan_join(infos: Sequence[DatasetInfo]) -> list[_Step]:
    """Return every chunk of every part in the order in which one writer would have stored them."""
    steps = []
    base = 0
    for part, info in enumerate(infos):
        for position, storage in enumerate(info.storage.values()):
            if storage.layout.contiguous:
                continue
            for chunk in range(len(storage.chunk_offsets)):
                rows = num_rows(storage, chunk, info.num_samples)
                steps.append(_Step(base + chunk * storage.layout.chunk_samples + rows, position, part, chunk))
        base += info.num_samples
    return sorted(steps)


def join_parts(paths: Sequence[str], out: str, progress: Callable[[int], None] | None = None) -> None:
    """Write `out` from parts in order. All but the last must end with whole chunks. `progress` gets bytes copied."""
    infos = [read_part(path) for path in paths]
    stores = [LocalStore(info.shards) for info in infos]
    names = list(infos[0].storage)
    joined = {name: concat_storage([info.storage[name] for info in infos]) for name in names}
    plans = read_plans(paths[0])
    writer = ShardWriter(out)
    try:
        for step in plan_join(infos):
            name = names[step.field]
            chunk = read_chunk(stores[step.part], infos[step.part].storage[name], step.chunk)
            writer.append_chunk(name, joined[name].layout, chunk, step.stop)
            if progress is not None:
                progress(len(chunk.data))
        fields = {
            name: FieldEnd(
                layout=storage.layout,
                rows=np.concatenate([info.resident[name] for info in infos]) if name in infos[0].resident else None,
                table=storage.table,
                quantiser=plans[name].quantiser,
            )
            for name, storage in joined.items()
        }
        index = concat_index([read_part_index(path) for path in paths])
        writer.finish(ShardEnd(fields, index, infos[0].classes, infos[0].provenance))
    finally:
        writer.close()
        for store in stores:
            store.close()


def read_part(path: str) -> DatasetInfo:
    info = read_shard(path)
    if info is None:
        raise FormatError(f"{path}: is not a part of a dataset; remove it")
    return info


def read_part_index(path: str) -> tables.IndexRows:
    with hdf5.open_file(path) as file:
        return tables.read_index(file)


def replay_part(path: str, out: str, schema: Schema, plans: Mapping[str, FieldPlan], step: int) -> PartWriter:
    """Append all samples of a part to a new one of `schema` at `out`; return it, open, for more."""
    info = read_part(path)
    index = read_part_index(path)
    store = LocalStore(info.shards)
    writer = PartWriter(out, schema, plans)
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
