"""One dataset of a conversion: its parts, which of them are finished already, and the tasks for the others."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.decide import Decision, FirstSamples, decide_fields
from h5cache.convert.options import ConvertOptions
from h5cache.convert.plan import PartPlan, RunPlan, plan_run, plan_schema
from h5cache.convert.problems import RunChangedError
from h5cache.convert.progress import CounterFile
from h5cache.convert.recipe import BadSample, Recipe
from h5cache.convert.record import (
    Origin,
    RunRecord,
    describe_change,
    is_same_but_for_files,
    make_fingerprint,
    make_provenance,
    plan_to_config,
    without_files,
)
from h5cache.convert.sources.source import Source, SourceFiles
from h5cache.convert.task import PartTask, read_bad_samples
from h5cache.errors import ChecksumError, FormatError, H5CacheError
from h5cache.format.chunks import check_chunks
from h5cache.format.join import read_part, read_part_index
from h5cache.format.open import open_dataset
from h5cache.format.parts import RUN_FILE, PartsFolder, is_file_output
from h5cache.format.publish import remove
from h5cache.format.shard import FieldPlan
from h5cache.format.tables import IndexRows
from h5cache.schema import Schema

__all__ = ["FinishedPart", "Job", "Target", "make_index", "open_job", "remove_leftovers"]

log = logging.getLogger(__name__)

TASK_LOCK = ".h5cache-tasks.lock"
COUNTERS = ".h5cache-progress"
#: What a run leaves in the folder of a file's parts. Nothing else there is ours to remove.
PART_FILE = re.compile(r"part-\d{5,}\.h5(\..*)?|\.h5cache-.*")


@dataclass(frozen=True, eq=False)
class Target:
    """A dataset to be: where it goes and which samples of the source it holds, in order."""

    split: str | None
    output: str
    samples: npt.NDArray[np.int64]
    index: IndexRows


@dataclass(frozen=True)
class FinishedPart:
    number: int
    num_samples: int
    nbytes: int
    bad: tuple[BadSample, ...]


@dataclass(frozen=True, eq=False)
class Job:
    """A target with everything decided. What is finished is looked up on disk."""

    target: Target
    source: Source
    recipe: Recipe
    plan: RunPlan
    record: RunRecord
    parts: PartsFolder
    provenance: Mapping[str, Any]

    @property
    def plans(self) -> Mapping[str, FieldPlan]:
        return self.record.decision.plans

    @property
    def lock_path(self) -> str:
        return os.path.join(self.parts.home, TASK_LOCK)

    @property
    def counters(self) -> CounterFile:
        return CounterFile(os.path.join(self.parts.home, COUNTERS))

    @property
    def part_provenance(self) -> dict[str, Any]:
        """Without the digest of all files: a part is still right when a file of another part is repaired."""
        return {**self.provenance, "source": without_files(self.provenance["source"])}

    def read_finished(self) -> dict[int, FinishedPart | None]:
        """Return the finished parts by number; None for one whose exact codes did not hold: it is to be replayed.

        A part that is not of this run (its files have changed since) is removed.
        """
        found: dict[int, FinishedPart | None] = {}
        for part in self.plan.parts:
            path = self.parts.part_path(part.number)
            if not os.path.exists(path):
                continue
            try:
                own = self._is_own(path, part)
                if own:
                    found[part.number] = self._read(path, part)
            except (FormatError, ChecksumError) as exc:
                own = False
                log.warning("%s; the part is converted again", exc)
            if not own:
                remove(path)
        return found

    def _is_own(self, path: str, part: PartPlan) -> bool:
        index = read_part_index(path)
        expected = self.target.index[part.start : part.stop]
        names = expected.dtype.names or ()
        return index.dtype.names == names and all(np.array_equal(index[name], expected[name]) for name in names)

    def _read(self, path: str, part: PartPlan) -> FinishedPart | None:
        info = read_part(path)
        check_chunks(info)  # now, not when it is joined: what is damaged is converted again
        for name, plan in self.plans.items():
            if info.storage[name].layout.to_config() != plan.layout.to_config():
                return None
        return FinishedPart(
            part.number, info.num_samples, info.shards[0].identity.nbytes, read_bad_samples(info.provenance)
        )

    def make_task(self, part: PartPlan, owner: str, replayed: bool) -> PartTask:
        path = self.parts.part_path(part.number)
        places = slice(part.start, part.stop)
        return PartTask(
            number=part.number,
            path=path,
            partial=f"{path}.{owner}.partial",
            start=part.start,
            source=self.source.take(self.target.samples[places]),
            recipe=self.recipe,
            plans=dict(self.plans),
            index=self.target.index[places],
            classes=self.source.classes,
            provenance=self.part_provenance,
            counter=self.counters.counter(part.number),
            lock_path=self.lock_path,
            owner=owner,
            replayed=replayed,
        )

    def clear_unfinished(self) -> None:
        """Remove all but finished parts; the whole where none is finished."""
        for path in (self.lock_path, self.counters.path):
            remove(path)
        self.parts.clear_unfinished()
        if not any(os.path.exists(self.parts.part_path(part.number)) for part in self.plan.parts):
            self.parts.clear()


def make_index(files: SourceFiles, samples: npt.NDArray[np.int64]) -> IndexRows:
    """Return the index table of some samples: key, and size and time of the file where there is one."""
    columns: dict[str, npt.NDArray[Any]] = {"key": files.keys[samples]}
    if files.nbytes is not None:
        columns["source_nbytes"] = files.nbytes[samples]
    if files.mtimes_ns is not None:
        columns["source_mtime_ns"] = files.mtimes_ns[samples]
    width = max(1, files.keys.dtype.itemsize)
    rows = np.zeros(len(samples), [(name, f"S{width}" if name == "key" else "<i8") for name in columns])
    for name, values in columns.items():
        rows[name] = values
    return rows


def open_job(
    target: Target,
    source: Source,
    recipe: Recipe,
    origin: Origin,
    options: ConvertOptions,
    first: Callable[[], FirstSamples],
    as_floats: tuple[str, ...],
) -> Job:
    """Go on with an unfinished run of this target, or plan a new one. The caller holds the output's lock.

    `first` loads the first samples; it is called only where something is still to be decided.
    """
    provenance = make_provenance(origin, options, target.split)
    fingerprint = make_fingerprint(provenance, options, target.output, target.index)

    def schema() -> Schema:
        return plan_schema(first().schema, options.codec, options.asked_samples(target.output))

    def decide(floats: tuple[str, ...]) -> Decision:
        return decide_fields(first(), schema(), len(target.samples), floats)

    def make(parts: PartsFolder, record: RunRecord) -> Job:
        plan = RunPlan(target.output, len(target.samples), record.part_samples)
        return Job(target, source, recipe, plan, record, parts, provenance)

    found = _find_run(target.output, fingerprint, options.overwrite)
    if found is None:
        _remove_nameless_parts(target.output)  # they would be taken for this run's
        decision = decide(as_floats)
        stored = decision.stored_nbytes
        plan = plan_run(target.output, len(target.samples), schema(), stored, options.part_samples, options.shard_size)
        parts = PartsFolder.plan(target.output, {**fingerprint, "source": without_files(provenance["source"])})
        record = RunRecord(fingerprint, decision, plan.part_samples, as_floats)
        parts.describe(record.to_config())
        return make(parts, record)
    parts, old = found
    floats = tuple(sorted({*old.as_floats, *as_floats}))
    if old.fingerprint == fingerprint and floats == old.as_floats:
        return make(parts, old)
    record = replace(old, fingerprint=fingerprint, decision=decide(floats), as_floats=floats)
    if old.fingerprint != fingerprint:
        _note_changed_files(parts, old, record, make(parts, record))
    # Recorded first: a run that is killed in between finds out which parts are still to be rewritten.
    parts.describe(record.to_config())
    return make(parts, record)


def _note_changed_files(parts: PartsFolder, old: RunRecord, record: RunRecord, job: Job) -> None:
    before, after = ([plan_to_config(plan) for plan in one.decision.plans.values()] for one in (old, record))
    if before != after:
        for part in job.plan.parts:
            remove(parts.part_path(part.number))
    kept = len(job.read_finished())
    log.warning(
        "%s: files of the source have changed since the run was interrupted; %d of %d parts are still good, the others "
        "are converted again",
        job.target.output,
        kept,
        job.plan.num_parts,
    )


def remove_leftovers(output: str) -> None:
    """Finish what a run left undone that was killed just after it had published: remove what it no longer needs."""
    if not is_file_output(output):
        PartsFolder.find(output)  # does it
        return
    if not os.path.isfile(output):
        return
    found = PartsFolder.find(output)
    if found is None:
        _remove_nameless_parts(output)
    elif _is_result_of(output, *found):
        found[0].clear()


def _is_result_of(output: str, parts: PartsFolder, config: Mapping[str, Any]) -> bool:
    """True where the run whose parts these are made `output`, and they are of no use any more.

    The same run may be under way again, with `overwrite`: it was described after the output was published.
    """
    if os.stat(output).st_mtime_ns < os.stat(os.path.join(parts.home, RUN_FILE)).st_mtime_ns:
        return False
    try:
        made = {name: value for name, value in open_dataset(output).provenance.items() if name != "skipped"}
    except (ValueError, OSError):
        return False  # not a dataset: nothing of ours
    # A run has a fingerprint, an iterable's its provenance alone. Without options a dataset is no converter's.
    run = config.get("fingerprint") or config.get("provenance") or {}
    return "options" in made and all(run.get(name) == made[name] for name in made)


def _remove_nameless_parts(output: str) -> None:
    """Remove parts of which nothing says what run they are of: it was killed while it removed them."""
    home = PartsFolder(output, "").home
    if not is_file_output(output) or not os.path.isdir(home):
        return
    for name in os.listdir(home):
        if PART_FILE.fullmatch(name):
            remove(os.path.join(home, name))
    if not os.listdir(home):
        os.rmdir(home)


def _find_run(output: str, fingerprint: Mapping[str, Any], overwrite: bool) -> tuple[PartsFolder, RunRecord] | None:
    found = PartsFolder.find(output)
    if found is None:
        return None
    parts, config = found
    try:
        record = RunRecord.from_config(config)
    except (KeyError, TypeError, ValueError, H5CacheError):
        record = None
    if record is not None and is_same_but_for_files(record.fingerprint, fingerprint):
        return parts, record
    if not overwrite:
        change = "something else" if record is None else describe_change(record.fingerprint, fingerprint)
        raise RunChangedError(
            errno.EEXIST,
            f"an unfinished run lies here that differs from this one ({change}); give the same source and options to "
            "go on with it, or overwrite=True (--overwrite) to start anew",
            parts.home,
        )
    for name in (TASK_LOCK, COUNTERS):
        remove(os.path.join(parts.home, name))
    parts.clear()
    return None
