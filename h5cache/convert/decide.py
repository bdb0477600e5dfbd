"""Decide how every field is stored, once, from the first samples of the order. The same whatever the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.recipe import BadSample, Recipe, Values, to_sample_rows
from h5cache.convert.sources.source import BadSampleError, Source
from h5cache.errors import H5CacheError, QuantiseConflictError
from h5cache.format.collect import ChunkCollector, collector_for
from h5cache.format.encode import encode_chunk
from h5cache.format.layout import is_resident, plan_chunking, plan_contiguous
from h5cache.format.rows import infer_schema
from h5cache.format.shard import FieldPlan
from h5cache.schema import Field, Schema

__all__ = ["Decision", "FirstSamples", "decide_fields", "load_first", "num_to_look_at"]

#: Samples that are looked at where a chunk holds more: enough to choose a codec, and little work for the parent.
LOOK_SAMPLES = 64
#: Bad samples in a row, from the very first, after which the fault is taken to be in the whole: a wrong transform.
MAX_BAD = 256


@dataclass(frozen=True, eq=False)
class FirstSamples:
    """The first good samples, in order; the schema is that of the first one."""

    schema: Schema
    values: tuple[Values, ...]

    def rows(self, schema: Schema) -> dict[str, npt.NDArray[Any]]:
        """Return them as rows of `schema`; those that do not fit are left out (they are bad, and a task says so)."""
        fitting = []
        for values in self.values:
            try:
                fitting.append(to_sample_rows(schema, values))
            except BadSampleError:
                continue
        return {name: np.concatenate([rows[name] for rows in fitting]) for name in schema}


@dataclass(frozen=True)
class Decision:
    """How the fields are stored, and what that comes to."""

    plans: Mapping[str, FieldPlan]
    #: Per sample, as far as the first samples tell.
    stored_nbytes: float

    @property
    def sample_nbytes(self) -> int:
        return sum(plan.layout.field.sample_nbytes for plan in self.plans.values())


def load_first(source: Source, recipe: Recipe, order: npt.NDArray[np.int64]) -> FirstSamples:
    """Convert samples from the start of the order until there are enough good ones to decide by."""
    good: list[Values] = []
    bad: list[BadSample] = []
    schema: Schema | None = None
    step = recipe.batch_size if recipe.per_batch else 1
    for start in range(0, len(order), step):
        piece = source.take(order[start : start + step])
        for sample, values in recipe.iter_values(piece):
            if isinstance(values, BadSampleError):
                key = piece.files.keys[sample].decode(errors="replace")
                bad.append(BadSample(start + sample, key, str(values)))
            else:
                schema = schema or sample_schema(source, recipe, values)
                good.append(values)
        if not good and len(bad) >= MAX_BAD:
            break
        if schema is not None and len(good) >= num_to_look_at(schema):
            break
    if schema is None:
        reason = f"; the first: {bad[0]}" if bad else ""
        raise H5CacheError(f"none of the first {len(bad)} samples could be converted{reason}")
    return FirstSamples(schema, tuple(good))


def sample_schema(source: Source, recipe: Recipe, values: Values) -> Schema:
    """Return the fields of a sample: as the source says, or as the values show."""
    if recipe.transform is None and source.schema is not None:
        return source.schema
    return sample_schema_of(values)


def sample_schema_of(values: Values) -> Schema:
    # As a batch of one: `infer_schema` would take the first axis of a sample without numbers for the batch's.
    return infer_schema({name: _one_row(value) for name, value in values.items()})


def _one_row(value: Any) -> Any:
    return value[None] if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)[np.newaxis]


def num_to_look_at(schema: Schema) -> int:
    wanted = [1]
    for field in schema.values():
        if not is_resident(field):
            for codes in {False, field.may_be_coded_exactly}:
                block_samples, chunk_samples = plan_chunking(field, codes, True, None)
                wanted.append(min(chunk_samples, max(LOOK_SAMPLES, block_samples)))
    return max(wanted)


def decide_fields(first: FirstSamples, schema: Schema, num_samples: int, as_floats: Sequence[str] = ()) -> Decision:
    """Choose codes and codec of every field. `as_floats` names those whose exact codes did not hold."""
    never = {name: replace(schema[name], exact="never") for name in as_floats}
    schema = Schema(tuple((name, never.get(name, field)) for name, field in schema.items()))
    rows = first.rows(schema)
    plans: dict[str, FieldPlan] = {}
    stored = 0.0
    for name, field in schema.items():
        try:
            plans[name], nbytes = _decide_field(field, rows[name], num_samples)
        except QuantiseConflictError:
            # The first rows allowed codes, later ones among the first samples did not.
            plans[name], nbytes = _decide_field(replace(field, exact="never"), rows[name], num_samples)
        stored += nbytes
    return Decision(plans, stored)


def _decide_field(field: Field, rows: npt.NDArray[Any], num_samples: int) -> tuple[FieldPlan, float]:
    collector = collector_for(field, None)
    if not isinstance(collector, ChunkCollector):
        return collector.plan, field.sample_nbytes
    plan = _decide_chunks(collector, rows, num_samples)
    return plan, _stored_per_sample(plan, rows)


def _decide_chunks(collector: ChunkCollector, rows: npt.NDArray[Any], num_samples: int) -> FieldPlan:
    """Let the collector decide as it would for a writer, on its first chunk; few rows are repeated to fill it."""
    taken = 0
    while collector.plan is None and taken < num_samples:
        count = min(collector.room or 1, num_samples - taken)
        chosen = np.arange(taken, taken + count) % len(rows)
        collector.add(collector.prepare(rows[chosen]))
        taken += count
    plan = collector.plan
    if plan is None:
        _, end = collector.finish()
        plan = FieldPlan(end.layout, end.quantiser)
    # Without the table: values that a task meets are united at the end.
    return FieldPlan(plan_contiguous(plan.layout), plan.quantiser)


def _stored_per_sample(plan: FieldPlan, rows: npt.NDArray[Any]) -> float:
    layout = plan.layout
    count = min(len(rows), layout.chunk_samples)
    chosen = rows[:count]
    if plan.quantiser is not None:
        chosen, _ = plan.quantiser.encode(np.ascontiguousarray(chosen), layout.field.channel_axis)
    spans = encode_chunk(layout, chosen).spans
    blocks = -(-count // layout.block_samples)
    return float(spans.nbytes[:blocks].sum()) / min(blocks * layout.block_samples, count)
