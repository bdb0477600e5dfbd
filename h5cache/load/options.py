"""The options of `loader` and `batches`, checked, and what they mean for one dataset: an order and a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h5cache.load.augment import Augmentation, HorizontalFlip, RandomCrop, RandomResizedCrop
from h5cache.load.budget import DEFAULT_WINDOW_NBYTES, plan_window
from h5cache.load.delivery import parse_normalize, plan_delivery
from h5cache.load.device import DeviceStream
from h5cache.load.memory import BatchMemory, PinnedMemory, RecycledMemory
from h5cache.load.order import Order, Population, choose_lanes, normalise_shuffle
from h5cache.load.read import SampleReader
from h5cache.load.recipe import BatchRecipe

__all__ = ["LoaderOptions", "check_whole", "resolve_rank"]

AUGMENTATIONS = (HorizontalFlip, RandomCrop, RandomResizedCrop)
FORMATS: dict[Any, torch.memory_format] = {
    name: kind
    for kind, names in (
        (torch.contiguous_format, ("contiguous", torch.contiguous_format)),
        (torch.channels_last, ("channels_last", torch.channels_last)),
    )
    for name in names
}


@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderOptions:
    """What a user asks of a loader. `H5TensorDataset.loader` documents each."""

    batch_size: int
    shuffle: bool | str = False
    seed: int = 0
    drop_last: bool = False
    rank: int | None = None
    world_size: int | None = None
    fields: Sequence[str] | None = None
    as_dict: bool | None = None
    pin_memory: bool | str = False
    device: torch.device | str | None = None
    memory_format: torch.memory_format | str | None = None
    dtype: torch.dtype | str | None = None
    normalize: str | Sequence[Sequence[float]] | None = None
    augment: Sequence[Augmentation] = ()
    transform: Callable[[Any], Any] | None = None
    verify: str | None = None
    lanes: int | None = None
    window_nbytes: int = DEFAULT_WINDOW_NBYTES

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("seed", 0), ("window_nbytes", 1)):
            check_whole(name, getattr(self, name), least)
        for name, least in (("rank", 0), ("world_size", 1), ("lanes", 1)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least)
        if isinstance(self.augment, str) or not isinstance(self.augment, Sequence):
            raise ValueError(f"augment must be a list of steps, got {self.augment!r}")
        wrong = [step for step in self.augment if not isinstance(step, AUGMENTATIONS)]
        if wrong:
            names = ", ".join(kind.__name__ for kind in AUGMENTATIONS)
            raise ValueError(f"augment takes {names}, got {wrong[0]!r}; give others as transform, for the batch")
        if self.transform is not None and not callable(self.transform):
            raise ValueError(f"transform must be a function of the batch, got {self.transform!r}")
        if self.pin_memory not in (True, False, "auto"):
            raise ValueError(f'pin_memory must be True, False or "auto", got {self.pin_memory!r}')
        dtype = self._dtype()
        if self.normalize is not None and dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"normalize gives floats, dtype={dtype} cannot hold them")

    def plan_order(self, reader: SampleReader, selected: npt.NDArray[np.int64] | None, groups: int = 1) -> Order:
        """Return the order of the dataset's samples. `groups` is the number of DataLoader workers."""
        rank, world_size = resolve_rank(self.rank, self.world_size)
        chunk_samples, chunk_nbytes = _chunk_of_costliest_field(reader)
        population = Population(reader.info.starts, chunk_samples, selected)
        shuffle = normalise_shuffle(self.shuffle)
        lanes, window = 1, 1
        if shuffle == "chunk":
            lanes = self.lanes or choose_lanes(self.batch_size, world_size)
            num_chunks = (
                population.num_stored_chunks if selected is None else len(np.unique(population.chunks_of(selected)))
            )
            plan = plan_window(
                num_chunks,
                chunk_nbytes,
                lanes,
                world_size=world_size,
                groups=groups,
                budget_nbytes=self.window_nbytes,
            )
            window = plan.window
            if plan.too_small:
                warnings.warn(
                    f'shuffle="chunk" mixes only {plan.chunks_mixed} of {plan.num_chunks} chunks: batches will have '
                    f"about {plan.diversity:.0%} of the diversity of a true shuffle if the data is sorted. Give "
                    f'window_nbytes={plan.enough_nbytes} or more, or use shuffle="full"',
                    stacklevel=4,
                )
        return Order(
            population,
            self.batch_size,
            shuffle,
            self.seed,
            self.drop_last,
            rank,
            world_size,
            lanes=lanes,
            groups=groups if shuffle == "chunk" else 1,
            window=window,
        )

    def plan_recipe(self, reader: SampleReader, fields: Sequence[str], as_dict: bool) -> BatchRecipe:
        """Return how batches are made of samples."""
        memory_format = self.memory_format
        if memory_format is not None:
            memory_format = FORMATS.get(memory_format)
            if memory_format is None:
                raise ValueError(f"memory_format must be contiguous or channels_last, got {self.memory_format!r}")
        names = list(fields)
        if self.fields is not None:
            names = [self.fields] if isinstance(self.fields, str) else list(self.fields)
            unknown = [name for name in names if name not in reader.info.storage]
            if unknown or isinstance(self.fields, str) or not names or len(set(names)) < len(names):
                known = ", ".join(reader.info.storage)
                raise ValueError(f"fields must be a list of some of {known}, each once, got {self.fields!r}")
        for option in ("augment", "normalize"):
            if getattr(self, option) and all(reader.info.storage[name].layout.field.layout is None for name in names):
                raise ValueError(f"{option} is for pictures; none of the fields {', '.join(names)} is one")
        deliveries = {
            name: plan_delivery(
                reader.info.storage[name],
                dtype=self._dtype(),
                normalize=parse_normalize(self.normalize),
                memory_format=memory_format,
                augment=tuple(self.augment),
                on_device=self._device().type != "cpu",
            )
            for name in names
        }
        as_dict = as_dict if self.as_dict is None else self.as_dict
        return BatchRecipe(deliveries, as_dict, self.transform)

    def plan_memory(self, max_idle: int) -> BatchMemory:
        """Return where batches live: pinned where asked for and possible, else recycled."""
        on_cuda = self._device().type == "cuda"
        if torch.cuda.is_available() and (self.pin_memory or on_cuda):
            return PinnedMemory()
        if self.pin_memory is True:
            warnings.warn("pin_memory=True has no effect: there is no CUDA device", stacklevel=4)
        return RecycledMemory(max_idle)

    def plan_device(self) -> DeviceStream | None:
        """Return how batches get to their device; None where they stay."""
        device = self._device()
        return None if device.type == "cpu" else DeviceStream(device)

    def _device(self) -> torch.device:
        try:
            return torch.device("cpu" if self.device is None else self.device)
        except (RuntimeError, TypeError) as exc:
            raise ValueError(f"device must be one of torch's, got {self.device!r}") from exc

    def _dtype(self) -> torch.dtype | None:
        found = getattr(torch, self.dtype, None) if isinstance(self.dtype, str) else self.dtype
        if found is None and self.dtype is None:
            return None
        if not isinstance(found, torch.dtype) or found.is_complex:
            raise ValueError(f"dtype must be one of torch's for real numbers, got {self.dtype!r}")
        return found


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ValueError unless an option is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size as given, else as torch.distributed has them, else 0 of 1."""
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError("give both rank and world_size, or neither")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _chunk_of_costliest_field(reader: SampleReader) -> tuple[int, int]:
    """Return samples and decoded bytes of a chunk of the field with the largest samples: chunk order is its."""
    sizes = {
        name: storage.layout.sample_nbytes
        for name, storage in reader.info.storage.items()
        if name not in reader.resident
    }
    if not sizes:
        return max(1, reader.info.num_samples), 1
    name = max(sizes, key=lambda key: sizes[key])
    layout = reader.info.storage[name].layout
    if layout.contiguous:
        # One piece on disk: any run of samples is as good as a chunk.
        return max(1, min(reader.info.num_samples, 2**21 // max(1, layout.sample_nbytes))), 2**21
    return layout.chunk_samples, layout.chunk_nbytes
