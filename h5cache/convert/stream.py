"""Convert an iterable: samples come once, in their own order, so one process writes them as they arrive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.decide import sample_schema_of
from h5cache.convert.options import ConvertOptions
from h5cache.convert.plan import plan_schema, plan_shard_samples
from h5cache.convert.problems import BadInputsError
from h5cache.convert.progress import ProgressBar
from h5cache.convert.recipe import BadSample, Recipe, Values, split_values, to_sample_rows
from h5cache.convert.record import Origin, make_provenance
from h5cache.convert.result import ConvertResult, check_output
from h5cache.convert.sources import BadSampleError, IterableSource
from h5cache.errors import SchemaError
from h5cache.format.build import Builder, RunDescription, plan_part_samples
from h5cache.format.part import make_index
from h5cache.format.parts import PartsFolder, is_file_output
from h5cache.format.publish import lock_output
from h5cache.schema import Schema

__all__ = ["convert_iterable"]

#: Samples among which an arriving one is mixed, where so many fit into WINDOW_NBYTES.
WINDOW_SAMPLES = 4096
WINDOW_NBYTES = 512 * 1024 * 1024

Rows = dict[str, npt.NDArray[Any]]


def convert_iterable(source: IterableSource, out: str, recipe: Recipe, options: ConvertOptions) -> ConvertResult:
    """Write all samples of an iterable; keys are arrival numbers. Not resumable: an iterable cannot be asked again."""
    output = os.path.abspath(out)
    if options.split is not None:
        raise SchemaError("an iterable has no length and cannot be split; make a list or a Dataset of it")
    check_output(output, options.overwrite)
    bar = ProgressBar(None, 0, 0, options.progress)
    with lock_output(output):
        stream = _Stream(source, output, recipe, options)
        try:
            for number, values in enumerate(_iter_samples(source, recipe)):
                stream.add(number, values)
                bar.set(number + 1, 0)
            result = stream.finish()
            bar.finish()
            return result
        except BaseException:
            stream.abort()
            raise
        finally:
            bar.close()


def _iter_samples(source: IterableSource, recipe: Recipe) -> Iterator[Values | BadSampleError]:
    for batch in source.iter_batches():
        count = len(next(iter(batch.values())))
        if recipe.per_batch:
            yield from recipe.transform_batch(dict(enumerate(split_values(batch, count)))).values()
        else:
            for values in split_values(batch, count):
                yield recipe.transform_sample(values)


class _Stream:
    """What has arrived and is not written yet: a window, from which samples are drawn at random."""

    def __init__(self, source: IterableSource, output: str, recipe: Recipe, options: ConvertOptions) -> None:
        self._source = source
        self._output = output
        self._recipe = recipe
        self._options = options
        self._rng = np.random.Generator(np.random.PCG64(options.seed))
        self._schema: Schema | None = None
        self._parts: PartsFolder | None = None
        self._builder: Builder | None = None
        self._window: list[tuple[int, Rows]] = []
        self._window_samples = WINDOW_SAMPLES
        self._bad: list[BadSample] = []
        self._total = 0

    def add(self, number: int, values: Values | BadSampleError) -> None:
        self._total += 1
        try:
            if isinstance(values, BadSampleError):
                raise values
            schema = self._schema or self._open(values)
            rows = to_sample_rows(schema, values)
        except BadSampleError as exc:
            self._bad.append(BadSample(number, str(number), str(exc)))
            return
        self._window.append((number, {name: array.copy() for name, array in rows.items()}))
        if len(self._window) >= self._window_samples:
            self._write(len(self._window) // 2)

    def finish(self) -> ConvertResult:
        self._write(len(self._window))
        if self._bad and (self._options.on_error == "report" or self._builder is None):
            raise BadInputsError(self._bad, self._total, self._output)
        if self._builder is None or self._parts is None:
            raise SchemaError("the iterable gave no samples; there is nothing to convert")
        skipped = {"skipped": [[one.key, one.reason] for one in self._bad]} if self._bad else {}
        provenance = {**self._builder.run.provenance, **skipped}
        self._builder.finish(provenance)
        paths = self._parts.finished()
        nbytes = sum(os.path.getsize(path) for path in paths)
        if is_file_output(self._output):
            self._parts.publish(self._options.overwrite)
        else:
            self._parts.publish_shards(paths, self._options.overwrite, provenance)
        kept = self._total - len(self._bad)
        return ConvertResult((self._output,), kept, nbytes, tuple(self._bad), kept)

    def abort(self) -> None:
        if self._builder is not None and self._parts is not None:
            self._builder.abort()
            self._parts.clear()

    def _open(self, values: Values) -> Schema:
        schema = plan_schema(sample_schema_of(values), self._options.codec, None)
        sample_nbytes = sum(field.sample_nbytes for field in schema.values())
        self._window_samples = max(2, min(WINDOW_SAMPLES, WINDOW_NBYTES // sample_nbytes))
        part_samples = None
        if not is_file_output(self._output):
            part_samples = plan_part_samples(schema, plan_shard_samples(sample_nbytes, self._options.shard_size))
        provenance = make_provenance(Origin.of(self._source, self._recipe), self._options, None)
        run = RunDescription(schema, part_samples, self._source.classes, provenance)
        found = PartsFolder.find(self._output)
        if found is not None:
            found[0].clear()  # an iterable's own, killed: it cannot be gone on with
        self._parts = PartsFolder.plan(self._output, run.to_config())
        self._parts.describe(run.to_config())
        self._builder, self._schema = Builder(self._parts, run), schema
        return schema

    def _write(self, count: int) -> None:
        """Write `count` samples of the window, drawn at random (in order of arrival where not shuffled)."""
        if self._builder is None or not count:
            return
        size = len(self._window)
        order = self._rng.permutation(size) if self._options.shuffle else np.arange(size)
        chosen = [self._window[place] for place in order[:count].tolist()]
        # What stays keeps its order of arrival.
        self._window = [self._window[place] for place in sorted(order[count:].tolist())]
        rows = {name: np.concatenate([row[name] for _, row in chosen]) for name in chosen[0][1]}
        self._builder.append(rows, make_index([str(number) for number, _ in chosen], count))
