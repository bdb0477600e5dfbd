"""Where a block's samples are: arithmetic on a field's tables, and words for people. Pure but for `describe_block`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from h5cache.errors import H5CacheError
from h5cache.format.open import read_dataset_index
from h5cache.format.storage import DatasetInfo, FieldStorage
from h5cache.load.plan import BlockPlan

__all__ = ["by_shard", "chunk_in_shard", "describe_block", "first_block", "first_sample"]


def chunk_in_shard(storage: FieldStorage, block: int, shard: int) -> int:
    """Return the chunk, counted within its shard, that a block of the dataset lies in."""
    if storage.layout.contiguous:
        return 0
    return (block - int(storage.block_starts[shard])) // storage.layout.blocks_per_chunk


def first_block(storage: FieldStorage, chunk: int, shard: int) -> int:
    """Return the first block of a chunk, both counted over all shards."""
    within = (chunk - int(storage.chunk_starts[shard])) * storage.layout.blocks_per_chunk
    return int(storage.block_starts[shard]) + within


def first_sample(info: DatasetInfo, storage: FieldStorage, block: int, shard: int) -> int:
    """Return the first sample of a block, both counted over all shards."""
    within = (block - int(storage.block_starts[shard])) * storage.layout.block_samples
    return int(info.starts[shard]) + within


def by_shard(plan: BlockPlan, rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield each shard with those of `rows` that it holds."""
    if not len(rows):
        return
    shards = plan.shards[rows]
    if shards.min() == shards.max():
        yield int(shards[0]), rows
        return
    for shard in np.unique(shards).tolist():
        yield shard, rows[shards == shard]


def describe_block(info: DatasetInfo, storage: FieldStorage, block: int, shard: int) -> str:
    """Say which samples a block holds, with their keys: what a person needs to find a damaged one."""
    start = first_sample(info, storage, block, shard)
    stop = min(start + storage.layout.block_samples, int(info.starts[shard + 1]))
    try:
        keys: Sequence[str] = read_dataset_index(info)["key"][start:stop].tolist()
    except (H5CacheError, OSError):
        keys = []
    named = [key for key in keys if key]
    span = f"sample {start}" if stop - start == 1 else f"samples {start} to {stop - 1}"
    key = f" (key {named[0]!r}{f' to {named[-1]!r}' if len(named) > 1 else ''})" if named else ""
    chunk = chunk_in_shard(storage, block, shard)
    return f"{info.shards[shard].path}: field {storage.name!r}, chunk {chunk}, {span}{key}"
