"""The options of `loader` and `batches`, checked, and what they mean for one dataset: an order and a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h5cache.load.augment import Augmentation
from h5cache.load.budget import DEFAULT_WINDOW_NBYTES, plan_window
from h5cache.load.delivery import parse_normalize, plan_delivery
from h5cache.load.device import DeviceStream
from h5cache.load.memory import BatchMemory, PinnedMemory, RecycledMemory
from h5cache.load.order import Order, Population, choose_lanes, normalise_shuffle
from h5cache.load.read import SampleReader
from h5cache.load.recipe import BatchRecipe

__all__ = ["LoaderOptions"]


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
        dtype = getattr(torch, self.dtype) if isinstance(self.dtype, str) else self.dtype
        memory_format = self.memory_format
        if isinstance(memory_format, str):
            formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
            if memory_format not in formats:
                raise ValueError(f"memory_format must be one of {', '.join(formats)}, got {memory_format!r}")
            memory_format = formats[memory_format]
        on_device = self.device is not None and torch.device(self.device).type != "cpu"
        names = list(fields if self.fields is None else self.fields)
        unknown = [name for name in names if name not in reader.info.storage]
        if unknown:
            raise ValueError(f"no field {unknown[0]!r}; there are {', '.join(reader.info.storage)}")
        deliveries = {
            name: plan_delivery(
                reader.info.storage[name],
                dtype=dtype,
                normalize=parse_normalize(self.normalize),
                memory_format=memory_format,
                augment=tuple(self.augment),
                on_device=on_device,
            )
            for name in names
        }
        as_dict = as_dict if self.as_dict is None else self.as_dict
        return BatchRecipe(deliveries, self.seed, as_dict, self.transform)

    def plan_memory(self, max_idle: int) -> BatchMemory:
        """Return where batches live: pinned where asked for and possible, else recycled."""
        if self.pin_memory not in (True, False, "auto"):
            raise ValueError(f'pin_memory must be True, False or "auto", got {self.pin_memory!r}')
        on_cuda = self.device is not None and torch.device(self.device).type == "cuda"
        if torch.cuda.is_available() and (self.pin_memory or on_cuda):
            return PinnedMemory()
        if self.pin_memory is True:
            warnings.warn("pin_memory=True has no effect: there is no CUDA device", stacklevel=4)
        return RecycledMemory(max_idle)

    def plan_device(self) -> DeviceStream | None:
        """Return how batches get to their device; None where they stay."""
        if self.device is None or torch.device(self.device).type == "cpu":
            return None
        return DeviceStream(torch.device(self.device))


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
