"""`H5TensorDataset`: a dataset as PyTorch wants it, map-style, and the doors to everything that delivers batches."""

from __future__ import annotations

import copy
import logging
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, get_worker_info
from tqdm.auto import tqdm

from h5cache.deal import check_split, plan_splits
from h5cache.errors import SchemaError
from h5cache.format.open import open_dataset, read_dataset_index
from h5cache.format.storage import DatasetInfo
from h5cache.limits import usable_memory_nbytes
from h5cache.load.batches import BatchStream
from h5cache.load.collate import make_rows
from h5cache.load.delivery import plan_delivery
from h5cache.load.fill import FieldFiller
from h5cache.load.loader import PREFETCH, Loader
from h5cache.load.memory import FreshMemory
from h5cache.load.notebook import dataset_html
from h5cache.load.options import LoaderOptions
from h5cache.load.read import SampleReader
from h5cache.load.recipe import BatchRecipe
from h5cache.load.shared import worker_memory
from h5cache.load.show import Preview, Shown, make_preview
from h5cache.schema import Schema

__all__ = ["H5TensorDataset"]

log = logging.getLogger(__name__)

Transform = Callable[[Any], Any]
Samples = npt.NDArray[np.int64]


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
        in_memory: "stored" keeps a copy of the files in memory, "decoded" all samples decoded; processes forked
            later share it. MemoryError where this process may not use that much.
        mmap: read uncompressed fields through a memory map. Faster, but a file that is cut short or lost while it is
            in use kills the process: for trusted local disks.

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
    >>> [len(label) for image, label in ds.loader(batch_size=3, shuffle=True)]
    [3, 1]
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
        in_memory: str | None = None,
        mmap: bool = False,
    ) -> None:
        info = open_dataset(path, fields)
        self._reader = SampleReader(info, verify, _choose_keep(info, in_memory, mmap))
        #: Sample numbers of a view; None: all samples.
        self._selected: Samples | None = None
        self.schema: Schema = info.schema
        self.fields: tuple[str, ...] = _choose_fields(info.schema, fields if not info.is_foreign else None)
        self.as_dict = as_dict
        self.transform = transform
        self.target_transform = target_transform
        plain = {name: plan_delivery(info.storage[name]) for name in self.fields}
        self._recipe = BatchRecipe(plain, as_dict)
        self._fillers: dict[str, FieldFiller] | None = None

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
        """All labels: the field `label`, or else the only scalar field of whole numbers. A copy."""
        name = self._target_field()
        field = self.schema[name]
        labels = np.empty((len(self), *field.shape), field.stored_dtype)
        self._reader.read(name, self._file_samples(np.arange(len(self))), labels)
        return torch.from_numpy(labels)

    @property
    def index(self) -> npt.NDArray[Any]:
        """The index table, a structured array; `index["key"]` says where each sample came from. Read anew."""
        rows = read_dataset_index(self._reader.info)
        return rows if self._selected is None else rows[self._selected]

    def __len__(self) -> int:
        return self._reader.info.num_samples if self._selected is None else len(self._selected)

    def __getitem__(self, item: int | slice | Sequence[int] | npt.NDArray[Any] | torch.Tensor) -> Any:
        """Return one sample, or a batch of samples for a slice or a list; tensors are contiguous and the caller's."""
        if isinstance(item, int | np.integer) or (isinstance(item, torch.Tensor | np.ndarray) and item.ndim == 0):
            number = operator.index(item)  # TypeError for a float: nothing is rounded
            if not -len(self) <= number < len(self):
                raise IndexError(f"sample {number} is out of range: the dataset has {len(self)} samples")
            batch = self._read(self._numbers([number]), shared=False)
            return self._deliver({name: tensor[0] for name, tensor in batch.items()})
        return self._deliver(self._read(self._numbers(item), shared=False))

    def __getitems__(self, items: Sequence[int]) -> list[Any]:
        """Return samples for a DataLoader: rows of one batch, which `default_collate` does not stack again."""
        batch = self._read(self._numbers(items), shared=get_worker_info() is not None)
        rows = make_rows(batch, self.as_dict)
        if self.transform is None and self.target_transform is None:
            return rows
        return [self._deliver(dict(zip(batch, row.values() if self.as_dict else row, strict=True))) for row in rows]

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
            seed: of shuffle and augmentation (0).
            drop_last: drop a last batch that is not full.
            rank, world_size: which part of each global batch; by default torch.distributed's, else 0 of 1.
            fields, as_dict: as for the dataset.
            pin_memory: batches in page-locked memory; "auto": where there is CUDA.
            device: copy batches there, on a stream of their own, and hand over device tensors.
            memory_format: "contiguous" or "channels_last" for pictures; by default as they are stored.
            dtype: of pictures and float fields.
            normalize: "imagenet" or (mean, std) of 0..1, for pictures; floats come out.
            augment: RandomCrop or RandomResizedCrop, HorizontalFlip; done while rows are filled.
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
            labels=self._all_labels(),
            summary=summary,
        )

    def batches(self, batch_size: int, shuffle: bool | str = False, **options: Any) -> BatchStream:
        """Return ready batches for `DataLoader(ds.batches(256), batch_size=None, num_workers=4)`.

        Takes the options of `loader`, but for threads and devices, which are DataLoader's business.
        """
        asked = LoaderOptions(batch_size=batch_size, shuffle=shuffle, **options)
        if asked.device is not None or asked.pin_memory:
            raise ValueError("batches: give pin_memory to the DataLoader, and copy to the device in the loop")
        return BatchStream(self._reader.sibling(asked.verify), self._selected, self.fields, self.as_dict, asked)

    def select(self, samples: Sequence[int] | npt.NDArray[Any] | torch.Tensor | slice) -> H5TensorDataset:
        """Return a view of some samples, in the order given; nothing is copied. A True/False mask chooses."""
        view = copy.copy(self)
        view._fillers = None
        view._selected = self._file_samples(self._numbers(samples))
        return view

    def filter(self, predicate: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]) -> H5TensorDataset:
        """Return a view of the samples for which `predicate`, called with the whole index table, is True."""
        chosen = np.asarray(predicate(self.index))
        if chosen.shape != (len(self),) or chosen.dtype != bool:
            raise ValueError(f"the predicate must return {len(self)} truth values, got {chosen.dtype} {chosen.shape}")
        return self.select(chosen)

    def split(self, seed: int = 0, stratify: bool = True, **shares: float) -> dict[str, H5TensorDataset]:
        """Return disjoint views by name: `ds.split(train=0.9, val=0.1)`; each class is shared out alike."""
        labels = self.targets.numpy() if stratify and self._has_targets() else None
        parts = plan_splits(len(self), labels, check_split(shares), seed, shuffle=False)
        return {name: self.select(samples) for name, samples in parts.items()}

    def warm(self, progress: bool = False) -> None:
        """Read the files once, so that the operating system keeps them in its page cache. `progress` shows a bar."""
        shards = self._reader.info.shards
        total = sum(shard.identity.nbytes for shard in shards)
        with tqdm(total=total, unit="B", unit_scale=True, desc="warm", disable=not progress) as bar:
            self._reader.warm(bar.update)

    def show(self, n: int = 16, columns: int | None = None, seed: int | None = 0, field: str | None = None) -> Preview:
        """Return a grid of `n` pictures with their labels: notebooks draw it, `.save("grid.png")` writes it.

        Samples are drawn by `seed` (None: the first ones), from the first field of pictures or from `field`. Floats are
        scaled for the eye; `transform` is not applied: this is what is stored.
        """
        return make_preview(self._shown(), n, columns, seed, field)

    preview = show

    def close(self) -> None:
        """Close descriptors; idempotent, and reading opens them again."""
        self._reader.close()

    def __enter__(self) -> H5TensorDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fillers": None}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {self.schema[name].dtype}{list(self.schema[name].shape)}" for name in self.fields)
        return f"H5TensorDataset({self.path!r}, {len(self)} samples, {fields})"

    def _repr_html_(self) -> str:
        return dataset_html(self._shown())

    def _shown(self) -> Shown:
        return Shown(self._reader, self.fields, self._selected)

    def _read(self, numbers: Samples, shared: bool) -> dict[str, torch.Tensor]:
        """Read samples in this thread, into memory of their own."""
        samples = self._file_samples(numbers)
        memory = self._recipe.take_memory(worker_memory() if shared else FreshMemory(), len(samples))
        if self._fillers is None:
            self._fillers = self._recipe.fillers(self._reader)
        for name, filler in self._fillers.items():
            filler.fill(samples, memory[name][0])
        return self._recipe.as_tensors({name: tensor for name, (_, tensor) in memory.items()})

    def _deliver(self, values: dict[str, Any]) -> Any:
        for name, function in zip(self.fields, (self.transform, self.target_transform), strict=False):
            if function is not None:
                values[name] = function(values[name])
        return values if self.as_dict else tuple(values.values())

    def _file_samples(self, numbers: Samples) -> Samples:
        """Return the numbers in the file of samples of this view."""
        return numbers if self._selected is None else self._selected[numbers]

    def _numbers(self, item: slice | Iterable[int] | npt.NDArray[Any] | torch.Tensor) -> Samples:
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

    def _all_labels(self) -> npt.NDArray[Any] | None:
        """Labels of all samples of the file, where they are in memory anyway."""
        return self._reader.resident.get(self._target_field()) if self._has_targets() else None

    def _has_targets(self) -> bool:
        return len(_target_fields(self.schema)) == 1

    def _target_field(self) -> str:
        found = _target_fields(self.schema)
        if len(found) != 1:
            raise AttributeError(f"the dataset has no field 'label'; its fields are {', '.join(self.schema)}")
        return found[0]


