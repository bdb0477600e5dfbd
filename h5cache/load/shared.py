"""Batches that a DataLoader worker hands to its consumer in memory of both, used again and again.

Torch makes a new file in shared memory for every batch: 38 MB of fresh pages cost the worker more than reading them
full (128 us a picture of 224 px, against 14 us). Here a worker keeps its segments. One that was sent is filled again
when everybody who received it has said, in the segment itself, that the last tensor, view or array over it is dead.

Behind the batch a segment has a page of marks, one byte for each time it was sent, each written by one process only.
It has no name: the kernel frees it when the last process that maps it is gone, however it ends. To torch it is shared
memory like its own; what torch sends of it by itself (a view of a batch) is not marked, and its segment is given up.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing.reduction
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import StorageWeakRef, fd_id, shared_cache

from h5cache.load.memory import BatchMemory, contiguous_strides, torch_dtype

__all__ = ["SharedMemory", "SharedTensor", "keep_shared", "worker_memory"]

_MARKS_NBYTES = mmap.PAGESIZE
_RELEASED = 1
#: Segments of one worker. A consumer that holds on to more batches gets the others in memory of their own.
_MOST_SEGMENTS = 32
#: Segments that lie idle, of all sizes: more than a worker has under way at once (prefetch_factor is 2).
_MOST_IDLE = 8
#: Counts how many tensors, in whatever form, have a storage. None in a torch that has no such function.
_count_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class SharedMemory(BatchMemory):
    """Memory that the process can map which waits for the batch: it needs no second copy. For one worker process."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], torch.Tensor]:
        nbytes = math.prod(shape) * dtype.itemsize
        segment = self._find(nbytes)
        storage = _new_torch_storage(nbytes) if segment is None else segment.storage
        tensor = torch.empty(0, dtype=torch_dtype(dtype)).set_(storage, 0, shape, contiguous_strides(shape))
        array = tensor.numpy()
        return array, tensor if segment is None else SharedTensor.over(tensor, segment)

    def _find(self, nbytes: int) -> _Segment | None:
        """Return an idle segment of that size or a new one; None where torch must serve."""
        if not nbytes or not _can_recycle():
            return None
        with self._lock:
            self._segments = [segment for segment in self._segments if not segment.was_sent_by_torch]
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
            found.clear()
            return found


def _can_recycle() -> bool:
    # Who has chosen torch's other strategy has too few descriptors for this one.
    strategy = get_sharing_strategy()  # type: ignore[no-untyped-call]
    return _count_users is not None and hasattr(os, "memfd_create") and strategy == "file_descriptor"


def _new_torch_storage(nbytes: int) -> torch.UntypedStorage:
    # The same call that torch's default_collate uses in a worker.
    return torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-any-return, no-untyped-call]


class _Segment:
    """Shared memory for one array, and its marks."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        descriptor = os.memfd_create("h5cache-batch", os.MFD_CLOEXEC)
        try:
            start = _marks_start(nbytes)
            os.ftruncate(descriptor, start + _MARKS_NBYTES)
            self.storage: torch.UntypedStorage = _map(descriptor, nbytes)
            self._marks = mmap.mmap(descriptor, _MARKS_NBYTES, offset=start)
            self._identity = fd_id(descriptor)  # type: ignore[no-untyped-call]
        finally:
            os.close(descriptor)  # the storage has one of its own
        self._num_sent = 0
        self._own_references = sys.getrefcount(self.storage)

    @property
    def is_idle(self) -> bool:
        """True where no tensor has it, here or with a receiver."""
        users = _count_users(self.storage._cdata) if _count_users is not None else 2
        # Who holds the storage itself, not a tensor, holds the very object that we have.
        if users > 1 or sys.getrefcount(self.storage) > self._own_references:
            return False
        return self._marks[: self._num_sent].count(_RELEASED) == self._num_sent

    @property
    def was_sent_by_torch(self) -> bool:
        """True where torch has sent a tensor over it by its own means, of whose end nobody hears."""
        return self._identity in shared_cache

    def clear(self) -> None:
        """Forget who had it."""
        self._marks[: self._num_sent] = bytes(self._num_sent)
        self._num_sent = 0

    def mark_sent(self) -> int | None:
        """Return the place of the mark by which a receiver says that it is done; None where there are no more."""
        if self._num_sent == _MARKS_NBYTES:
            return None
        self._num_sent += 1
        return self._num_sent - 1

    @property
    def descriptor(self) -> int:
        return int(self.storage._share_fd_cpu_()[0])


def _map(descriptor: int, nbytes: int) -> Any:
    return torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes)  # type: ignore[attr-defined]


def _marks_start(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


class SharedTensor(torch.Tensor):
    """A tensor over a segment: it is sent as a reference to it, and arrives as an ordinary tensor.

    What is computed from it is an ordinary tensor, too; so is what is saved or copied.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _segment: _Segment

    @classmethod
    def over(cls, tensor: torch.Tensor, segment: _Segment) -> SharedTensor:
        shared: SharedTensor = tensor.as_subclass(cls)
        shared._segment = segment
        return shared

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def keep_shared(view: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return a view of a batch so that it is sent as its whole would be."""
    if isinstance(whole, SharedTensor) and not isinstance(view, SharedTensor):
        return SharedTensor.over(view, whole._segment)
    return view


def _send(tensor: SharedTensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    segment = tensor._segment
    # `tensor.data = other` and the like leave it with another storage; torch knows best how to send that.
    is_ours = tensor.untyped_storage()._cdata == segment.storage._cdata and not tensor.requires_grad
    place = segment.mark_sent() if is_ours else None
    if place is None:
        if tensor.requires_grad and tensor.is_leaf:
            return _as_it_is, (tensor.detach().as_subclass(torch.Tensor).requires_grad_(),)
        return _as_it_is, (tensor.as_subclass(torch.Tensor),)
    descriptor = multiprocessing.reduction.DupFd(segment.descriptor)
    layout = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return _receive, (descriptor, place, segment.nbytes, *layout)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Received:
    """What this process has received, as long as it is in use. Looked through whenever something more comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[StorageWeakRef, mmap.mmap, int]] = []

    def add(self, storage: torch.UntypedStorage, marks: mmap.mmap, place: int) -> None:
        with self._lock:
            self._waiting = [one for one in self._waiting if not _is_released(*one)]
            self._waiting.append((StorageWeakRef(storage), marks, place))  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Never release what is in use now: a child that is about to be forked will have it too."""
        with self._lock:
            for one in self._waiting:
                _is_released(*one)
            self._waiting = []


def _is_released(storage: StorageWeakRef, marks: mmap.mmap, place: int) -> bool:
    """Say so in the segment, too."""
    if not storage.expired():  # type: ignore[no-untyped-call]
        return False
    marks[place] = _RELEASED
    return True


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
        storage = _map(own, nbytes)
        marks = mmap.mmap(own, _MARKS_NBYTES, offset=_marks_start(nbytes))
    finally:
        os.close(own)
    _received.add(storage, marks, place)
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


# What DataLoader's queues pickle with; other pickles hold the values.
multiprocessing.reduction.ForkingPickler.register(SharedTensor, _send)

_received = _Received()
_pool: SharedMemory | None = None


def worker_memory() -> SharedMemory:
    """Return the memory of this worker process."""
    global _pool
    if _pool is None:
        _pool = SharedMemory()
    return _pool


def _before_fork() -> None:
    """Both processes will have what is in use now, and neither knows when the other lets go."""
    global _pool
    _pool = None
    _received.forget()


def _in_child() -> None:
    global _received
    _received = _Received()  # its lock may have been held by another thread


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
