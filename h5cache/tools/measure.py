"""Measure how fast batches are delivered, whoever delivers them: clock, CPU time, page cache. Knows no datasets."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "Delivery",
    "Feed",
    "cpu_seconds",
    "describe_load",
    "drop_page_cache",
    "measure_cold",
    "measure_waiting",
    "measure_warm",
    "size_of",
]

#: Batches that a measurement has at least: with several workers they arrive in bunches.
MIN_BATCHES = 8
#: ... unless that would take this many times the seconds asked for.
MOST_PATIENCE = 4
#: Files that are looked at to see whether the page cache let go of them.
LOOK_AT_FILES = 32


@dataclass(frozen=True)
class Delivery:
    """What one measurement saw."""

    samples: int
    batches: int
    nbytes: int
    seconds: float
    #: Of this process and its workers; None where the system does not tell.
    cpu_s: float | None

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.nbytes / 1e6 / self.seconds if self.seconds > 0 else 0.0


class Feed:
    """An endless stream of batches: epoch after epoch of something iterable.

    Args:
        make: returns the iterable; called when a batch is first wanted, and again after `rest` where not `keep`.
        ahead: batches that are made ahead of the consumer; not counted, since they are ready after a rest.
        keep: keep the iterable while it rests, because it is slow to start (worker processes).
        device: where batches are copied to; None: they stay where they are made.
    """

    def __init__(
        self, make: Callable[[], Iterable[Any]], ahead: int = 0, keep: bool = False, device: str | None = None
    ) -> None:
        self._make = make
        self._keep = keep
        self._device = device
        self._batches: Iterable[Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self.ahead = ahead
        #: Batches taken of this epoch.
        self.num_taken = 0

    def start(self) -> None:
        """Begin an epoch."""
        if self._batches is None:
            self._batches = self._make()
        self._iterator = iter(self._batches)
        self.num_taken = 0

    def next_of_epoch(self) -> Any:
        """Return the next batch; None at the end of the epoch."""
        if self._iterator is None:
            self.start()
        batch = next(self._iterator, None)  # type: ignore[arg-type]
        self.num_taken += 1
        return batch if batch is None or self._device is None else _to_device(batch, self._device)

    def next(self) -> Any:
        """Return the next batch, of the next epoch where this one is at its end."""
        batch = self.next_of_epoch()
        if batch is None:
            self.start()
            batch = self.next_of_epoch()
        if batch is None:
            raise ValueError("it delivers no batches")
        return batch

    def rest(self) -> None:
        """Stop until the next batch is wanted, and free memory and threads where they are quick to come back."""
        if not self._keep:
            self.close()

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        self._iterator = None
        self._batches = None
        if callable(close):
            close()


def measure_warm(feed: Feed, seconds: float) -> Delivery:
    """Take batches for some seconds, epoch after epoch."""
    for _ in range(feed.ahead):
        feed.next()
    return _measure(feed.next, seconds, MIN_BATCHES)


def measure_waiting(feed: Feed, seconds: float, step_s: float) -> float:
    """Return how long a step waits for its batch, in the mean, when it then trains for `step_s`.

    The first steps of an epoch are left out: an epoch has thousands, and few of them are measured.
    """
    waits: list[float] = []
    began = time.perf_counter()
    while len(waits) < MIN_BATCHES or time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        batch = feed.next_of_epoch()
        _synchronize()
        waited, is_first = time.perf_counter() - asked, feed.num_taken <= 1
        if batch is None:
            feed.start()
            continue
        del batch
        if not is_first or time.perf_counter() - began > MOST_PATIENCE * seconds:
            waits.append(waited)
        time.sleep(step_s)
    return sum(waits) / len(waits)


def measure_cold(feed: Feed, paths: Sequence[str], seconds: float) -> Delivery | None:
    """Take batches of one epoch whose files are not in the page cache; None where the system keeps them there."""
    feed.start()
    feed.next_of_epoch()  # workers are running, files are open
    if not drop_page_cache(paths):
        return None
    feed.start()
    return _measure(feed.next_of_epoch, seconds, 1)


def _measure(take: Callable[[], Any], seconds: float, min_batches: int) -> Delivery:
    samples = batches = nbytes = 0
    _synchronize()
    cpu, began = cpu_seconds(), time.perf_counter()
    while True:
        batch = take()
        if batch is None:
            break
        _synchronize()
        count, size = size_of(batch)
        samples, batches, nbytes = samples + count, batches + 1, nbytes + size
        del batch
        elapsed = time.perf_counter() - began
        if elapsed >= seconds and (batches >= min_batches or elapsed >= MOST_PATIENCE * seconds):
            break
    elapsed, cpu_after = time.perf_counter() - began, cpu_seconds()
    used = None if cpu is None or cpu_after is None else cpu_after - cpu
    return Delivery(samples, batches, nbytes, elapsed, used)


def size_of(batch: Any) -> tuple[int, int]:
    """Return samples and bytes of a batch: a tensor or array, or a tuple, list or dict of such."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(parts, list | tuple):
        parts = [parts]
    arrays = [part for part in parts if hasattr(part, "shape")]
    samples = next((int(part.shape[0]) for part in arrays if len(part.shape)), len(parts))
    return samples, sum(int(part.nbytes) for part in arrays)


def cpu_seconds() -> float | None:
    """Return the CPU time of this process, its threads and its worker processes so far."""
    total = time.process_time()
    for child in multiprocessing.active_children():
        try:
            with open(f"/proc/{child.pid}/stat", encoding="ascii", errors="replace") as stream:
                words = stream.read().rpartition(")")[2].split()
        except OSError:
            return None
        total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def describe_load(cores: int) -> str:
    """Say that other programs are at work here, before measuring; empty where the machine is idle enough."""
    if not hasattr(os, "getloadavg") or os.getloadavg()[0] < cores:
        return ""
    load = f"{os.getloadavg()[0]:.1f} on {cores} core" + ("s" if cores > 1 else "")
    return f"other programs kept this machine busy (load {load}): an idle one shows higher and steadier figures"


def drop_page_cache(paths: Sequence[str]) -> bool:
    """Ask the system to forget the contents of files; return whether it did. Nothing is written or changed."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for sync in (False, True):  # pages that are not written yet stay
        for path in paths:
            _advise_away(path, sync)
        looked_at = paths[:: max(1, len(paths) // LOOK_AT_FILES)]
        if not any(_is_cached(path) for path in looked_at):
            return True
    return False


def _advise_away(path: str, sync: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if sync:
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _is_cached(path: str) -> bool:
    """Say whether the middle of a file can be read without waiting for the disk; True where it is not known."""
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None or not hasattr(os, "preadv"):
        return True
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.preadv(descriptor, [bytearray(1)], os.fstat(descriptor).st_size // 2, flag) > 0
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system that cannot say
    finally:
        os.close(descriptor)


def _synchronize() -> None:
    """Wait for the GPU: its work is queued, and a clock that is read before it ends measures nothing."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _to_device(batch: Any, device: str) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: _to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [_to_device(part, device) for part in batch]
    return batch
