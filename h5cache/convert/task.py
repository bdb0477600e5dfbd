"""One task: one part, from source files to a committed file, in one worker. Only a small result comes back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from h5cache.convert.guard import hold_task_lock
from h5cache.convert.progress import Counter, OpenCounter
from h5cache.convert.recipe import BadSample, Recipe, to_sample_rows
from h5cache.convert.sources.source import BadSampleError, Source
from h5cache.convert.sync import sync_behind
from h5cache.format.chunks import check_chunks
from h5cache.format.join import read_part, replay_part
from h5cache.format.part import PartConflict, PartWriter
from h5cache.format.publish import publish_file
from h5cache.format.shard import FieldPlan
from h5cache.format.tables import IndexRows
from h5cache.schema import Schema

__all__ = ["BAD_SAMPLES", "PartResult", "PartTask", "TaskStoppedError", "convert_part", "read_bad_samples"]

#: In a part's provenance: [place in the part, key, reason] of each hole. Parts with holes never become shards.
BAD_SAMPLES = "bad_samples"
#: Samples that are decoded at once when a part is written anew.
REPLAY_SAMPLES = 64


class TaskStoppedError(Exception):
    """The run was told to stop; the part is dropped."""


@dataclass(frozen=True, eq=False)
class PartTask:
    """Everything one part needs. Small when pickled: the source holds this part's samples alone."""

    number: int
    path: str
    partial: str
    #: First place of the part in the dataset's order.
    start: int
    source: Source
    recipe: Recipe
    plans: Mapping[str, FieldPlan]
    index: IndexRows
    classes: tuple[str, ...]
    provenance: Mapping[str, Any]
    counter: Counter
    #: Proves that the run that made this task is still the one at work.
    lock_path: str
    owner: str
    #: A finished part whose codes did not hold: it is written anew from itself, not from the source.
    replayed: bool = False

    @property
    def schema(self) -> Schema:
        return Schema(tuple((name, plan.layout.field) for name, plan in self.plans.items()))


@dataclass(frozen=True)
class PartResult:
    """What the parent must know of a part. `conflict` names a field whose exact codes do not hold; no part then."""

    number: int
    num_samples: int
    bad: tuple[BadSample, ...]
    nbytes: int
    conflict: str | None = None


def convert_part(task: PartTask, stopped: Callable[[], bool] = lambda: False) -> PartResult:
    """Convert, write, check and commit one part. Atomic: the part has its name and is complete, or is not there."""
    with hold_task_lock(task.lock_path, task.owner), task.counter.open() as counter:
        try:
            writer, bad = _replay(task) if task.replayed else _write(task, counter, stopped)
        except PartConflict as conflict:
            return PartResult(task.number, 0, (), 0, conflict=conflict.field)
        try:
            noted = {BAD_SAMPLES: [[one.place, one.key, one.reason] for one in bad]} if bad else {}
            writer.finish(task.classes, {**task.provenance, **noted})
            check_chunks(read_part(task.partial))
            publish_file(task.partial, task.path)
        except BaseException:
            writer.abort()
            raise
    return PartResult(task.number, len(task.index) - len(bad), tuple(bad), os.path.getsize(task.path))


def read_bad_samples(provenance: Mapping[str, Any]) -> tuple[BadSample, ...]:
    """Return the holes of a finished part."""
    return tuple(BadSample(*row) for row in provenance.get(BAD_SAMPLES, ()))


def _write(task: PartTask, counter: OpenCounter, stopped: Callable[[], bool]) -> tuple[PartWriter, list[BadSample]]:
    schema, bad = task.schema, []
    writer = PartWriter(task.partial, schema, task.plans, len(task.index))
    try:
        with sync_behind(task.partial):
            for slot, values in task.recipe.iter_values(task.source):
                if stopped():
                    raise TaskStoppedError
                index = task.index[slot : slot + 1]
                try:
                    if isinstance(values, BadSampleError):
                        raise values
                    rows = to_sample_rows(schema, values)
                except BadSampleError as exc:
                    bad.append(BadSample(task.start + slot, index["key"][0].decode(errors="replace"), str(exc)))
                    writer.append_zeros(index)
                else:
                    writer.append(rows, index)
                counter.set(slot + 1, writer.stored_nbytes)
    except BaseException:
        writer.abort()
        raise
    return writer, bad


def _replay(task: PartTask) -> tuple[PartWriter, list[BadSample]]:
    old = read_part(task.path)
    writer = replay_part(task.path, task.partial, task.schema, task.plans, REPLAY_SAMPLES, old.num_samples)
    return writer, list(read_bad_samples(old.provenance))
