"""Uncompressed samples through a memory map: no system call per sample.

A file that is cut short while it is mapped kills the process (SIGBUS): for trusted local disks, only where asked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from h5cache.format.storage import FieldStorage
from h5cache.load.plan import BlockPlan
from h5cache.store.local import LocalStore

__all__ = ["MappedFiles"]

Bytes = npt.NDArray[np.uint8]


class MappedFiles:
    """Maps of a dataset's files, made on first use. Thread-safe: at worst a file is mapped twice."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._maps: dict[int, Bytes] = {}

    def copy(self, storage: FieldStorage, plan: BlockPlan, shard: int, rows: npt.NDArray[np.int64], out: Bytes) -> None:
        """Copy the raw samples of `rows`, all of one shard, into their rows of `out`."""
        mapped, nbytes = self._map(shard), storage.layout.sample_nbytes
        if not storage.layout.contiguous:
            for row, offset in zip(rows.tolist(), plan.offsets[rows].tolist(), strict=True):
                out[row] = mapped[offset : offset + nbytes]
            return
        first = int(plan.offsets[rows[0]]) - int(plan.local[rows[0]]) * nbytes
        stored = mapped[first : first + (int(plan.local[rows].max()) + 1) * nbytes].reshape(-1, nbytes)
        if len(rows) == len(out):
            np.take(stored, plan.local, axis=0, out=out, mode="clip")
        else:
            out[rows] = stored[plan.local[rows]]

    def _map(self, shard: int) -> Bytes:
        found = self._maps.get(shard)
        if found is None:
            self._store.check_same(shard)
            found = np.asarray(np.memmap(self._store.path(shard), np.uint8, mode="r"))
            self._store.check_same(shard)  # the path may have been given to another file in between
            found = self._maps.setdefault(shard, found)
        return found
