"""Any iterable, of samples or of ready batches. Not a `Source`: it has no length, no keys and no random access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .columns import check_rows, name_columns
from .naming import check_names, name_fields
from .source import SourceError

__all__ = ["IterableSource"]


class IterableSource:
    """Samples as they come: one process, arrival order, the number of arrival for a key.

    Args:
        iterable: samples (as of any dataset), or ready batches: a dict, tuple or list of arrays with one row per
            sample. A generator can be converted once; anything that `iter()` starts anew can be resumed.
        batched: whether its items are batches; None: they are if it is a torch DataLoader that makes batches.
        batch_size: samples per batch that single samples are stacked to.
    """

    kind: ClassVar[str] = "iterable"
    needs_torch: ClassVar[bool] = False
    needs_cv2: ClassVar[bool] = False

    def __init__(
        self,
        iterable: Iterable[Any],
        fields: Sequence[str] | None = None,
        batched: bool | None = None,
        batch_size: int = 256,
        classes: Sequence[str] = (),
    ) -> None:
        if not isinstance(iterable, Iterable):
            raise SourceError(f"{type(iterable).__name__} is neither a path, a dataset, arrays nor an iterable")
        if batch_size < 1:
            raise SourceError(f"batch_size must be at least 1, got {batch_size}")
        self._iterable = iterable
        self._fields = check_names(fields)
        self._batched = _makes_batches(iterable) if batched is None else batched
        self._batch_size = batch_size
        self._classes = tuple(classes)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    def fingerprint(self) -> Mapping[str, Any]:
        """What can be known without iterating: not the data."""
        return {
            "kind": self.kind,
            "fields": None if self._fields is None else list(self._fields),
            "batched": self._batched,
            "classes": list(self._classes),
        }

    def iter_batches(self) -> Iterator[dict[str, Any]]:
        """Yield batches, field name -> stacked rows, in order of arrival. Single samples are copied, batches are not.

        SourceError names the sample that does not fit the others.
        """
        if self._batched:
            for number, batch in enumerate(self._iterable):
                values = name_columns(batch, self._fields)
                check_rows(f"batch {number}", values)
                yield values
            return
        pending: list[dict[str, Any]] = []
        done = 0
        for sample in self._iterable:
            pending.append(name_fields(sample, self._fields))
            if len(pending) == self._batch_size:
                yield _stack(pending, done)
                done += len(pending)
                pending = []
        if pending:
            yield _stack(pending, done)


def _makes_batches(iterable: Any) -> bool:
    is_loader = any(kind.__module__.startswith("torch.utils.data") for kind in type(iterable).__mro__)
    return is_loader and getattr(iterable, "batch_sampler", None) is not None


def _stack(samples: Sequence[Mapping[str, Any]], first: int) -> dict[str, Any]:
    names = list(samples[0])
    for number, sample in enumerate(samples):
        if list(sample) != names:
            raise SourceError(f"sample {first + number} has the fields {', '.join(sample)}, others {', '.join(names)}")
    return {name: _stack_field(name, [sample[name] for sample in samples], first) for name in names}


def _stack_field(name: str, values: Sequence[Any], first: int) -> Any:
    shapes = [tuple(np.shape(value)) for value in values]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise SourceError(
                f"sample {first + number}, field {name!r}: shape {shape} where others have {shapes[0]}; samples of a "
                "dataset have one shape"
            )
    if hasattr(values[0], "detach"):
        import torch

        return torch.stack(list(values))
    stacked = np.asarray(values)
    if stacked.dtype.kind not in "biuf":
        raise SourceError(f"field {name!r}: {type(values[0]).__name__} cannot be stored; use arrays and numbers")
    return stacked
