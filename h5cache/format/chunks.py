"""Read whole stored chunks of a dataset: for joining parts, verifying and re-encoding. Batches are read elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import BlockSpans, Blosc2, is_own_frame
from h5cache.errors import ChecksumError
from h5cache.format.encode import EncodedChunk, checksum, describe_chunk, raw_spans
from h5cache.format.layout import FieldLayout
from h5cache.format.storage import DatasetInfo, FieldStorage
from h5cache.store.local import LocalStore
from h5cache.value_table import expand

__all__ = ["check_chunks", "decode_chunk", "decode_stored", "is_rewritten", "iter_field_rows", "num_rows", "read_chunk"]


def num_rows(storage: FieldStorage, chunk: int, num_samples: int) -> int:
    """Samples in a chunk of a one-shard storage; the last may be partly padding."""
    return min(storage.layout.chunk_samples, num_samples - chunk * storage.layout.chunk_samples)


def read_chunk(store: LocalStore, storage: FieldStorage, chunk: int) -> EncodedChunk:
    """Read a stored chunk of a one-shard storage with its spans; ChecksumError where it was damaged.

    A contiguous field is read as if in chunks; the last ends with the rows, without padding.
    """
    layout = storage.layout
    if layout.contiguous:
        start = chunk * layout.chunk_nbytes
        offset, nbytes = int(storage.chunk_offsets[0]) + start, int(storage.chunk_nbytes[0]) - start
        data = store.read(0, offset, min(nbytes, layout.chunk_nbytes))
    else:
        data = store.read(0, int(storage.chunk_offsets[chunk]), int(storage.chunk_nbytes[chunk]))
    blocks = slice(chunk * layout.blocks_per_chunk, (chunk + 1) * layout.blocks_per_chunk)
    if layout.is_raw:
        found = describe_chunk(data, raw_spans(layout, len(data)))
        intact = np.array_equal(found.block_checksums, storage.block_checksums[blocks])
        return found if intact else _damaged(store, storage, chunk)
    if checksum(data) != int(storage.chunk_checksums[chunk]):
        _damaged(store, storage, chunk)
    coded = np.any((storage.block_nbytes[blocks] != 0) & (storage.block_nbytes[blocks] != layout.block_nbytes))
    header = storage.block_header if coded else b""
    spans = BlockSpans(storage.block_offsets[blocks], storage.block_nbytes[blocks], header)
    return EncodedChunk(data, spans, int(storage.chunk_checksums[chunk]), storage.block_checksums[blocks])


def is_rewritten(storage: FieldStorage, data: bytes) -> bool:
    """Tell a chunk that another program has encoded anew from one that is damaged.

    HDF5's Blosc2 filter writes n-D frames, whose pixels lie in another order; no bit that flips makes one of ours such.
    """
    return isinstance(storage.layout.codec, Blosc2) and b"b2nd" in data[:256] and not is_own_frame(data)


def _damaged(store: LocalStore, storage: FieldStorage, chunk: int) -> EncodedChunk:
    raise ChecksumError(f"{store.path(0)}: field {storage.name!r}, chunk {chunk} is damaged: its checksum differs")


def check_chunks(info: DatasetInfo) -> None:
    """Read every chunk of a one-shard dataset from its file; ChecksumError names the first that is damaged."""
    store = LocalStore(info.shards)
    try:
        for storage in info.storage.values():
            if not storage.layout.resident:
                for chunk in range(storage.layout.num_chunks(info.num_samples)):
                    read_chunk(store, storage, chunk)
    finally:
        store.close()


def decode_chunk(storage: FieldStorage, data: bytes) -> npt.NDArray[Any]:
    """Decode a whole stored chunk to rows as the user sees them (codes expanded), padding included."""
    stored = decode_stored(storage.layout, data)
    if storage.table is None:
        return stored
    rows = np.empty(stored.shape, storage.layout.field.stored_dtype)
    expand(stored, storage.table, rows, storage.layout.field.channel_axis)
    return rows


def decode_stored(layout: FieldLayout, data: bytes) -> npt.NDArray[Any]:
    """Decode a whole stored chunk to rows as they are stored (codes stay codes), padding included."""
    if layout.is_raw:
        return np.frombuffer(data, layout.stored_dtype).reshape(-1, *layout.field.shape)
    stored = np.empty(layout.chunk_shape, layout.stored_dtype)
    layout.codec.decode(data, stored)
    return stored


def iter_field_rows(info: DatasetInfo, store: LocalStore, name: str, step: int) -> Iterator[npt.NDArray[Any]]:
    """Yield a field's rows, `step` samples at a time, as the user sees them. For one-shard datasets."""
    if name in info.resident:
        for start in range(0, info.num_samples, step):
            yield info.resident[name][start : start + step]
        return
    storage = info.storage[name]
    pending = np.zeros((0, *storage.layout.field.shape), storage.layout.field.stored_dtype)
    for chunk in range(storage.layout.num_chunks(info.num_samples)):
        rows = decode_chunk(storage, read_chunk(store, storage, chunk).data)
        rows = rows[: num_rows(storage, chunk, info.num_samples)]
        pending = np.concatenate([pending, rows])
        while len(pending) >= step:
            yield pending[:step]
            pending = pending[step:]
    if len(pending):
        yield pending
