"""Build a dataset of a known schema part by part. Survives being killed: what is finished is found again."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from h5cache.errors import SchemaError
from h5cache.format.join import read_part, replay_part
from h5cache.format.layout import is_resident, plan_chunking
from h5cache.format.locate import read_plans
from h5cache.format.part import PartConflict, PartWriter, Rows
from h5cache.format.parts import PartsFolder
from h5cache.format.publish import partial_path, remove
from h5cache.format.shard import FieldPlan
from h5cache.format.tables import IndexRows
from h5cache.schema import Field, Schema

__all__ = ["Builder", "RunDescription", "plan_part_samples"]

log = logging.getLogger(__name__)

#: Samples that are decoded at once when a part is written anew.
REPLAY_SAMPLES = 64


@dataclass(frozen=True)
class RunDescription:
    """What makes a run this one and not another: a resumed run must have the same."""

    schema: Schema
    part_samples: int | None
    classes: tuple[str, ...]
    provenance: Mapping[str, Any]
    #: Fields whose exact codes did not hold for a later sample: stored as floats.
    as_floats: tuple[str, ...] = ()

    def to_config(self) -> dict[str, Any]:
        return {
            "fields": [[name, field.to_config()] for name, field in self.schema.items()],
            "part_samples": self.part_samples,
            "classes": list(self.classes),
            "provenance": dict(self.provenance),
            "as_floats": list(self.as_floats),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunDescription:
        return cls(
            schema=Schema(tuple((name, Field.from_config(field)) for name, field in config["fields"])),
            part_samples=config["part_samples"],
            classes=tuple(config["classes"]),
            provenance=config["provenance"],
            as_floats=tuple(config["as_floats"]),
        )

    @property
    def stored_schema(self) -> Schema:
        """The schema with what was learnt about exact codes."""
        never = {name: replace(self.schema[name], exact="never") for name in self.as_floats}
        return Schema(tuple((name, never.get(name, field)) for name, field in self.schema.items()))


def plan_part_samples(schema: Schema, wanted: int) -> int:
    """Return `wanted` rounded up so that every part but the last ends with whole chunks of every field."""
    chunks = [1]
    for field in schema.values():
        if is_resident(field):
            continue
        for codes in {False, field.may_be_coded_exactly}:
            chunks.append(plan_chunking(field, codes, True, None)[1])
    step = math.lcm(*chunks)
    return -(-max(1, wanted) // step) * step


class Builder:
    """Append rows; parts are finished, checked and committed as they fill. Not thread-safe.

    The caller holds the output's lock. Rows must fit the schema.
    """

    def __init__(self, parts: PartsFolder, run: RunDescription) -> None:
        self._parts = parts
        self._run = run
        self._part: PartWriter | None = None
        self._plans: dict[str, FieldPlan] = {}
        self._num_committed = self._adopt_finished()
        self.num_done = self._num_committed * (run.part_samples or 0)

    @property
    def run(self) -> RunDescription:
        return self._run

    @property
    def num_committed(self) -> int:
        """Finished parts: what a resumed run would find."""
        return self._num_committed

    def append(self, rows: Rows, index: IndexRows) -> None:
        start, count = 0, len(index)
        while start < count:
            part = self._current()
            stop = count if self._run.part_samples is None else min(count, start + self._room(part))
            piece = {name: array[start:stop] for name, array in rows.items()}
            try:
                part.append(piece, index[start:stop])
            except PartConflict as conflict:
                # What was taken before the conflict is in the part; the rest comes round again.
                stop = start + conflict.num_taken
                self._store_as_floats(conflict)
            self.num_done += stop - start
            start = stop
            if self._run.part_samples is not None and self._room(self._current()) == 0:
                self._commit()

    def finish(self, provenance: Mapping[str, Any] | None = None) -> None:
        """Commit the last part. A dataset without samples still gets one.

        `provenance` replaces the run's in that part: what is known only at the end.
        """
        if provenance is not None:
            self._run = replace(self._run, provenance=provenance)
        if self._part is not None or self._num_committed == 0:
            self._current()
            self._commit()

    def abort(self) -> None:
        """Drop the part that is being written; finished ones stay. Idempotent."""
        if self._part is not None:
            self._part.abort()
            self._part = None

    def _current(self) -> PartWriter:
        if self._part is None:
            path = partial_path(self._parts.part_path(self._num_committed))
            self._part = PartWriter(path, self._run.stored_schema, self._plans)
        return self._part

    def _room(self, part: PartWriter) -> int:
        return (self._run.part_samples or 0) - part.num_samples

    def _commit(self) -> None:
        part = self._current()
        part.finish(self._run.classes, self._run.provenance)
        self._plans = part.plans
        self._parts.commit(self._num_committed)
        self._part = None
        self._num_committed += 1

    def _adopt_finished(self) -> int:
        """Take over the finished parts of a run that stopped; a last, shorter one is written again."""
        self._parts.clear_unfinished()
        count = 0
        for number, path in enumerate(self._parts.finished()):
            if read_part(path).num_samples != self._run.part_samples:
                remove(path)
                break
            self._rewrite_codes(number)
            count += 1
        self._plans = self._read_plans(count)
        return count

    def _read_plans(self, count: int) -> dict[str, FieldPlan]:
        """Return the decisions of the first part, with what codes mean in all of the first `count`."""
        plans: dict[str, FieldPlan] = {}
        for number in range(count):
            for name, own in read_plans(self._parts.part_path(number)).items():
                first = plans.setdefault(name, own)
                if first.table is not None and own.table is not None:
                    plans[name] = replace(first, table=first.table.union(own.table))
        return plans

    def _store_as_floats(self, conflict: PartConflict) -> None:
        """Write all parts anew with `conflict.field` as floats. Rare, and never wrong: codes must be exact."""
        if conflict.field in self._run.as_floats:
            raise SchemaError(str(conflict)) from conflict
        log.info("%s; the field is stored as %s instead", conflict, self._run.schema[conflict.field].dtype)
        self._run = replace(self._run, as_floats=(*self._run.as_floats, conflict.field))
        # Recorded first: a run that is killed in between finds out which parts are still to be rewritten.
        self._parts.describe(self._run.to_config())
        half_done = self._current()
        half_done.finish(self._run.classes, self._run.provenance)
        old = half_done.path + ".codes"
        os.replace(half_done.path, old)
        self._part = None
        for number in range(self._num_committed):
            self._rewrite_codes(number)
        self._plans = self._read_plans(self._num_committed)
        self._part = replay_part(old, half_done.path, self._run.stored_schema, self._plans, REPLAY_SAMPLES)
        remove(old)

    def _rewrite_codes(self, number: int) -> None:
        """Write a finished part anew if it still holds codes of a field that is stored as floats."""
        path = self._parts.part_path(number)
        plans = read_plans(path)
        if not any(plans[name].layout.codes for name in self._run.as_floats):
            return
        first = read_plans(self._parts.part_path(0)) if number else {}
        part = replay_part(path, partial_path(path), self._run.stored_schema, first, REPLAY_SAMPLES)
        part.finish(self._run.classes, self._run.provenance)
        self._parts.commit(number)
