"""Threads that run tasks in the order they were given. They know nothing of what the tasks do."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from h5cache.limits import usable_cores

__all__ = ["Engine", "default_threads"]

Task = Callable[[], None]

#: Decoding is what costs: more threads than cores do not help, and past this the consumer is the bottleneck.
MOST_THREADS = 16
#: How long closing waits for a thread to finish its task: one piece of a batch.
STOP_TIMEOUT_S = 10.0


def default_threads() -> int:
    """Return as many threads as this process may use cores (affinity and cgroup quota), up to 16."""
    return min(MOST_THREADS, usable_cores())


class Engine:
    """Run tasks in threads; with 0 threads, in the caller's. A task reports its own errors: it must not raise.

    Threads hold the queue, not the engine: an engine that is dropped, or an interpreter that ends, stops them.
    """

    def __init__(self, threads: int) -> None:
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self.grow(threads)
        self._stop = weakref.finalize(self, _stop, self._queue, self._threads, self._pid)

    @property
    def is_usable(self) -> bool:
        """False once it was closed, and in a forked child, where its threads do not exist."""
        return self._stop.alive and self._pid == os.getpid()

    @property
    def num_threads(self) -> int:
        return len(self._threads)

    def grow(self, threads: int) -> None:
        """Have at least this many threads from now on."""
        for number in range(len(self._threads), threads):
            thread = threading.Thread(target=_run, args=(self._queue,), name=f"h5cache-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(self, task: Task) -> None:
        if self._threads:
            self._queue.put(task)
        else:
            task()

    def close(self) -> None:
        """Stop the threads when they have finished what they are at; idempotent. What waits is not run."""
        self._stop()


def _run(queue: SimpleQueue[Task | None]) -> None:
    while True:
        task = queue.get()
        if task is None:
            return
        task()
        del task  # a batch must not live on in a thread that waits for work


def _stop(queue: SimpleQueue[Task | None], threads: list[threading.Thread], pid: int) -> None:
    if os.getpid() != pid:
        return
    with suppress(Empty):
        while True:
            queue.get_nowait()
    for _ in threads:
        queue.put(None)
    for thread in threads:
        # Garbage collection may drop an engine in one of its own threads.
        if thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT_S)
