"""Read samples by number into caller memory, whatever their blocks, chunks or shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import CodecError
from h5cache.format.encode import checksum
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage
from h5cache.load.blocks import BlockReader
from h5cache.load.places import first_block, first_sample
from h5cache.load.plan import BlockPlan, plan_blocks
from h5cache.load.threads import ReadCounters
from h5cache.value_table import expand

__all__ = ["SampleReader"]

#: Where bytes are read from: the files, by pread; "mapped": raw fields by mmap; copies of the files in memory
#: ("stored"); or memory that holds every sample decoded.
KEEP_MODES = ("files", "mapped", "stored", "decoded")

#: Samples of a contiguous field that are read at once when it is read whole.
CONTIGUOUS_ROWS = 256
WARM_NBYTES = 8 * 1024 * 1024

Array = npt.NDArray[Any]
Samples = npt.NDArray[np.int64]


class SampleReader:
    """Read samples of a dataset by number. Thread-safe; pickles as paths and tables, without descriptors."""

    def __init__(self, info: DatasetInfo, verify: str = "first", keep: str = "files") -> None:
        if keep not in KEEP_MODES:
            raise ValueError(f"keep must be one of {', '.join(KEEP_MODES)}, got {keep!r}")
        self._keep = keep
        self._blocks = BlockReader(info, verify, in_memory=keep == "stored", mapped=keep == "mapped")
        self._resident = dict(info.resident)
        if keep == "decoded":
            for name in info.storage:
                if name not in self._resident:
                    self._resident[name] = self._decode_all(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleReader, (self.info, self._blocks.checks.verify, self._keep)

    @property
    def resident(self) -> Mapping[str, Array]:
        """Fields that are in memory whole, in stored dtype."""
        return self._resident

    @property
    def info(self) -> DatasetInfo:
        return self._blocks.info

    def sibling(self, verify: str | None = None) -> SampleReader:
        """Return a reader of the same files that counts for itself and knows what this one has checked already."""
        other = object.__new__(SampleReader)
        other.__dict__.update(self.__dict__)
        other._blocks = self._blocks.sibling(verify)
        return other

    def counters(self) -> ReadCounters:
        """Return what all threads have done so far, summed."""
        return self._blocks.threads.total()

    def warm(self, progress: Callable[[int], Any]) -> None:
        """Read all files once, into nothing: the page cache has them afterwards. `progress` gets bytes."""
        for shard, file in enumerate(self.info.shards):
            memory = np.empty(WARM_NBYTES, np.uint8)
            for offset in range(0, file.identity.nbytes, WARM_NBYTES):
                part = memory[: min(WARM_NBYTES, file.identity.nbytes - offset)]
                self._blocks.store.read_into(shard, offset, part)
                progress(len(part))

    def close(self) -> None:
        """Close descriptors; idempotent. A later read opens them again."""
        self._blocks.store.close()

    def read(self, name: str, samples: Samples, out: Array) -> None:
        """Write the samples, in the order asked, into `out`: C-contiguous `(len(samples), *shape)`, the field's dtype.

        ChecksumError names file, field, chunk and key of a sample whose stored bytes have changed.
        """
        table, axis = self.info.storage[name].table, self.info.storage[name].layout.field.channel_axis
        if table is None:
            self.read_stored(name, samples, out)
        elif self.reads_one_by_one(name):
            codes, rows = self.iter_samples(name, samples)
            for row in rows:
                expand(codes[np.newaxis], table, out[row : row + 1], axis)
        else:
            codes = np.empty(out.shape, np.uint8)
            self.read_stored(name, samples, codes)
            expand(codes, table, out, axis)

    def reads_one_by_one(self, name: str) -> bool:
        """Whether samples of a field can be had one by one, each with one read: none shares its block with others."""
        storage = self.info.storage[name]
        return name not in self._resident and storage.layout.block_samples == 1 and not storage.needs_hdf5

    def iter_samples(self, name: str, samples: Samples) -> tuple[Array, Iterator[int]]:
        """Return an array and an iterator, for a field that `reads_one_by_one`.

        The iterator yields the place in `samples`, in any order, of the sample that the array then holds, in stored
        dtype. The array is the thread's, and the caller's to change.
        """
        storage = self.info.storage[name]
        layout = storage.layout
        plan = plan_blocks(storage, self.info.starts, samples)
        target = self._blocks.threads.memory("sample", layout.sample_nbytes)[: layout.sample_nbytes]
        rows = self._blocks.iter_blocks(storage, plan, np.arange(len(samples)), target[np.newaxis])
        return target.view(layout.stored_dtype).reshape(layout.field.shape), rows

    def read_stored(self, name: str, samples: Samples, out: Array) -> None:
        """As `read`, but exact codes stay codes: `out` is of the stored dtype."""
        if not len(samples):
            return
        resident = self._resident.get(name)
        if resident is not None:
            np.take(resident, samples, axis=0, out=out, mode="clip")
            return
        storage = self.info.storage[name]
        plan = plan_blocks(storage, self.info.starts, samples)
        if storage.layout.block_samples > 1:
            self._read_shared_blocks(storage, plan, out)
        else:
            self._blocks.read_rows(storage, plan, out.reshape(len(out), -1).view(np.uint8))

    def _read_shared_blocks(self, storage: FieldStorage, plan: BlockPlan, out: Array) -> None:
        """Decode each block of several samples once, and deal its samples to their rows."""
        layout = storage.layout
        block = np.empty((layout.block_samples, *layout.field.shape), layout.stored_dtype)
        if storage.needs_hdf5:
            self._blocks.read_foreign(storage, plan, out)
        rows = self._blocks.own_rows(storage, plan)
        order = rows[np.argsort(plan.blocks[rows], kind="stable")]
        bounds = np.flatnonzero(np.diff(plan.blocks[order], prepend=-1, append=-1))
        if len(bounds) - 1 == len(order):  # the rule in a shuffle: no two samples share a block
            for row in self._blocks.iter_blocks(storage, plan, order, block.reshape(1, -1).view(np.uint8)):
                out[row] = block[plan.places[row]]
            return
        members = {int(order[start]): order[start:stop] for start, stop in pairwise(bounds.tolist())}
        for row in self._blocks.iter_blocks(storage, plan, order[bounds[:-1]], block.reshape(1, -1).view(np.uint8)):
            out[members[row]] = block[plan.places[members[row]]]

    def read_chunk(self, name: str, chunk: int, out: Array) -> None:
        """Decode a whole chunk, counted over all shards, into `out`: the chunk's shape, in stored dtype."""
        storage = self.info.storage[name]
        layout = storage.layout
        shard = int(np.searchsorted(storage.chunk_starts, chunk, side="right")) - 1
        first = first_block(storage, chunk, shard)
        if storage.chunk_offsets[chunk] == THROUGH_HDF5:
            start = first_sample(self.info, storage, first, shard)
            count = min(layout.chunk_samples, int(self.info.starts[shard + 1]) - start)
            self.read_stored(name, np.arange(start, start + count), out[:count])
            return
        nbytes = int(storage.chunk_nbytes[chunk])
        stored = self._blocks.threads.memory("chunk", nbytes)[:nbytes]
        began = perf_counter_ns()
        self._blocks.store.read_into(shard, int(storage.chunk_offsets[chunk]), stored)
        read = perf_counter_ns()
        blocks = slice(first, first + layout.blocks_per_chunk)
        unchecked = self._blocks.checks.unchecked(storage)
        if unchecked is not None and unchecked[blocks].any():
            if layout.is_raw or checksum(stored) != int(storage.chunk_checksums[chunk]):
                # Block by block: finds out which samples are damaged, or that all are whole.
                for block in range(blocks.start, blocks.stop):
                    self._check_block(storage, shard, block, out)
                return
            self._blocks.checks.note_chunk(storage, blocks)
        try:
            layout.codec.decode(stored, out)
        except CodecError as exc:
            raise self._blocks.damaged(storage, first, shard, f"does not decode: {exc}") from exc
        self._blocks.threads.counters().add(nbytes, began, read)

    def _check_block(self, storage: FieldStorage, shard: int, block: int, chunk: Array) -> None:
        samples = storage.layout.block_samples
        place = (block - int(storage.block_starts[shard])) % storage.layout.blocks_per_chunk
        target = chunk[place * samples : (place + 1) * samples].reshape(-1).view(np.uint8)
        first = first_sample(self.info, storage, block, shard)
        if first >= int(self.info.starts[shard + 1]):
            target.fill(0)  # padding behind the last sample
            return
        plan = plan_blocks(storage, self.info.starts, np.array([first]))
        for _ in self._blocks.iter_blocks(storage, plan, np.zeros(1, np.int64), target[np.newaxis]):
            pass

    def _decode_all(self, name: str) -> Array:
        layout = self.info.storage[name].layout
        rows = np.empty((self.info.num_samples, *layout.field.shape), layout.stored_dtype)
        step = max(1, layout.chunk_samples if not layout.contiguous else CONTIGUOUS_ROWS)
        for start in range(0, len(rows), step):
            self.read_stored(name, np.arange(start, min(start + step, len(rows))), rows[start : start + step])
        return rows
