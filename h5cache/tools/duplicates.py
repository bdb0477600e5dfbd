"""Find samples that a dataset holds more than once, by the checksums it has or by reading."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h5cache.format.encode import checksum
from h5cache.format.storage import THROUGH_HDF5
from h5cache.load.plan import plan_blocks
from h5cache.load.read import SampleReader
from h5cache.tools.survey import STEP_NBYTES, read_whole

__all__ = ["Duplicates", "find_duplicates"]

#: Where there are no checksums of single samples, so many decoded bytes are read to find duplicates.
DUPLICATE_NBYTES = 256 * 2**20

Samples = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of samples whose field is the same byte for byte, largest group first."""

    field: str
    num_looked_at: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def num_surplus(self) -> int:
        return sum(len(group) - 1 for group in self.groups)


def find_duplicates(reader: SampleReader, name: str) -> Duplicates:
    """Find samples whose field is the same byte for byte.

    By the checksums of all, where each sample has its own; else by reading as many samples as `DUPLICATE_NBYTES`
    allows. Samples of a single value are left out: they are blank rather than copies.
    """
    info = reader.info
    storage = info.storage[name]
    has_sums = len(storage.block_checksums) > 0 and storage.layout.block_samples == 1 and name not in info.resident
    if has_sums and not bool((storage.chunk_offsets == THROUGH_HDF5).any()):
        plan = plan_blocks(storage, info.starts, np.arange(info.num_samples))
        known = np.flatnonzero(plan.nbytes > 0)
        groups = _groups(known, storage.block_checksums[plan.blocks[known]])
        return Duplicates(name, info.num_samples, tuple(one for one in groups if not _is_blank(reader, name, one[0])))
    field = info.schema[name]
    count = min(info.num_samples, max(1, DUPLICATE_NBYTES // max(1, field.sample_nbytes)))
    step = max(1, STEP_NBYTES // max(1, field.sample_nbytes))
    sums = np.zeros(count, np.uint64)
    known = np.zeros(count, bool)
    for start in range(0, count, step):
        rows, read = read_whole(reader, name, np.arange(start, min(count, start + step)), [])
        flat = rows.reshape(len(rows), -1)
        known[read] = (flat != flat[:, :1]).any(axis=1)
        sums[read] = [checksum(np.ascontiguousarray(row).reshape(-1).view(np.uint8)) for row in rows]
    chosen = np.flatnonzero(known)
    return Duplicates(name, count, _groups(chosen, sums[chosen]))


def _is_blank(reader: SampleReader, name: str, sample: int) -> bool:
    rows, _ = read_whole(reader, name, np.array([sample]), [])
    field = reader.info.schema[name]
    if not len(rows):
        return False
    by_channel = np.moveaxis(rows[0], field.channel_axis, 0) if field.channel_axis is not None else rows
    flat = by_channel.reshape(len(by_channel), -1)
    return bool((flat == flat[:, :1]).all())


def _groups(samples: Samples, sums: npt.NDArray[np.uint64]) -> tuple[tuple[int, ...], ...]:
    order = np.argsort(sums, kind="stable")
    bounds = np.flatnonzero(np.diff(sums[order])) + 1
    groups = [group for group in np.split(samples[order], bounds) if len(group) > 1]
    return tuple(tuple(sorted(group.tolist())) for group in sorted(groups, key=lambda one: (-len(one), one.min())))
