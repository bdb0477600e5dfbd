"""`H5TensorDataset`: a dataset as PyTorch wants it, map-style."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from h5cache.errors import SchemaError
from h5cache.format.open import open_dataset, read_dataset_index
from h5cache.load.loader import PREFETCH, Loader
from h5cache.load.options import LoaderOptions
from h5cache.load.read import SampleReader
from h5cache.schema import Schema

__all__ = ["H5TensorDataset"]

Transform = Callable[[Any], Any]


class H5TensorDataset(Dataset[Any]):
    """Read a dataset like `torch.utils.data.TensorDataset`: `ds[i]` is a tuple of tensors, one per field.

    Opening reads the tables and closes the file again: the object holds paths and arrays, so it pickles, and works in
    forked, spawned and forkserver workers and in threads alike.

    Args:
        path: a `.h5` file, a folder of shards, or any HDF5 file (read through h5py: slower, still right).
        fields: which fields to deliver, and in which order; all by default.
        as_dict: deliver dicts by field name instead of tuples.
        transform: called with the first field's tensor of each sample (`ds[i]`; of the batch for `ds[[...]]`).
        target_transform: likewise with the second field's.
        verify: check stored bytes on a sample's "first" read in this process, "always" or "never".

    >>> import numpy as np, tempfile, os
    >>> from h5cache import Writer
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.h5")
    >>> with Writer(path, classes=("cat", "dog")) as w:
    ...     w.append(image=np.arange(4 * 48, dtype=np.uint8).reshape(4, 3, 4, 4), label=np.array([0, 1, 0, 1]))
    >>> ds = H5TensorDataset(path)
    >>> image, label = ds[3]
    >>> tuple(image.shape), int(label), ds.classes
    ((3, 4, 4), 1, ('cat', 'dog'))
    >>> tuple(ds[[3, 1]][0].shape)
    (2, 3, 4, 4)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        *,
        as_dict: bool = False,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        verify: str = "first",
    ) -> None:
        info = open_dataset(path, fields)
        self._reader = SampleReader(info, verify)
        self._selected: npt.NDArray[np.int64] | None = None
        self.schema: Schema = info.schema
        self.fields: tuple[str, ...] = _choose_fields(info.schema, fields if not info.is_foreign else None)
        self.as_dict = as_dict
        self.transform = transform
        self.target_transform = target_transform

    @property
    def path(self) -> str:
        return self._reader.info.path

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, as ImageFolder has them: `ds.classes[label]`."""
        return self._reader.info.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> torch.Tensor:
        """All labels: the field `label`, or else the only small whole-number field. A copy."""
        name = self._target_field()
        return self._read(name, np.arange(len(self)))

    @property
    def index(self) -> npt.NDArray[Any]:
        """The index table, a structured array; `index["key"]` says where each sample came from. Read anew."""
        return read_dataset_index(self._reader.info)

    def __len__(self) -> int:
        return self._reader.info.num_samples if self._selected is None else len(self._selected)

    def loader(
        self,
        batch_size: int,
        shuffle: bool | str = False,
        *,
        threads: int | None = None,
        prefetch: int = PREFETCH,
        summary: bool = False,
        **options: Any,
    ) -> Loader:
        """Return a `Loader`: batches filled by threads, in order, as contiguous tensors.

        Args:
            batch_size: samples of a batch, per rank.
            shuffle: False; "full" (or True): every sample anywhere; "chunk": whole chunks in random order, mixed in
                a window of `window_nbytes`.
            threads: threads that read and decode; None: the cores this process may use, more while reads are cold;
                0: none, the consumer does it.
            prefetch: batches that are filled ahead.
            summary: log one line about every epoch.
            seed: of shuffle and augmentation.
            drop_last: drop a last batch that is not full.
            rank, world_size: which part of each global batch; by default torch.distributed's, else 0 of 1.
            fields, as_dict: as for the dataset.
            pin_memory: batches in page-locked memory; "auto": where there is CUDA.
            device: copy batches there, on a stream of their own, and hand over device tensors.
            memory_format: "contiguous" or "channels_last" for pictures; by default as they are stored.
            dtype: of pictures and float fields. normalize: "imagenet" or (mean, std) for pictures.
            augment: any of RandomCrop, RandomResizedCrop, HorizontalFlip, done while rows are filled.
            transform: called with each batch, in the threads; what it returns is delivered.
            verify: as for the dataset.
            window_nbytes, lanes: decoded bytes that "chunk" mixes, and from how many places it takes them.
        """
        asked = LoaderOptions(batch_size=batch_size, shuffle=shuffle, **options)
        reader = self._reader.sibling(asked.verify)
        return Loader(
            reader,
            asked.plan_order(reader, self._selected),
            asked.plan_recipe(reader, self.fields, self.as_dict),
            memory=asked.plan_memory(max_idle=prefetch + 2),
            device=asked.plan_device(),
            threads=threads,
            prefetch=prefetch,
            window_nbytes=asked.window_nbytes,
            labels=self._labels(),
            summary=summary,
        )

    def __getitem__(self, item: int | slice | Sequence[int] | npt.NDArray[Any] | torch.Tensor) -> Any:
        """Return one sample, or a batch of samples for a slice or a list; tensors are contiguous and the caller's."""
        if isinstance(item, int | np.integer) or (isinstance(item, torch.Tensor | np.ndarray) and item.ndim == 0):
            number = operator.index(item)  # TypeError for a float: nothing is rounded
            if not -len(self) <= number < len(self):
                raise IndexError(f"sample {number} is out of range: the dataset has {len(self)} samples")
            return self._deliver({name: batch[0] for name, batch in self._batch(self._numbers([number])).items()})
        return self._deliver(self._batch(self._numbers(item)))

    def close(self) -> None:
        """Close descriptors; idempotent, and reading opens them again."""
        self._reader.close()

    def __enter__(self) -> H5TensorDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {self.schema[name].dtype}{list(self.schema[name].shape)}" for name in self.fields)
        return f"H5TensorDataset({self.path!r}, {len(self)} samples, {fields})"

    def _labels(self) -> npt.NDArray[Any] | None:
        try:
            return self._reader.info.resident.get(self._target_field())
        except AttributeError:
            return None

    def _batch(self, samples: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        return {name: self._read(name, samples) for name in self.fields}

    def _read(self, name: str, samples: npt.NDArray[np.int64]) -> torch.Tensor:
        field = self.schema[name]
        rows = np.empty((len(samples), *field.shape), field.stored_dtype)
        self._reader.read(name, samples, rows)
        tensor = torch.from_numpy(rows)
        if field.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        # Pictures always come out as (N, C, H, W); stored HWC that is channels_last, without a copy.
        return tensor.permute(0, 3, 1, 2) if field.layout == "HWC" else tensor

    def _deliver(self, values: dict[str, Any]) -> Any:
        for name, function in zip(self.fields, (self.transform, self.target_transform), strict=False):
            if function is not None:
                values[name] = function(values[name])
        return values if self.as_dict else tuple(values.values())

    def _numbers(self, item: slice | Iterable[int] | npt.NDArray[Any] | torch.Tensor) -> npt.NDArray[np.int64]:
        """Return sample numbers from 0 on; negative ones count from the end, True/False masks choose."""
        total = len(self)
        if isinstance(item, slice):
            return np.arange(*item.indices(total), dtype=np.int64)
        asked = np.asarray(item)
        if asked.dtype == bool:
            if asked.shape != (total,):
                raise IndexError(f"a mask of {asked.shape} for {total} samples")
            return np.flatnonzero(asked)
        if asked.size == 0:
            return np.zeros(0, np.int64)
        if asked.ndim != 1 or asked.dtype.kind not in "iu":
            raise TypeError(f"samples are chosen by whole numbers, got {asked.dtype} of {asked.ndim} dimensions")
        outside = (asked < -total) | (asked >= total)
        if outside.any():
            raise IndexError(f"sample {asked[outside][0]} is out of range: the dataset has {total} samples")
        numbers = asked.astype(np.int64)
        return np.where(numbers < 0, numbers + total, numbers)

    def _target_field(self) -> str:
        if "label" in self.schema:
            return "label"
        whole = [name for name, field in self.schema.items() if not field.shape and "int" in field.dtype]
        if len(whole) == 1:
            return whole[0]
        raise AttributeError(f"the dataset has no field 'label'; its fields are {', '.join(self.schema)}")


def _choose_fields(schema: Schema, wanted: Sequence[str] | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(schema)
    unknown = [name for name in wanted if name not in schema]
    if unknown or isinstance(wanted, str) or not wanted or len(set(wanted)) < len(wanted):
        raise SchemaError(f"fields must name some of {', '.join(schema)}, each once, got {wanted!r}")
    return tuple(wanted)
