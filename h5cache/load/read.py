"""Read samples into caller memory: pread, checksum, decode. libhdf5 only where a file is no longer as we wrote it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import BlockDecoder, Blosc2, is_own_frame
from h5cache.errors import ChecksumError, CodecError
from h5cache.format import hdf5
from h5cache.format.encode import checksum
from h5cache.format.manifest import refresh_shard
from h5cache.format.open import read_dataset_index
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage
from h5cache.load.plan import BlockPlan, plan_blocks
from h5cache.quantise import expand
from h5cache.store.local import LocalStore

__all__ = ["VERIFY_MODES", "SampleReader"]

log = logging.getLogger(__name__)

#: When stored bytes are checked: a block's first read in this process, every read, or no read.
VERIFY_MODES = ("first", "always", "never")

Bytes = npt.NDArray[np.uint8]


class SampleReader:
    """Read samples of a dataset by number. Thread-safe; pickles as paths and tables, without descriptors."""

    def __init__(self, info: DatasetInfo, verify: str = "first") -> None:
        if verify not in VERIFY_MODES:
            raise ValueError(f"verify must be one of {', '.join(VERIFY_MODES)}, got {verify!r}")
        self._info = info
        self._verify = verify
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {"info": self._info, "verify": self._verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._info, self._verify = state["info"], state["verify"]
        self._start()

    @property
    def info(self) -> DatasetInfo:
        return self._info

    def close(self) -> None:
        """Close descriptors; idempotent. A later read opens them again."""
        self._store.close()

    def read(self, name: str, samples: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Write the samples, in the order asked, into `out`: C-contiguous `(len(samples), *shape)`, stored dtype.

        ChecksumError names file, field, chunk and key of a sample whose stored bytes have changed.
        """
        resident = self._info.resident.get(name)
        if resident is not None:
            np.take(resident, samples, axis=0, out=out, mode="clip")
            return
        storage = self._info.storage[name]
        plan = plan_blocks(storage, self._info.starts, samples)
        foreign = plan.offsets == THROUGH_HDF5
        if foreign.any():
            self._read_through_hdf5(storage, plan, np.flatnonzero(foreign), out)
        ours = np.flatnonzero(~foreign)
        if storage.layout.block_samples == 1:
            for row, block, shard, offset, nbytes in zip(
                ours.tolist(),
                plan.blocks[ours].tolist(),
                plan.shards[ours].tolist(),
                plan.offsets[ours].tolist(),
                plan.nbytes[ours].tolist(),
                strict=True,
            ):
                self._read_block(storage, block, shard, offset, nbytes, out[row : row + 1])
        elif len(ours):
            self._read_shared(storage, plan, ours, out)

    def _read_shared(
        self, storage: FieldStorage, plan: BlockPlan, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]
    ) -> None:
        """Decode each block once and deal its samples to their rows."""
        layout = storage.layout
        scratch = np.empty((layout.block_samples, *layout.field.shape), layout.field.stored_dtype)
        _, first, group = np.unique(plan.blocks[rows], return_index=True, return_inverse=True)
        order = np.argsort(group, kind="stable")
        bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
        for number, lead in enumerate(first.tolist()):
            row = int(rows[lead])
            nbytes = int(plan.nbytes[row])
            # The last block of a contiguous field may be short.
            target = scratch[: nbytes // layout.sample_nbytes] if layout.is_raw else scratch
            self._read_block(
                storage, int(plan.blocks[row]), int(plan.shards[row]), int(plan.offsets[row]), nbytes, target
            )
            members = rows[order[bounds[number] : bounds[number + 1]]]
            out[members] = target[plan.places[members]]

    def _read_block(
        self, storage: FieldStorage, block: int, shard: int, offset: int, nbytes: int, out: npt.NDArray[Any]
    ) -> None:
        """Read and decode one block into `out`, C-contiguous rows of the field."""
        if storage.table is not None:
            codes = np.empty(out.shape, np.uint8)
            if self._read_stored(storage, block, shard, offset, nbytes, codes):
                expand(codes, storage.table, out, storage.layout.field.channel_axis)
                return
        elif self._read_stored(storage, block, shard, offset, nbytes, out):
            return
        self._reread_block(storage, block, shard, out)

    def _read_stored(
        self, storage: FieldStorage, block: int, shard: int, offset: int, nbytes: int, out: npt.NDArray[Any]
    ) -> bool:
        """As `_read_block`, without expanding codes; False where the stored bytes are not those of the checksum."""
        flat = out.reshape(-1).view(np.uint8)
        if nbytes == 0:
            flat.fill(0)
            return True
        if nbytes == flat.size:
            self._store.read_into(shard, offset, flat)
            return self._is_intact(storage, block, flat)
        decoder = self._decoder(storage)
        scratch = self._scratch(decoder.prefix_nbytes + nbytes)
        stored = scratch[decoder.prefix_nbytes : decoder.prefix_nbytes + nbytes]
        self._store.read_into(shard, offset, stored)
        if not self._is_intact(storage, block, stored):
            return False
        try:
            decoder.decode_prefixed(scratch, nbytes, flat)
        except CodecError as exc:
            raise ChecksumError(f"{self._where(storage, block, shard)} does not decode: {exc}") from exc
        return True

    def _is_intact(self, storage: FieldStorage, block: int, stored: Bytes) -> bool:
        if self._verify == "never":
            return True
        seen = self._seen.get(storage.name)
        if seen is None:
            seen = self._seen.setdefault(storage.name, np.zeros(len(storage.block_checksums), bool))
        if seen[block] and self._verify == "first":
            return True
        if checksum(stored) != int(storage.block_checksums[block]):
            return False
        seen[block] = True
        return True

    def _reread_block(self, storage: FieldStorage, block: int, shard: int, out: npt.NDArray[Any]) -> None:
        """The stored bytes are not ours: find out whether they were moved or rewritten, or are damaged."""
        if len(self._info.shards) > 1:
            fresh = refresh_shard(self._info, shard)
            if not np.array_equal(fresh.storage[storage.name].chunk_offsets, storage.chunk_offsets):
                log.warning(
                    "%s was repacked after the manifest was written; its own tables are used", self._store.path(shard)
                )
                self._info = fresh
                self._start()
                first = self._first_sample(storage, block, shard)
                samples = np.arange(first, first + len(out))
                self.read(storage.name, samples, out)
                return
        if isinstance(storage.layout.codec, Blosc2) and not self._holds_own_frame(storage, block, shard):
            first = self._first_sample(storage, block, shard) - int(self._info.starts[shard])
            rows = np.arange(first, first + len(out))
            self._read_rows(storage, shard, rows, out)
            return
        raise ChecksumError(
            f"{self._where(storage, block, shard)} is damaged or was changed: its stored bytes do not match their "
            "checksum. Restore the file, or convert it again"
        )

    def _holds_own_frame(self, storage: FieldStorage, block: int, shard: int) -> bool:
        chunk = self._chunk(storage, block, shard)
        place = int(storage.chunk_starts[shard]) + chunk
        return is_own_frame(
            self._store.read(shard, int(storage.chunk_offsets[place]), int(storage.chunk_nbytes[place]))
        )

    def _read_through_hdf5(
        self, storage: FieldStorage, plan: BlockPlan, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]
    ) -> None:
        for shard in np.unique(plan.shards[rows]).tolist():
            members = rows[plan.shards[rows] == shard]
            values = np.empty((len(members), *out.shape[1:]), out.dtype)
            self._read_rows(storage, shard, plan.local[members], values)
            out[members] = values

    def _read_rows(self, storage: FieldStorage, shard: int, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        with self._store.opened(shard):  # says so if the file is no longer the one that was opened
            pass
        if storage.table is None:
            hdf5.read_rows(self._store.path(shard), storage.name, rows, out)
            return
        codes = np.empty(out.shape, np.uint8)
        hdf5.read_rows(self._store.path(shard), storage.name, rows, codes)
        expand(codes, storage.table, out, storage.layout.field.channel_axis)

    def _chunk(self, storage: FieldStorage, block: int, shard: int) -> int:
        if storage.layout.contiguous:
            return 0
        return (block - int(storage.block_starts[shard])) // storage.layout.blocks_per_chunk

    def _first_sample(self, storage: FieldStorage, block: int, shard: int) -> int:
        in_shard = (block - int(storage.block_starts[shard])) * storage.layout.block_samples
        return int(self._info.starts[shard]) + in_shard

    def _where(self, storage: FieldStorage, block: int, shard: int) -> str:
        first = self._first_sample(storage, block, shard)
        stop = min(first + storage.layout.block_samples, int(self._info.starts[shard + 1]))
        return describe_place(self._info, shard, storage.name, self._chunk(storage, block, shard), first, stop)

    def _decoder(self, storage: FieldStorage) -> BlockDecoder:
        decoder = self._decoders.get(storage.name)
        if decoder is None:
            decoder = self._decoders[storage.name] = storage.layout.codec.block_decoder(storage.block_header)
        return decoder

    def _scratch(self, nbytes: int) -> Bytes:
        """This thread's memory for stored bytes, at least `nbytes`."""
        scratch: Bytes | None = getattr(self._local, "scratch", None)
        if scratch is None or scratch.size < nbytes:
            scratch = self._local.scratch = np.empty(nbytes + nbytes // 2, np.uint8)
        return scratch

    def _start(self) -> None:
        self._store = LocalStore(self._info.shards)
        self._decoders: dict[str, BlockDecoder] = {}
        self._seen: dict[str, npt.NDArray[np.bool_]] = {}
        self._local = threading.local()


def describe_place(info: DatasetInfo, shard: int, field: str, chunk: int, start: int, stop: int) -> str:
    """Say where samples lie, with their keys: what a person needs to find a damaged one."""
    try:
        keys: Sequence[str] = read_dataset_index(info)["key"][start:stop].tolist()
    except (OSError, ValueError):
        keys = []
    named = [key for key in keys if key]
    span = f"sample {start}" if stop - start == 1 else f"samples {start} to {stop - 1}"
    key = f" (key {named[0]!r}{f' to {named[-1]!r}' if len(named) > 1 else ''})" if named else ""
    return f"{info.shards[shard].path}: field {field!r}, chunk {chunk}, {span}{key}"
