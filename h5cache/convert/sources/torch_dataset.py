"""Any map-style torch `Dataset`, or any sequence of samples: whatever has `len()` and `[i]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from h5cache.convert.identity import describe

from .columns import as_numpy
from .naming import check_names, name_fields, to_own
from .source import BadSampleError, Numbers, Source, SourceError, SourceFiles, digest, number_keys

__all__ = ["MapDataset"]


class MapDataset(Source):
    """Samples of a dataset object: tuples, dicts, tensors, arrays, numbers or PIL pictures. Keys are their numbers.

    `classes` and `targets` are taken from the dataset where it has them, as torchvision's do. What h5cache cannot
    see (files that the dataset reads) is not part of the fingerprint: after changing them, convert with `overwrite`.
    """

    kind = "dataset"
    needs_torch = True

    def __init__(self, dataset: Any, fields: Sequence[str] | None = None) -> None:
        try:
            count = len(dataset)
        except TypeError as exc:
            raise SourceError(f"{type(dataset).__name__} has no len(): give it as an iterable") from exc
        if not count:
            raise SourceError(f"{type(dataset).__name__} has no samples")
        self._dataset = dataset
        self._count = count
        self._fields = check_names(fields)
        self._classes = _classes_of(dataset)
        self._labels = _labels_of(dataset, count)

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> SourceFiles:
        return SourceFiles(number_keys(self._count))

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def labels(self) -> Numbers | None:
        return self._labels

    def load(self, sample: int) -> Mapping[str, Any]:
        try:
            item = self._dataset[sample]
        except Exception as exc:  # a dataset is the user's code: whatever it raises concerns this sample
            raise BadSampleError(f"{type(self._dataset).__name__}[{sample}]: {type(exc).__name__}: {exc}") from exc
        try:
            values = name_fields(item, self._fields)
        except SourceError as exc:
            raise BadSampleError(str(exc)) from exc
        # A list hands out the user's own arrays; a Dataset makes its samples, or is trusted to know what it does.
        is_list = isinstance(self._dataset, list | tuple)
        return {name: to_own(value) for name, value in values.items()} if is_list else values

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "fields": None if self._fields is None else list(self._fields),
            "num_samples": self._count,
            "classes": list(self._classes),
            "labels": digest(self._labels),
            "dataset": _describe_samples(self._dataset, self._fields)
            if isinstance(self._dataset, list | tuple)
            else _describe_dataset(self._dataset),
        }


def _describe_dataset(dataset: Any) -> Any:
    """Its class's code, its transforms and arrays; not its other state, which may hold paths of this machine."""
    held = {
        name: digest(as_numpy(value))
        for name in ("data", "targets", "indices")
        if hasattr(value := getattr(dataset, name, None), "dtype") and hasattr(value, "shape")
    }
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple):  # torch.utils.data.TensorDataset
        held["tensors"] = digest(*(as_numpy(tensor) for tensor in tensors))
    transforms = {
        name: describe(getattr(dataset, name))
        for name in ("transform", "target_transform", "transforms")
        if getattr(dataset, name, None) is not None
    }
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # torch.utils.data.Subset
        return {
            "class": describe(type(dataset)),
            "indices": digest(np.asarray(indices)),
            "of": _describe_dataset(inner),
        }
    return {"class": describe(type(dataset)), "transforms": transforms, "arrays": held}


def _describe_samples(samples: Sequence[Any], fields: Sequence[str] | None) -> str:
    """A list holds its samples: their elements count."""
    from xxhash import xxh3_128

    state = xxh3_128()
    for sample in samples:
        for name, value in name_fields(sample, fields).items():
            state.update(f"{name} {digest(as_numpy(value))};".encode())
    return state.hexdigest()


def _classes_of(dataset: Any) -> tuple[str, ...]:
    classes = getattr(dataset, "classes", None)
    if classes is None and hasattr(dataset, "indices"):
        classes = getattr(getattr(dataset, "dataset", None), "classes", None)
    if isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes):
        return tuple(classes)
    return ()


def _labels_of(dataset: Any, count: int) -> Numbers | None:
    targets = getattr(dataset, "targets", None)
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if targets is None and inner is not None and indices is not None:
        all_labels = _labels_of(inner, len(inner))
        return None if all_labels is None else all_labels[np.asarray(indices)]
    if targets is None:
        return None
    try:
        labels = np.asarray(targets)
    except (ValueError, TypeError, RuntimeError):
        return None
    return labels.astype(np.int64) if labels.shape == (count,) and labels.dtype.kind in "iu" else None
