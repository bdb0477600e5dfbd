"""Try codecs on the first samples of a field: what was chosen and why, and what converting a file would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import CodecChoice, choose_codec
from h5cache.errors import SchemaError
from h5cache.format import hdf5
from h5cache.format.chunks import read_chunk
from h5cache.format.collect import ReadyChunk, collector_for
from h5cache.format.encode import pad_chunk
from h5cache.format.layout import FieldLayout, is_resident, plan_chunking, plan_geometry
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage, split_storage
from h5cache.schema import Field
from h5cache.store.local import LocalStore

__all__ = ["FieldTrial", "try_codecs", "try_conversion"]


@dataclass(frozen=True)
class FieldTrial:
    """What became of a field's first samples when they were stored as h5cache would store them."""

    name: str
    layout: FieldLayout
    num_samples: int
    ratio: float


def try_codecs(info: DatasetInfo, names: Sequence[str]) -> dict[str, CodecChoice]:
    """Decode the first chunk of each of these fields, and let every candidate codec encode it, with measured speeds.

    Fields that are not coded (labels) are left out.
    """
    found = {}
    for name in names:
        storage = info.storage[name]
        if info.num_samples == 0 or is_resident(replace(storage.layout.field, codec="auto")):
            continue
        if info.is_foreign:
            found[name] = _choose_foreign(info, storage)
        else:
            found[name] = choose_codec(_first_chunk(info, storage), storage.layout.geometry, measure=True)
    return found


def try_conversion(info: DatasetInfo) -> tuple[FieldTrial, ...]:
    """Store a first chunk of every field of a foreign file in memory, and say how large it is."""
    trials = []
    for name, storage in info.storage.items():
        field = replace(storage.layout.field, codec="auto", exact="auto")
        if info.num_samples == 0:
            continue
        collector = collector_for(field, None)
        done, ready = 0, None
        while ready is None and collector.room and done < info.num_samples:
            rows = _read_rows(info, storage, done, min(info.num_samples, done + collector.room))
            ready = collector.add(collector.prepare(rows))
            done += len(rows)
        if ready is None:
            ready, end = collector.finish()
            layout = end.layout
        else:
            layout = ready.layout
        trials.append(FieldTrial(name, layout, done, _ratio(field, done, ready)))
    return tuple(trials)


def _ratio(field: Field, num_samples: int, ready: ReadyChunk | None) -> float:
    return num_samples * field.sample_nbytes / len(ready.chunk.data) if ready else 1.0


def _first_chunk(info: DatasetInfo, storage: FieldStorage) -> npt.NDArray[Any]:
    """Return the first chunk in stored dtype (codes stay codes), padding included."""
    layout = storage.layout
    if storage.chunk_offsets[0] == THROUGH_HDF5:
        rows = np.empty(
            (min(layout.chunk_samples, info.shards[0].num_samples), *layout.field.shape), layout.stored_dtype
        )
        hdf5.read_rows(info.shards[0].path, storage.name, np.arange(len(rows)), rows)
        return pad_chunk(rows, layout.chunk_samples)
    store = LocalStore(info.shards)
    try:
        stored = read_chunk(store, split_storage(storage)[0], 0)
    finally:
        store.close()
    chunk = np.empty(layout.chunk_shape, layout.stored_dtype)
    layout.codec.decode(stored.data, chunk)
    return chunk


def _choose_foreign(info: DatasetInfo, storage: FieldStorage) -> CodecChoice:
    field = storage.layout.field
    block_samples, chunk_samples = plan_chunking(field, False, True, info.num_samples)
    rows = _read_rows(info, storage, 0, min(chunk_samples, info.num_samples))
    geometry = plan_geometry(field, False, block_samples, chunk_samples)
    return choose_codec(pad_chunk(rows, chunk_samples), geometry, measure=True)


def _read_rows(info: DatasetInfo, storage: FieldStorage, start: int, stop: int) -> npt.NDArray[Any]:
    field = storage.layout.field
    rows = np.empty((stop - start, *field.shape), field.stored_dtype)
    hdf5.read_rows(info.path, storage.name, np.arange(start, stop), rows)
    return rows


def check_field_names(info: DatasetInfo, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in info.storage]
    if unknown:
        raise SchemaError(f"{info.path}: has no field {unknown[0]!r}; its fields are {', '.join(info.storage)}")
