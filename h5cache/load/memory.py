"""The memory of batches: recycled or pinned. What is shared with another process is in `shared.py`.

Fresh pages cost more than filling them (38 MB: 12 ms from `torch.empty`, 1.5 ms recycled), so unpinned memory is lent
and comes back when the last tensor, view or array over it has died. Pinned memory is torch's: its caching allocator
already knows which copies are still in flight.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["BatchMemory", "FreshMemory", "PinnedMemory", "RecycledMemory", "contiguous_strides", "torch_dtype"]

#: Batch memory begins at a cache line, as torch's own does.
ALIGNMENT = 64


class BatchMemory(ABC):
    """Give memory for one array of a batch. Thread-safe."""

    @abstractmethod
    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], torch.Tensor]:
        """Return a C-contiguous array and the tensor over the same memory. Its content is undefined."""


class RecycledMemory(BatchMemory):
    """Lend from a pool. What the user still holds, or any view of it, is never lent again."""

    def __init__(self, max_idle: int) -> None:
        self._max_idle = max_idle
        # A SimpleQueue may be put into from a finalizer, wherever the garbage collector runs; a lock would deadlock.
        self._idle: dict[int, SimpleQueue[npt.NDArray[np.uint8]]] = {}

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], torch.Tensor]:
        nbytes = math.prod(shape) * dtype.itemsize
        idle = self._idle.setdefault(nbytes, SimpleQueue())
        try:
            memory = idle.get_nowait()
        except Empty:
            memory = _aligned(nbytes)
        # A fresh array per loan: torch holds this very object as long as any tensor shares its storage, and numpy
        # views and dlpack exports hold the tensor. A weak reference to the tensor itself would end too early.
        lent = np.ndarray(shape, dtype, buffer=memory)
        weakref.finalize(lent, _give_back, idle, memory, self._max_idle).atexit = False
        return lent, torch.from_numpy(lent)


def _give_back(idle: SimpleQueue[npt.NDArray[np.uint8]], memory: npt.NDArray[np.uint8], max_idle: int) -> None:
    if idle.qsize() < max_idle:
        idle.put(memory)


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class FreshMemory(BatchMemory):
    """New memory each time, for batches that are asked for one by one."""

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], torch.Tensor]:
        array = np.empty(shape, dtype)
        return array, torch.from_numpy(array)


class PinnedMemory(BatchMemory):
    """Page-locked memory, from which CUDA copies without waiting. Needs a GPU."""

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], torch.Tensor]:
        tensor = torch.empty(shape, dtype=torch_dtype(dtype), pin_memory=True)
        return tensor.numpy(), tensor


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.append(strides[-1] * dim)
    return tuple(reversed(strides))
