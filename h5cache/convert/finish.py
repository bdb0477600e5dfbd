"""From finished parts to the published dataset: joined while the run goes on, holes filled where samples were bad."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.job import Job
from h5cache.convert.plan import plan_fill
from h5cache.convert.recipe import BadSample
from h5cache.convert.sync import sync_behind
from h5cache.errors import QuantiseConflictError
from h5cache.format.chunks import check_chunks
from h5cache.format.join import PartJoiner, read_part, select_samples
from h5cache.format.manifest import MANIFEST_NAME
from h5cache.format.parts import PartsFolder, is_file_output
from h5cache.format.publish import partial_path, publish_file, remove
from h5cache.value_table import ValueTable

__all__ = ["EarlyJoin", "find_conflict", "publish_job"]

log = logging.getLogger(__name__)


class EarlyJoin:
    """Copy parts of a file into the result as they are finished, in order: the disk works while workers compute.

    Gives up at the first hole, because the order of samples is then known only at the end. Idempotent `close`.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._next = 0
        self._stack = ExitStack()
        self._joiner: PartJoiner | None = None
        self._given_up = not is_file_output(job.plan.output)
        self._closed = False

    def advance(self, holes: Mapping[int, bool]) -> bool:
        """Copy the next part if it is finished; return whether it was.

        `holes` tells of every finished part whether it has any.
        Takes a tenth of a second for a part of 90 MB.
        """
        if self._given_up or self._next not in holes:
            return False
        if holes[self._next]:
            self.give_up()
            return False
        if self._joiner is None:
            out = partial_path(self._job.plan.output)
            self._joiner = PartJoiner(out, self._job.plan.num_samples)
            self._stack.callback(self._joiner.close)
            self._stack.enter_context(sync_behind(out))
        self._joiner.add(self._job.parts.part_path(self._next))
        self._next += 1
        return True

    def finish(self, holes: Mapping[int, bool], provenance: Mapping[str, Any]) -> bool:
        """Copy the parts that are left and close the result; False where there are holes to fill first."""
        if any(holes.values()):
            self.give_up()
        while not self._given_up and self._next < self._job.plan.num_parts:
            self.advance(holes)
        if self._joiner is None or self._given_up:
            return False
        self._joiner.finish(provenance)
        self._closed = True
        self._stack.close()
        return True

    def give_up(self) -> None:
        self._given_up = True
        self.close()

    def close(self) -> None:
        """Drop the result unless it was finished; the caller removes the file."""
        if self._joiner is None or self._closed:
            return
        self._closed = True
        # libhdf5 writes what it has buffered before it lets go of a file: on a full disk it needs room for that.
        os.truncate(partial_path(self._job.plan.output), 0)
        try:
            self._stack.close()
        except OSError as exc:
            log.debug("%s is thrown away: %s", partial_path(self._job.plan.output), exc)


def find_conflict(job: Job) -> str | None:
    """Return a field whose exact codes mean different values in different parts; None where all agree."""
    coded = [name for name, plan in job.plans.items() if plan.layout.codes]
    tables: dict[str, ValueTable] = {}
    for number in range(job.plan.num_parts if coded else 0):
        info = read_part(job.parts.part_path(number))
        for name in coded:
            own = info.storage[name].table
            if own is None:
                continue
            try:
                tables[name] = tables[name].union(own) if name in tables else own
            except QuantiseConflictError:
                return name
    return None


def publish_job(job: Job, early: EarlyJoin, bad: Sequence[BadSample], overwrite: bool) -> int:
    """Make the dataset of the finished parts and give it its name; return its bytes."""
    skipped = {"skipped": [[one.key, one.reason] for one in bad]} if bad else {}
    provenance = {**job.provenance, **skipped}
    holes = np.array(sorted(one.place for one in bad), np.int64)
    kept = plan_fill(job.plan.num_samples, holes)
    if is_file_output(job.plan.output):
        return _publish_file(job, early, kept, provenance, overwrite)
    return _publish_folder(job, kept, provenance, overwrite)


def _publish_file(
    job: Job, early: EarlyJoin, kept: npt.NDArray[np.int64], provenance: Mapping[str, Any], overwrite: bool
) -> int:
    out = partial_path(job.plan.output)
    holes = dict.fromkeys(range(job.plan.num_parts), len(kept) != job.plan.num_samples)
    if not early.finish(holes, provenance):
        paths = [job.parts.part_path(number) for number in range(job.plan.num_parts)]
        select_samples(paths, kept, out, provenance)
    check_chunks(read_part(out))
    job.parts.publish_joined(out, overwrite)
    return os.path.getsize(job.plan.output)


def _publish_folder(job: Job, kept: npt.NDArray[np.int64], provenance: Mapping[str, Any], overwrite: bool) -> int:
    step = job.plan.part_samples
    paths = []
    for number, start in enumerate(range(0, len(kept), step)):
        chosen = kept[start : start + step]
        part = job.plan.parts[number]
        if np.array_equal(chosen, np.arange(part.start, part.stop)):
            paths.append(job.parts.part_path(number))
        else:
            paths.append(_write_revised(job, job.parts.revised, number, chosen))
    for name in (job.lock_path, job.counters.path):
        remove(name)
    job.parts.publish_shards(paths, overwrite, provenance)
    return sum(os.path.getsize(path) for path in [*paths, os.path.join(job.plan.output, MANIFEST_NAME)])


def _write_revised(job: Job, revised: PartsFolder, number: int, samples: npt.NDArray[np.int64]) -> str:
    """Write a shard anew without its holes, under another name: the parts stay as they are until all is published."""
    path = revised.part_path(number)
    parts = np.unique(samples // job.plan.part_samples)
    paths = [job.parts.part_path(int(part)) for part in parts]
    # Numbers through the parts that are needed, all but the last of the run being full.
    local = np.searchsorted(parts, samples // job.plan.part_samples) * job.plan.part_samples
    select_samples(paths, local + samples % job.plan.part_samples, partial_path(path), job.part_provenance)
    check_chunks(read_part(partial_path(path)))
    publish_file(partial_path(path), path)
    return path
