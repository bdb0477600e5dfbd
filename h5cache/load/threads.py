"""What each reading thread has for itself: scratch memory, and counts of what it has done."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

__all__ = ["ReadCounters", "ThreadState"]


@dataclass
class ReadCounters:
    """Stored bytes read, and nanoseconds in pread and in decoding."""

    nbytes: int = 0
    read_ns: int = 0
    decode_ns: int = 0

    def add(self, nbytes: int, began_ns: int, read_ns: int) -> None:
        """Count bytes that were read from `began_ns` to `read_ns` and decoded until now."""
        self.count(nbytes, read_ns - began_ns, perf_counter_ns() - read_ns)

    def count(self, nbytes: int, read_ns: int, decode_ns: int) -> None:
        self.nbytes += nbytes
        self.read_ns += read_ns
        self.decode_ns += decode_ns


class ThreadState:
    """Memory and counters of the thread that asks. Counters of ended threads still count."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._counters: list[ReadCounters] = []

    def memory(self, use: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return this thread's memory for one use, at least `nbytes`."""
        found: npt.NDArray[np.uint8] | None = getattr(self._local, use, None)
        if found is None or found.size < nbytes:
            found = np.empty(nbytes + nbytes // 4, np.uint8)
            setattr(self._local, use, found)
        return found

    def counters(self) -> ReadCounters:
        found: ReadCounters | None = getattr(self._local, "counters", None)
        if found is None:
            found = self._local.counters = ReadCounters()
            with self._lock:
                self._counters.append(found)
        return found

    def total(self) -> ReadCounters:
        """Return what all threads have done so far."""
        with self._lock:
            done = list(self._counters)
        return ReadCounters(
            sum(one.nbytes for one in done), sum(one.read_ns for one in done), sum(one.decode_ns for one in done)
        )
