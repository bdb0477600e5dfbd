"""Stored blocks into rows of caller memory: pread, checksum, decode. libhdf5 only where a file is no longer ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
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
from h5cache.load.places import by_shard, chunk_in_shard, describe_block, first_sample
from h5cache.load.plan import BlockPlan, plan_blocks
from h5cache.load.threads import ThreadState
from h5cache.store.local import LocalStore
from h5cache.store.memory import MemoryStore

__all__ = ["BlockReader"]

log = logging.getLogger(__name__)

_ZERO = np.zeros(1, np.int64)

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.int64]


class BlockReader:
    """Read blocks of a dataset's files. Thread-safe: each thread has scratch and counters of its own."""

    def __init__(self, info: DatasetInfo, verify: str, *, in_memory: bool, mapped: bool) -> None:
        """`in_memory`: from copies of the files; `mapped`: raw fields through memory maps."""
        self._in_memory = in_memory
        self._mapped = mapped
        self.checks = BlockChecks(verify)
        self._use(info)

    def _use(self, info: DatasetInfo) -> None:
        self.info = info
        self.store = MemoryStore(info.shards) if self._in_memory else LocalStore(info.shards)
        self.checks = BlockChecks(self.checks.verify)
        self.threads = ThreadState()
        self._maps = MappedFiles(self.store)
        self._decoders: dict[str, BlockDecoder] = {}

    def sibling(self, verify: str | None) -> BlockReader:
        """Return a reader of the same files that counts for itself and knows what this one has checked already."""
        other = object.__new__(BlockReader)
        other.__dict__.update(self.__dict__)
        other.checks = BlockChecks(verify or self.checks.verify, self.checks)
        other.threads = ThreadState()
        return other

    def read_rows(self, storage: FieldStorage, plan: BlockPlan, rows: Bytes) -> None:
        """Read blocks of one sample each, all of `plan`, into rows of bytes."""
        if storage.needs_hdf5:
            self.read_foreign(storage, plan, rows.view(storage.layout.stored_dtype))
        own = self.own_rows(storage, plan)
        if not storage.layout.is_raw:
            for _ in self.iter_blocks(storage, plan, own, rows):
                pass
        elif self._mapped:
            self._read_mapped(storage, plan, own, rows)
        else:
            self._read_raw(storage, plan, own, rows)

    def iter_blocks(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, rows: Bytes) -> Iterator[int]:
        """Read the blocks of the rows `wanted`, each into its row of `rows`, or all into the only one; yield each row.

        This is the hot path: one preadv and one decode per block, and as little Python as can be between them.
        """
        if storage.layout.is_raw:
            yield from self._iter_raw(storage, plan, wanted, rows)
            return
        decoder = self._decoder(storage)
        prefix = decoder.prefix_nbytes
        scratch = self.threads.memory("stored", prefix + int(plan.nbytes.max(initial=0)))
        decode_row, room = decoder.bind(scratch, rows), scratch.data[prefix:]
        only = len(rows) == 1
        preadv, clock = os.preadv, perf_counter_ns
        read_ns = decode_ns = nbytes_read = 0
        try:
            for shard, members in by_shard(plan, wanted):
                blocks, sizes = plan.blocks[members], plan.nbytes[members]
                with self.store.opened(shard) as descriptor:
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
                            self.store.fill(descriptor, shard, offset, np.frombuffer(room[:nbytes], np.uint8))
                        read = clock()
                        try:
                            decode_row(nbytes, place)
                        except CodecError as exc:
                            raise self.damaged(storage, block, shard, f"does not decode: {exc}") from exc
                        read_ns += read - began
                        decode_ns += clock() - read
                        nbytes_read += nbytes
                        yield row
        finally:
            self.threads.counters().count(nbytes_read, read_ns, decode_ns)

    def _are_special(self, storage: FieldStorage, blocks: Samples, sizes: Samples) -> npt.NDArray[np.bool_]:
        """Say which blocks are more, or less, than coded bytes that have been checked."""
        special: npt.NDArray[np.bool_] = (sizes == 0) | (sizes == storage.layout.block_nbytes)
        return special | self.checks.are_unchecked(storage, blocks)

    def _read_special(
        self, storage: FieldStorage, block: int, shard: int, offset: int, room: memoryview, target: Bytes
    ) -> bool:
        """Read a block that holds nothing, or raw bytes, or has not been checked. False: it is in `room`, coded."""
        nbytes = len(room)
        if nbytes == 0:
            self._read_zeros(storage, block, shard, target)
            return True
        is_coded = nbytes != storage.layout.block_nbytes
        stored = np.frombuffer(room, np.uint8) if is_coded else target
        began = perf_counter_ns()
        self.store.read_into(shard, offset, stored)
        if not is_coded:
            self.threads.counters().add(nbytes, began, perf_counter_ns())
        if not self.checks.is_intact(storage, block, shard, stored):
            self._reread_block(storage, block, shard, target)
            return True
        return not is_coded

    def _iter_raw(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, rows: Bytes) -> Iterator[int]:
        """As `iter_blocks`, of a field that is stored raw."""
        only, preadv, clock = len(rows) == 1, os.preadv, perf_counter_ns
        read_ns = 0
        try:
            for shard, members in by_shard(plan, wanted):
                unchecked = self.checks.are_unchecked(storage, plan.blocks[members])
                with self.store.opened(shard) as descriptor:
                    for row, offset, nbytes, is_unchecked in zip(
                        members.tolist(),
                        plan.offsets[members].tolist(),
                        plan.nbytes[members].tolist(),
                        unchecked.tolist(),
                        strict=True,
                    ):
                        target = rows[0 if only else row, :nbytes]  # the last block of a contiguous field may be short
                        began = clock()
                        if preadv(descriptor, (target.data,), offset) != nbytes:
                            self.store.fill(descriptor, shard, offset, target)
                        read_ns += clock() - began
                        if is_unchecked:
                            self._check_row(storage, int(plan.blocks[row]), shard, target)
                        yield row
        finally:
            self.threads.counters().count(int(plan.nbytes[wanted].sum()), read_ns, 0)

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
            with self.store.opened(shard) as descriptor:
                for offset, start, length in zip(
                    offsets[first].tolist(), places.tolist(), (lengths * nbytes).tolist(), strict=True
                ):
                    target = memory[start : start + length]
                    if preadv(descriptor, (target,), offset) != length:
                        self.store.fill(descriptor, shard, offset, np.frombuffer(target, np.uint8))
        self.threads.counters().add(len(wanted) * nbytes, began, perf_counter_ns())
        self._check_rows(storage, plan, wanted, rows)

    def _read_mapped(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, out: Bytes) -> None:
        """Copy raw samples out of the mapped files, and check those that have not been checked yet."""
        began = perf_counter_ns()
        for shard, members in by_shard(plan, wanted):
            self._maps.copy(storage, plan, shard, members, out)
        self.threads.counters().add(storage.layout.sample_nbytes * len(wanted), began, perf_counter_ns())
        self._check_rows(storage, plan, wanted, out)

    def _check_rows(self, storage: FieldStorage, plan: BlockPlan, wanted: Samples, rows: Bytes) -> None:
        """Check those raw samples, a block each, that have not been checked yet."""
        for row in wanted[self.checks.are_unchecked(storage, plan.blocks[wanted])].tolist():
            self._check_row(storage, int(plan.blocks[row]), int(plan.shards[row]), rows[row])

    def _check_row(self, storage: FieldStorage, block: int, shard: int, stored: Bytes) -> None:
        if not self.checks.is_intact(storage, block, shard, stored):
            self._reread_block(storage, block, shard, stored)

    def _read_zeros(self, storage: FieldStorage, block: int, shard: int, target: Bytes) -> None:
        """Fill in a block of which no byte is stored; its chunk, a mark of 172 bytes, must still say that it is so."""
        target.fill(0)
        unchecked = self.checks.unchecked(storage)
        if unchecked is not None and unchecked[block]:
            place = int(storage.chunk_starts[shard]) + chunk_in_shard(storage, block, shard)
            if checksum(self._read_stored_chunk(storage, block, shard)) != int(storage.chunk_checksums[place]):
                self._reread_block(storage, block, shard, target)
                return
            self.checks.note(storage, block, shard)

    def _reread_block(self, storage: FieldStorage, block: int, shard: int, out: Bytes) -> None:
        """The stored bytes are not ours: find out whether they were moved or rewritten, or are damaged."""
        layout = storage.layout
        first = first_sample(self.info, storage, block, shard)
        rows = out.view(layout.stored_dtype).reshape(-1, *layout.field.shape)
        count = min(len(rows), int(self.info.starts[shard + 1]) - first)
        if len(self.info.shards) > 1:
            fresh = refresh_shard(self.info, shard)
            if not np.array_equal(fresh.storage[storage.name].chunk_offsets, storage.chunk_offsets):
                log.warning(
                    "%s was repacked after its manifest was written; its own tables are used", self.store.path(shard)
                )
                self._use(fresh)
                self._read_block_anew(fresh.storage[storage.name], first, out)
                return
        if is_rewritten(storage, self._read_stored_chunk(storage, block, shard)):
            local = first - int(self.info.starts[shard])
            self._read_through_hdf5(storage, shard, np.arange(local, local + count), rows[:count])
            return
        raise self.damaged(
            storage, block, shard, "is damaged or was changed: its stored bytes do not match their checksum"
        )

    def _read_block_anew(self, storage: FieldStorage, sample: int, out: Bytes) -> None:
        plan = plan_blocks(storage, self.info.starts, np.array([sample]))
        if storage.needs_hdf5 and plan.offsets[0] == THROUGH_HDF5:
            rows = out.view(storage.layout.stored_dtype).reshape(-1, *storage.layout.field.shape)
            shard, local = int(plan.shards[0]), int(plan.local[0])
            count = min(len(rows), int(self.info.starts[shard + 1]) - sample)
            self._read_through_hdf5(storage, shard, np.arange(local, local + count), rows[:count])
            return
        for _ in self.iter_blocks(storage, plan, _ZERO, out[np.newaxis]):
            pass

    def damaged(self, storage: FieldStorage, block: int, shard: int, what: str) -> ChecksumError:
        where = describe_block(self.info, storage, block, shard)
        return ChecksumError(f"{where} {what}. Restore the file, or convert it again")

    def _read_stored_chunk(self, storage: FieldStorage, block: int, shard: int) -> bytes:
        place = int(storage.chunk_starts[shard]) + chunk_in_shard(storage, block, shard)
        return self.store.read(shard, int(storage.chunk_offsets[place]), int(storage.chunk_nbytes[place]))

    def own_rows(self, storage: FieldStorage, plan: BlockPlan) -> Samples:
        """Return the rows that are read beside libhdf5."""
        if not storage.needs_hdf5:
            return np.arange(len(plan.offsets))
        return np.flatnonzero(plan.offsets != THROUGH_HDF5)

    def read_foreign(self, storage: FieldStorage, plan: BlockPlan, out: Array) -> None:
        """Read what libhdf5 must read into its rows of `out`, in stored dtype, one row per sample."""
        rows = np.flatnonzero(plan.offsets == THROUGH_HDF5)
        for shard, members in by_shard(plan, rows):
            part = np.empty((len(members), *storage.layout.field.shape), storage.layout.stored_dtype)
            self._read_through_hdf5(storage, shard, plan.local[members], part)
            out[members] = part.reshape(len(members), *out.shape[1:])

    def _read_through_hdf5(self, storage: FieldStorage, shard: int, rows: Samples, out: Array) -> None:
        self.store.check_same(shard)
        hdf5.read_rows(self.store.path(shard), storage.name, rows, out)
        self.store.check_same(shard)  # libhdf5 opens the path, which may be given to another file at any time

    def _decoder(self, storage: FieldStorage) -> BlockDecoder:
        decoder = self._decoders.get(storage.name)
        if decoder is None:
            decoder = self._decoders[storage.name] = storage.layout.codec.block_decoder(storage.block_header)
        return decoder
