"""What is done to each sample between its source and its rows: transform, batches, and what counts as bad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.sources.source import BadSampleError, Source
from h5cache.convert.transform import Transform
from h5cache.errors import SchemaError
from h5cache.format.rows import to_rows
from h5cache.schema import Schema

__all__ = ["BadSample", "Recipe", "Values", "to_sample_rows"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be converted: its place in the dataset's order, its key, and why."""

    place: int
    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


@dataclass(frozen=True)
class Recipe:
    """The user's own preprocessing; picklable (by cloudpickle) and the same in every process."""

    transform: Transform | None = None
    #: Samples that a batch transform gets at once. Batches begin anew with every part.
    batch_size: int = 256

    @property
    def per_batch(self) -> bool:
        return self.transform is not None and self.transform.per == "batch"

    def identity(self) -> dict[str, Any] | None:
        """JSON values that change when the preprocessing does."""
        if self.transform is None:
            return None
        batches = {"batch_size": self.batch_size} if self.per_batch else {}
        return {**self.transform.identity(), **batches}

    def iter_values(self, source: Source) -> Iterator[tuple[int, Values | BadSampleError]]:
        """Yield each sample's number and its values, or why there are none. In order, every sample once."""
        with _quiet_opencv(source):
            if self.per_batch:
                yield from self._iter_batches(source)
                return
            for sample in range(len(source)):
                yield sample, self._convert(source, sample)

    def transform_sample(self, values: Values) -> Values | BadSampleError:
        try:
            return values if self.transform is None else self.transform.apply(values)
        except BadSampleError as exc:
            return exc

    def _convert(self, source: Source, sample: int) -> Values | BadSampleError:
        try:
            values = source.load(sample)
        except BadSampleError as exc:
            return exc
        return self.transform_sample(values)

    def _iter_batches(self, source: Source) -> Iterator[tuple[int, Values | BadSampleError]]:
        for start in range(0, len(source), self.batch_size):
            loaded: dict[int, Values] = {}
            results: dict[int, Values | BadSampleError] = {}
            for sample in range(start, min(len(source), start + self.batch_size)):
                try:
                    loaded[sample] = source.load(sample)
                except BadSampleError as exc:
                    results[sample] = exc
            results |= self.transform_batch(loaded)
            yield from sorted(results.items(), key=lambda item: item[0])

    def transform_batch(self, loaded: Mapping[int, Values]) -> dict[int, Values | BadSampleError]:
        """Transform samples, by number, as one batch; one by one where that fails."""
        if self.transform is None or not loaded:
            return {}
        try:
            batch = self.transform.apply(stack_values(list(loaded.values())))
            return dict(zip(loaded, split_values(batch, len(loaded)), strict=True))
        except BadSampleError as exc:
            if len(loaded) == 1:
                return dict.fromkeys(loaded, exc)
        # One bad sample must not cost its batch: each is tried alone.
        results: dict[int, Values | BadSampleError] = {}
        for sample, values in loaded.items():
            results |= self.transform_batch({sample: values})
        return results


def stack_values(samples: Sequence[Values]) -> dict[str, Any]:
    """Return samples as one batch; BadSampleError where they have not one shape."""
    return {name: _stack(name, [sample[name] for sample in samples]) for name in samples[0]}


def _stack(name: str, values: Sequence[Any]) -> Any:
    if hasattr(values[0], "detach"):
        import torch

        try:
            return torch.stack(list(values))
        except RuntimeError as exc:
            raise BadSampleError(f"field {name!r}: the samples of a batch differ ({exc})") from exc
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError as exc:
        raise BadSampleError(f"field {name!r}: the samples of a batch differ in shape ({exc})") from exc


def split_values(batch: Values, count: int) -> list[Values]:
    for name, values in batch.items():
        if not hasattr(values, "__len__") or len(values) != count:
            got = f"{len(values)} rows" if hasattr(values, "__len__") else type(values).__name__
            raise BadSampleError(f"the batch transform returned {got} of field {name!r} for a batch of {count}")
    return [{name: values[row] for name, values in batch.items()} for row in range(count)]


def to_sample_rows(schema: Schema, values: Values) -> dict[str, npt.NDArray[Any]]:
    """Return one sample as rows of length 1, checked against the schema; BadSampleError where it does not fit."""
    try:
        rows = to_rows(schema, values)
    except SchemaError as exc:
        raise BadSampleError(str(exc)) from exc
    if any(len(row) != 1 for row in rows.values()):
        shapes = ", ".join(f"{name} {row.shape}" for name, row in rows.items())
        raise BadSampleError(f"not one sample but a batch: {shapes}")
    return rows


def _quiet_opencv(source: Source) -> AbstractContextManager[Any]:
    if not source.needs_cv2:
        return nullcontext()
    from h5cache.convert.pictures import opencv_in_worker

    return opencv_in_worker()
