"""Batches that a DataLoader worker hands to its consumer in memory of both, used again and again.

Torch makes a new file in shared memory for every batch: 38 MB of fresh pages cost the worker more than reading them
full (128 us a picture of 224 px, against 14 us). Here a worker keeps its segments. One that was sent is filled again
when everybody who received it has said, in the segment itself, that the last tensor, view or array over it is dead.

A segment begins with a page of marks, one byte for each time it was sent, each written by one process only; the batch
follows. It has no name: the kernel frees it when the last process that maps it is gone, however it ends.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing.reduction
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing import get_sharing_strategy

from h5cache.load.memory import BatchMemory, contiguous_strides, torch_dtype

__all__ = ["SharedMemory", "keep_shared", "worker_memory"]

_MARKS_NBYTES = mmap.PAGESIZE
_RELEASED = 1
#: Segments of one worker. A consumer that holds on to more batches gets the others in memory of their own.
_MOST_SEGMENTS = 64
#: Segments that lie idle, of all sizes: more than a worker has under way at once (prefetch_factor is 2).
_MOST_IDLE = 8


class SharedMemory(BatchMemory):
    """Memory that the process can map which waits for the batch: it needs no second copy. For one worker process."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], torch.Tensor]:
        nbytes = math.prod(shape) * dtype.itemsize
        segment = self._find(nbytes)
        if segment is None:
            tensor = _torch_shared(shape, dtype)
            return tensor.numpy(), tensor
        array = segment.lend(shape, dtype)
        return array, SharedTensor.over(torch.from_numpy(array), _Loan(segment, array))

    def _find(self, nbytes: int) -> _Segment | None:
        """Return an idle segment of that size or a new one; None where torch must serve."""
        if not nbytes or not hasattr(os, "memfd_create") or not _sends_descriptors():
            return None
        with self._lock:
            idle = [segment for segment in self._segments if segment.is_idle]
            found = next((segment for segment in idle if segment.nbytes == nbytes), None)
            if found is None:
                # Batches of another size are needed now (the last of an epoch is smaller): do not hoard.
                for segment in idle[: max(0, len(idle) + 1 - _MOST_IDLE)]:
                    self._segments.remove(segment)
                if len(self._segments) >= _MOST_SEGMENTS:
                    return None
                found = _Segment(nbytes)
                self._segments.append(found)
            found.is_lent = True
            return found


def _sends_descriptors() -> bool:
    """Whether torch, too, sends descriptors: who has chosen its other strategy has too few of them."""
    return bool(get_sharing_strategy() == "file_descriptor")  # type: ignore[no-untyped-call]


def _torch_shared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    # The same call that torch's default_collate uses in a worker.
    nbytes = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch_dtype(dtype)).set_(storage, 0, shape, contiguous_strides(shape))


class _Segment:
    """Shared memory for one array."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.descriptor = os.memfd_create("h5cache-batch", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        os.ftruncate(self.descriptor, _MARKS_NBYTES + nbytes)
        self.memory = mmap.mmap(self.descriptor, _MARKS_NBYTES + nbytes)
        #: This process has an array over it.
        self.is_lent = False
        self._num_sent = 0

    @property
    def is_idle(self) -> bool:
        sent = self._num_sent
        return not self.is_lent and self.memory[:sent].count(_RELEASED) == sent

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        self.memory[: self._num_sent] = bytes(self._num_sent)
        self._num_sent = 0
        lent = np.ndarray(shape, dtype, buffer=self.memory, offset=_MARKS_NBYTES)
        # See RecycledMemory: torch holds this very object as long as any tensor shares its storage.
        weakref.finalize(lent, _take_back, weakref.ref(self)).atexit = False
        return lent

    def mark_sent(self) -> int | None:
        """Return the place of the mark by which a receiver says that it is done; None where there are no more."""
        if self._num_sent == _MARKS_NBYTES:
            return None
        self._num_sent += 1
        return self._num_sent - 1


@dataclass(frozen=True, eq=False)
class _Loan:
    """A segment and the array over it, which keeps it lent."""

    segment: _Segment
    array: npt.NDArray[Any]


def _take_back(segment: weakref.ref[_Segment]) -> None:
    found = segment()
    if found is not None:
        found.is_lent = False


class SharedTensor(torch.Tensor):
    """A tensor over a segment: it is sent as a reference to it, and arrives as an ordinary tensor.

    What is computed from it is an ordinary tensor, too; so is what is saved or copied.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    # The tensor's storage may be another one by the time it is sent: torch puts that of a view which is sent before
    # into shared memory of its own.
    _loan: _Loan

    @classmethod
    def over(cls, tensor: torch.Tensor, loan: _Loan) -> SharedTensor:
        shared: SharedTensor = tensor.as_subclass(cls)
        shared._loan = loan
        return shared

    def is_shared(self) -> bool:
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def keep_shared(view: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return a view of a batch so that it is sent as its whole would be."""
    if isinstance(whole, SharedTensor) and not isinstance(view, SharedTensor):
        return SharedTensor.over(view, whole._loan)
    return view


def _send(tensor: SharedTensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    segment = tensor._loan.segment
    place = segment.mark_sent()
    if place is None:
        return torch.clone, (tensor.as_subclass(torch.Tensor),)
    descriptor = multiprocessing.reduction.DupFd(segment.descriptor)
    layout = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return _receive, (descriptor, place, segment.nbytes, *layout)


def _receive(
    descriptor: Any,
    place: int,
    nbytes: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    own = descriptor.detach()
    try:
        memory = mmap.mmap(own, _MARKS_NBYTES + nbytes)
    finally:
        os.close(own)
    received = np.ndarray(nbytes, np.uint8, buffer=memory, offset=_MARKS_NBYTES)
    weakref.finalize(received, _release, memory, place, os.getpid()).atexit = False
    return torch.from_numpy(received).view(dtype).as_strided(shape, strides, offset)


def _release(memory: mmap.mmap, place: int, pid: int) -> None:
    # A forked child has copies of its parent's tensors; that they end says nothing.
    if os.getpid() == pid:
        memory[place] = _RELEASED


# What DataLoader's queues pickle with; other pickles hold the values.
multiprocessing.reduction.ForkingPickler.register(SharedTensor, _send)


_pool: tuple[int, SharedMemory] | None = None


def worker_memory() -> SharedMemory:
    """Return the memory of this worker process."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = (os.getpid(), SharedMemory())
    return _pool[1]
