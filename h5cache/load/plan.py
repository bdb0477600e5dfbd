"""Decide which stored blocks a set of samples needs, and where they lie. Pure: reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h5cache.format.storage import THROUGH_HDF5, FieldStorage

__all__ = ["BlockPlan", "chunks_of", "plan_blocks"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """For each sample asked for, in the order asked: its block, and where that block is stored."""

    #: Number of the block over all shards: an index into the field's block tables.
    blocks: Integers
    #: The sample's place in its block.
    places: Integers
    shards: Integers
    #: Sample number within its shard.
    local: Integers
    #: Byte offset of the block in its shard; THROUGH_HDF5 where libhdf5 must read it.
    offsets: Integers
    #: Stored bytes of the block: 0 is zeros, the block's own size is raw.
    nbytes: Integers


def chunks_of(storage: FieldStorage, starts: Integers, samples: Integers) -> tuple[Integers, Integers]:
    """Return the chunk of each sample, counted over all shards, and the sample's place in it."""
    shards, local = _in_shards(starts, samples)
    per_chunk = storage.layout.chunk_samples
    return storage.chunk_starts[shards] + local // per_chunk, local % per_chunk


def _in_shards(starts: Integers, samples: Integers) -> tuple[Integers, Integers]:
    if len(starts) == 2:
        return np.zeros_like(samples), samples
    shards = np.searchsorted(starts, samples, side="right") - 1
    return shards, samples - starts[shards]


def plan_blocks(storage: FieldStorage, starts: Integers, samples: Integers) -> BlockPlan:
    """Locate `samples` (numbers within the dataset, any order, repeats allowed) of one field."""
    layout = storage.layout
    shards, local = _in_shards(starts, samples)
    in_shard = local // layout.block_samples if layout.block_samples > 1 else local
    blocks = _first(storage.block_starts, shards) + in_shard
    if layout.contiguous:
        chunks = storage.chunk_starts[shards]
        within = in_shard * layout.block_nbytes
        counts = (starts[shards + 1] - starts[shards]) - in_shard * layout.block_samples
        nbytes = np.minimum(counts, layout.block_samples) * layout.sample_nbytes
    else:
        chunks = _first(storage.chunk_starts, shards) + local // layout.chunk_samples
        if layout.is_raw:
            within = in_shard % layout.blocks_per_chunk * layout.block_nbytes
            nbytes = np.full(len(samples), layout.block_nbytes)
        else:
            within = storage.block_offsets[blocks].astype(np.int64)
            nbytes = storage.block_nbytes[blocks].astype(np.int64)
    base = storage.chunk_offsets[chunks]
    offsets = base + within
    if storage.needs_hdf5:
        offsets[base == THROUGH_HDF5] = THROUGH_HDF5
    return BlockPlan(blocks, local % layout.block_samples, shards, local, offsets, nbytes)


def _first(starts: Integers, shards: Integers) -> Integers | int:
    """Return the first block or chunk of each shard; of one shard, 0 will do. This runs once per piece of a batch."""
    return 0 if len(starts) == 2 else starts[shards]