def _choose_keep(info: DatasetInfo, in_memory: str | None, mmap: bool) -> str:
    """Return what the reader keeps in memory, after making sure that there is room for it."""
    if in_memory not in (None, "stored", "decoded"):
        raise ValueError(f'in_memory must be "stored", "decoded" or None, got {in_memory!r}')
    if in_memory is not None and mmap:
        raise ValueError("mmap reads from disk, in_memory does not: choose one")
    if info.is_foreign:
        log.warning("%s is read through h5py; converting it (python -m h5cache.convert) would be faster", info.path)
    if in_memory is None:
        return "mapped" if mmap else "files"
    if in_memory == "stored":
        needed = sum(shard.identity.nbytes for shard in info.shards)
    else:
        needed = sum(info.num_samples * storage.layout.sample_nbytes for storage in info.storage.values())
    usable = usable_memory_nbytes()
    if needed > usable:
        raise MemoryError(
            f"{info.path}: in_memory={in_memory!r} needs {needed / 1e9:.2f} GB, this process may use "
            f"{usable / 1e9:.2f} GB; read from disk, or choose fewer samples or fields"
        )
    return in_memory


def _target_fields(schema: Mapping[str, Any]) -> list[str]:
    if "label" in schema:
        return ["label"]
    return [name for name, field in schema.items() if not field.shape and "int" in field.dtype]


def _choose_fields(schema: Schema, wanted: Sequence[str] | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(schema)
    if isinstance(wanted, str):
        raise SchemaError(f"fields must be a list of names, got the string {wanted!r}; write ({wanted!r},)")
    if not wanted or any(name not in schema for name in wanted) or len(set(wanted)) < len(wanted):
        raise SchemaError(f"fields must name some of {', '.join(schema)}, each once, got {list(wanted)}")
    return tuple(wanted)
