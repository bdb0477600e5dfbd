"""How a batch is made of samples: the fields, how each is delivered, what is done with the whole. Picklable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from h5cache.load.delivery import Delivery, apply_values
from h5cache.load.fill import FieldFiller
from h5cache.load.memory import BatchMemory
from h5cache.load.read import SampleReader
from h5cache.load.shared import keep_shared

__all__ = ["BatchRecipe"]


@dataclass(frozen=True, eq=False)
class BatchRecipe:
    """What a batch consists of. `transform` gets the batch as it is delivered and returns what is delivered."""

    deliveries: Mapping[str, Delivery]
    as_dict: bool
    transform: Callable[[Any], Any] | None = None

    def fillers(self, reader: SampleReader) -> dict[str, FieldFiller]:
        return {name: FieldFiller(reader, name, plan) for name, plan in self.deliveries.items()}

    def take_memory(self, memory: BatchMemory, count: int) -> dict[str, tuple[npt.NDArray[Any], torch.Tensor]]:
        """Return, for each field, memory for `count` samples as an array and as a tensor."""
        return {name: memory.take((count, *plan.shape), plan.memory_dtype) for name, plan in self.deliveries.items()}

    def as_tensors(self, memory: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return filled memory as the tensors users see, cast and normalised where no table did it."""
        tensors = {}
        for name, plan in self.deliveries.items():
            tensor = keep_shared(plan.as_tensor(memory[name]), memory[name])
            if plan.cast is not None:
                # The channels are dimension 1: pictures always come as (N, C, H, W).
                tensor = apply_values(tensor, plan.cast, plan.normalize, channel_dim=1)
            tensors[name] = tensor
        return tensors

    def finish(self, tensors: dict[str, torch.Tensor]) -> Any:
        """Return the batch in the form asked for, transformed."""
        batch: Any = tensors if self.as_dict else tuple(tensors.values())
        return batch if self.transform is None else self.transform(batch)
