"""Read samples into caller memory: pread, checksum, decode. libhdf5 only where a file is no longer as we wrote it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import BlockDecoder
from h5cache.errors import ChecksumError, CodecError
from h5cache.format import hdf5
from h5cache.format.chunks import is_rewritten
from h5cache.format.encode import checksum
from h5cache.format.manifest import refresh_shard
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage
from h5cache.load.checks import BlockChecks
from h5cache.load.mapped import MappedFiles
from h5cache.load.places import by_shard, chunk_in_shard, describe_block, first_block, first_sample
from h5cache.load.plan import BlockPlan, plan_blocks
from h5cache.load.threads import ReadCounters, ThreadState
from h5cache.store.local import LocalStore
from h5cache.store.memory import MemoryStore
from h5cache.value_table import expand

__all__ = ["SampleReader"]

log = logging.getLogger(__name__)

#: Where bytes are read from: the files, by pread; "mapped": raw fields by mmap; copies of the files in memory
#: ("stored"); or memory that holds every sample decoded.
KEEP_MODES = ("files", "mapped", "stored", "decoded")

#: Samples of a contiguous field that are read at once when it is read whole.
CONTIGUOUS_ROWS = 256
WARM_NBYTES = 8 * 1024 * 1024

_ZERO = np.zeros(1, np.int64)

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.int64]


class SampleReader:
    """Read samples of a dataset by number. Thread-safe; pickles as paths and tables, without descriptors."""

    def __init__(self, info: DatasetInfo, verify: str = "first", keep: str = "files") -> None:
        if keep not in KEEP_MODES:
            raise ValueError(f"keep must be one of {', '.join(KEEP_MODES)}, got {keep!r}")
        self._info = info
        self._checks = BlockChecks(verify)
        self._keep = keep
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {"info": self._info, "verify": self._checks.verify, "keep": self._keep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._info, self._keep = state["info"], state["keep"]
        self._checks = BlockChecks(state["verify"])
        self._start()

    @property
    def resident(self) -> Mapping[str, Array]:
        """Fields that are in memory whole, in stored dtype."""
        return self._resident

    @property
    def info(self) -> DatasetInfo:
        return self._info

    def sibling(self, verify: str | None = None) -> SampleReader:
        """Return a reader of the same files that counts for itself and knows what this one has checked already."""
        other = object.__new__(SampleReader)
        other.__dict__.update(self.__dict__)
        other._checks = BlockChecks(verify or self._checks.verify, self._checks)
        other._threads = ThreadState()
        return other

    def counters(self) -> ReadCounters:
        """Return what all threads have done so far, summed."""
        return self._threads.total()

    def warm(self, progress: Callable[[int], Any]) -> None:
        """Read all files once, into nothing: the page cache has them afterwards. `progress` gets bytes."""
        for shard, file in enumerate(self._info.shards):
            memory = np.empty(WARM_NBYTES, np.uint8)
            for offset in range(0, file.identity.nbytes, WARM_NBYTES):
                part = memory[: min(WARM_NBYTES, file.identity.nbytes - offset)]
                self._store.read_into(shard, offset, part)
                progress(len(part))

    def close(self) -> None:
        """Close descriptors; idempotent. A later read opens them again."""
        self._store.close()

    def read(self, name: str, samples: Samples, out: Array) -> None:
        """Write the samples, in the order asked, into `out`: C-contiguous `(len(samples), *shape)`, the field's dtype.

        ChecksumError names file, field, chunk and key of a sample whose stored bytes have changed.
        """
        table, axis = self._info.storage[name].table, self._info.storage[name].layout.field.channel_axis
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
        storage = self._info.storage[name]
        return name not in self._resident and storage.layout.block_samples == 1 and not storage.needs_hdf5

    def iter_samples(self, name: str, samples: Samples) -> tuple[Array, Iterator[int]]:
        """Return an array and an iterator, for a field that `reads_one_by_one`.

        The iterator yields the place in `samples`, in any order, of the sample that the array then holds, in stored
        dtype. The array is the thread's, and the caller's to change.
        """
        storage = self._info.storage[name]
        layout = storage.layout
        plan = plan_blocks(storage, self._info.starts, samples)
        target = self._threads.memory("sample", layout.sample_nbytes)[: layout.sample_nbytes]
        rows = self._read_blocks(storage, plan, np.arange(len(samples)), target[np.newaxis])
        return target.view(layout.stored_dtype).reshape(layout.field.shape), rows

    def read_stored(self, name: str, samples: Samples, out: Array) -> None:
        """As `read`, but exact codes stay codes: `out` is of the stored dtype."""
        if not len(samples):
            return
        resident = self._resident.get(name)
        if resident is not None:
            np.take(resident, samples, axis=0, out=out, mode="clip")
            return
        storage = self._info.storage[name]
        plan = plan_blocks(storage, self._info.starts, samples)
        if storage.needs_hdf5:
            rows, foreign = self._read_foreign(storage, plan)
            out[foreign] = rows
        if storage.layout.block_samples > 1:
            self._read_shared_blocks(storage, plan, out)
            return
        target = out.reshape(len(out), -1).view(np.uint8)
        own = self._own_rows(storage, plan)
        if not storage.layout.is_raw:
            for _ in self._read_blocks(storage, plan, own, target):
                pass
        elif self._keep == "mapped":
            self._read_mapped(storage, plan, own, target)
        else:
            self._read_raw(storage, plan, own, target)

    def _read_blocks(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, rows: Bytes) -> Iterator[int]:
        """Read the blocks of the rows `wanted`, each into its row of `rows`, or all into the only one; yield each row.

        This is the hot path: one preadv and one decode per block, and as little Python as can be between them.
        """
        decoder = self._decoder(storage)
        prefix = decoder.prefix_nbytes
        scratch = self._threads.memory("stored", prefix + int(plan.nbytes.max(initial=0)))
        decode_row, room = decoder.bind(scratch, rows), scratch.data[prefix:]
        only = len(rows) == 1
        preadv, clock = os.preadv, perf_counter_ns
        read_ns = decode_ns = nbytes_read = 0
        try:
            for shard, members in by_shard(plan, wanted):
                blocks, sizes = plan.blocks[members], plan.nbytes[members]
                with self._store.opened(shard) as descriptor:
                    for row, block, offset, nbytes, is_special in zip(
                        members.tolist(),
                        blocks.tolist(),
                        plan.offsets[members].tolist(),
                        sizes.tolist(),
                        self._are_special(storage, blocks, sizes).tolist(),
                        strict=True,
                    ):
                        place = 0 if only else row
                        began = clock()
                        if is_special:
                            if self._read_special(storage, block, shard, offset, room[:nbytes], rows[place]):
                                yield row
                                continue
                        elif preadv(descriptor, (room[:nbytes],), offset) != nbytes:
                            self._store.fill(descriptor, shard, offset, np.frombuffer(room[:nbytes], np.uint8))
                        read = clock()
                        try:
                            decode_row(nbytes, place)
                        except CodecError as exc:
                            raise self._damaged(storage, block, shard, f"does not decode: {exc}") from exc
                        read_ns += read - began
                        decode_ns += clock() - read
                        nbytes_read += nbytes
                        yield row
        finally:
            self._threads.counters().count(nbytes_read, read_ns, decode_ns)

    def _are_special(self, storage: FieldStorage, blocks: Samples, sizes: Samples) -> npt.NDArray[np.bool_]:
        """Say which blocks are more, or less, than coded bytes that have been checked."""
        if storage.layout.is_raw:
            return np.ones(len(blocks), bool)
        special: npt.NDArray[np.bool_] = (sizes == 0) | (sizes == storage.layout.block_nbytes)
        return special | self._checks.are_unchecked(storage, blocks)

    def _read_special(
        self, storage: FieldStorage, block: int, shard: int, offset: int, room: memoryview, target: Bytes
    ) -> bool:
        """Read a block that holds nothing, or raw bytes, or has not been checked. False: it is in `room`, coded."""
        nbytes = len(room)
        if nbytes == 0:
            self._read_zeros(storage, block, shard, target)
            return True
        is_coded = not storage.layout.is_raw and nbytes != storage.layout.block_nbytes
        # The last block of a contiguous field may be short.
        stored = np.frombuffer(room, np.uint8) if is_coded else target[:nbytes]
        began = perf_counter_ns()
        self._store.read_into(shard, offset, stored)
        if not is_coded:
            self._threads.counters().add(nbytes, began, perf_counter_ns())
        if not self._checks.is_intact(storage, block, shard, stored):
            self._reread_block(storage, block, shard, target)
            return True
        return not is_coded

    def _read_raw(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, rows: Bytes) -> None:
        """Read raw samples of a block each into their rows: one preadv for all that lie side by side here and there."""
        memory, nbytes = rows.reshape(-1).data, storage.layout.sample_nbytes
        preadv = os.preadv
        began = perf_counter_ns()
        for shard, members in by_shard(plan, wanted):
            offsets = plan.offsets[members]
            apart = (offsets[1:] - offsets[:-1] != nbytes) | (members[1:] - members[:-1] != 1)
            first = np.concatenate([_ZERO, np.flatnonzero(apart) + 1])
            places = members[first] * nbytes
            lengths = np.concatenate([first[1:], [len(members)]]) - first
            with self._store.opened(shard) as descriptor:
                for offset, start, length in zip(
                    offsets[first].tolist(), places.tolist(), (lengths * nbytes).tolist(), strict=True
                ):
                    target = memory[start : start + length]
                    if preadv(descriptor, (target,), offset) != length:
                        self._store.fill(descriptor, shard, offset, np.frombuffer(target, np.uint8))
        self._threads.counters().add(len(wanted) * nbytes, began, perf_counter_ns())
        self._check_rows(storage, plan, wanted, rows)

    def _check_rows(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, rows: Bytes) -> None:
        """Check those raw samples, a block each, that have not been checked yet."""
        for row in wanted[self._checks.are_unchecked(storage, plan.blocks[wanted])].tolist():
            block, shard = int(plan.blocks[row]), int(plan.shards[row])
            if not self._checks.is_intact(storage, block, shard, rows[row]):
                self._reread_block(storage, block, shard, rows[row])

    def _read_shared_blocks(self, storage: FieldStorage, plan: BlockPlan, out: Array) -> None:
        """Decode each block of several samples once, and deal its samples to their rows."""
        layout = storage.layout
        block = np.empty((layout.block_samples, *layout.field.shape), layout.stored_dtype)
        rows = self._own_rows(storage, plan)
        order = rows[np.argsort(plan.blocks[rows], kind="stable")]
        bounds = np.flatnonzero(np.diff(plan.blocks[order], prepend=-1, append=-1))
        if len(bounds) - 1 == len(order):  # the rule in a shuffle: no two samples share a block
            for row in self._read_blocks(storage, plan, order, block.reshape(1, -1).view(np.uint8)):
                out[row] = block[plan.places[row]]
            return
        members = {int(order[start]): order[start:stop] for start, stop in pairwise(bounds.tolist())}
        for row in self._read_blocks(storage, plan, order[bounds[:-1]], block.reshape(1, -1).view(np.uint8)):
            out[members[row]] = block[plan.places[members[row]]]

    def read_chunk(self, name: str, chunk: int, out: Array) -> None:
        """Decode a whole chunk, counted over all shards, into `out`: the chunk's shape, in stored dtype."""
        storage = self._info.storage[name]
        layout = storage.layout
        shard = int(np.searchsorted(storage.chunk_starts, chunk, side="right")) - 1
        first = first_block(storage, chunk, shard)
        if storage.chunk_offsets[chunk] == THROUGH_HDF5:
            start = first_sample(self._info, storage, first, shard)
            count = min(layout.chunk_samples, int(self._info.starts[shard + 1]) - start)
            self.read_stored(name, np.arange(start, start + count), out[:count])
            return
        nbytes = int(storage.chunk_nbytes[chunk])
        stored = self._threads.memory("chunk", nbytes)[:nbytes]
        began = perf_counter_ns()
        self._store.read_into(shard, int(storage.chunk_offsets[chunk]), stored)
        read = perf_counter_ns()
        blocks = slice(first, first + layout.blocks_per_chunk)
        unchecked = self._checks.unchecked(storage)
        if unchecked is not None and unchecked[blocks].any():
            if layout.is_raw or checksum(stored) != int(storage.chunk_checksums[chunk]):
                # Block by block: finds out which samples are damaged, or that all are whole.
                for block in range(blocks.start, blocks.stop):
                    self._check_block(storage, shard, block, out)
                return
            self._checks.note_chunk(storage, blocks)
        try:
            layout.codec.decode(stored, out)
        except CodecError as exc:
            raise self._damaged(storage, first, shard, f"does not decode: {exc}") from exc
        self._threads.counters().add(nbytes, began, read)

    def _check_block(self, storage: FieldStorage, shard: int, block: int, chunk: Array) -> None:
        samples = storage.layout.block_samples
        place = (block - int(storage.block_starts[shard])) % storage.layout.blocks_per_chunk
        target = chunk[place * samples : (place + 1) * samples].reshape(-1).view(np.uint8)
        first = first_sample(self._info, storage, block, shard)
        if first >= int(self._info.starts[shard + 1]):
            target.fill(0)  # padding behind the last sample
            return
        plan = plan_blocks(storage, self._info.starts, np.array([first]))
        for _ in self._read_blocks(storage, plan, np.zeros(1, np.int64), target[np.newaxis]):
            pass

    def _read_zeros(self, storage: FieldStorage, block: int, shard: int, target: Bytes) -> None:
        """Fill in a block of which no byte is stored; its chunk, a mark of 172 bytes, must still say that it is so."""
        target.fill(0)
        unchecked = self._checks.unchecked(storage)
        if unchecked is not None and unchecked[block]:
            place = int(storage.chunk_starts[shard]) + chunk_in_shard(storage, block, shard)
            if checksum(self._read_stored_chunk(storage, block, shard)) != int(storage.chunk_checksums[place]):
                self._reread_block(storage, block, shard, target)
                return
            self._checks.note(storage, block, shard)

    def _reread_block(self, storage: FieldStorage, block: int, shard: int, out: Bytes) -> None:
        """The stored bytes are not ours: find out whether they were moved or rewritten, or are damaged."""
        layout = storage.layout
        first = first_sample(self._info, storage, block, shard)
        rows = out.view(layout.stored_dtype).reshape(-1, *layout.field.shape)
        count = min(len(rows), int(self._info.starts[shard + 1]) - first)
        if len(self._info.shards) > 1:
            fresh = refresh_shard(self._info, shard)
            if not np.array_equal(fresh.storage[storage.name].chunk_offsets, storage.chunk_offsets):
                log.warning(
                    "%s was repacked after its manifest was written; its own tables are used", self._path(shard)
                )
                self._info = fresh
                self._start()
                self.read_stored(storage.name, np.arange(first, first + count), rows[:count])
                return
        if is_rewritten(storage, self._read_stored_chunk(storage, block, shard)):
            local = first - int(self._info.starts[shard])
            self._read_through_hdf5(storage, shard, np.arange(local, local + count), rows[:count])
            return
        raise self._damaged(
            storage, block, shard, "is damaged or was changed: its stored bytes do not match their checksum"
        )

    def _damaged(self, storage: FieldStorage, block: int, shard: int, what: str) -> ChecksumError:
        where = describe_block(self._info, storage, block, shard)
        return ChecksumError(f"{where} {what}. Restore the file, or convert it again")

    def _read_stored_chunk(self, storage: FieldStorage, block: int, shard: int) -> bytes:
        place = int(storage.chunk_starts[shard]) + chunk_in_shard(storage, block, shard)
        return self._store.read(shard, int(storage.chunk_offsets[place]), int(storage.chunk_nbytes[place]))

    def _own_rows(self, storage: FieldStorage, plan: BlockPlan) -> Samples:
        """Return the rows that are read beside libhdf5."""
        if not storage.needs_hdf5:
            return np.arange(len(plan.offsets))
        return np.flatnonzero(plan.offsets != THROUGH_HDF5)

    def _read_foreign(self, storage: FieldStorage, plan: BlockPlan) -> tuple[Array, Samples]:
        """Read what libhdf5 must read; return those samples in stored dtype and their rows."""
        rows = np.flatnonzero(plan.offsets == THROUGH_HDF5)
        values = np.empty((len(rows), *storage.layout.field.shape), storage.layout.stored_dtype)
        for shard, members in by_shard(plan, rows):
            place = np.searchsorted(rows, members)
            part = np.empty((len(members), *values.shape[1:]), values.dtype)
            self._read_through_hdf5(storage, shard, plan.local[members], part)
            values[place] = part
        return values, rows

    def _read_through_hdf5(self, storage: FieldStorage, shard: int, rows: Samples, out: Array) -> None:
        self._store.check_same(shard)
        hdf5.read_rows(self._path(shard), storage.name, rows, out)
        self._store.check_same(shard)  # libhdf5 opens the path, which may be given to another file at any time

    def _path(self, shard: int) -> str:
        return self._store.path(shard)

    def _decoder(self, storage: FieldStorage) -> BlockDecoder:
        decoder = self._decoders.get(storage.name)
        if decoder is None:
            decoder = self._decoders[storage.name] = storage.layout.codec.block_decoder(storage.block_header)
        return decoder

    def _start(self) -> None:
        self._store = MemoryStore(self._info.shards) if self._keep == "stored" else LocalStore(self._info.shards)
        self._maps = MappedFiles(self._store)
        self._decoders: dict[str, BlockDecoder] = {}
        self._checks = BlockChecks(self._checks.verify)
        self._threads = ThreadState()
        self._resident = dict(self._info.resident)
        if self._keep == "decoded":
            for name in self._info.storage:
                if name not in self._resident:
                    self._resident[name] = self._decode_all(name)

    def _decode_all(self, name: str) -> Array:
        layout = self._info.storage[name].layout
        rows = np.empty((self._info.num_samples, *layout.field.shape), layout.stored_dtype)
        step = max(1, layout.chunk_samples if not layout.contiguous else CONTIGUOUS_ROWS)
        for start in range(0, len(rows), step):
            self.read_stored(name, np.arange(start, min(start + step, len(rows))), rows[start : start + step])
        return rows

    def _read_mapped(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, out: Bytes) -> None:
        """Copy raw samples out of the mapped files, and check those that have not been checked yet."""
        began = perf_counter_ns()
        for shard, members in by_shard(plan, wanted):
            self._maps.copy(storage, plan, shard, members, out)
        self._threads.counters().add(storage.layout.sample_nbytes * len(wanted), began, perf_counter_ns())
        self._check_rows(storage, plan, wanted, out)
