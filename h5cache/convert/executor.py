"""Where tasks run: loky's processes, one thread of this process, or an executor of the user's. Nothing home-made."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from h5cache.convert.guard import start_worker
from h5cache.convert.task import PartResult, PartTask, convert_part
from h5cache.errors import H5CacheError

__all__ = ["TaskPool", "WorkerLostError", "open_pool"]

#: The environment of workers. Libraries that start as many threads as the machine has cores would do so in each of
#: them. And glibc gives the pages of a freed picture back to the system, which clears them for the next one: 3 % more.
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}


class WorkerLostError(H5CacheError, RuntimeError):
    """A worker process ended from outside: killed by hand, or by the system for want of memory."""


@dataclass(frozen=True, eq=False)
class TaskPool:
    """Hand tasks to an executor. `submit` returns at once."""

    executor: Executor
    #: Tasks worth having under way: enough that no worker waits for the parent.
    depth: int
    _stopped: Callable[[], bool] | None = None

    def submit(self, task: PartTask) -> Future[PartResult]:
        with _signals_held():
            if self._stopped is not None:
                return self.executor.submit(convert_part, task, self._stopped)
            return self.executor.submit(convert_part, task)


@contextmanager
def open_pool(workers: int, executor: Executor | None = None) -> Iterator[TaskPool]:
    """Open what runs the tasks: `executor` if given (it stays open), else `workers` processes, 0: this process.

    Left by an exception (Ctrl-C), running tasks are ended first: processes killed, the thread told to stop.
    """
    try:
        if executor is not None:
            yield TaskPool(executor, depth=max(8, 2 * _num_workers(executor)))
            return
        with _one_thread() if workers == 0 else _processes(workers) as pool:
            yield pool
    except BrokenProcessPool as exc:
        raise WorkerLostError(
            "a worker process was killed from outside (often by the system, for want of memory: try fewer workers)"
        ) from exc


@contextmanager
def _processes(workers: int) -> Iterator[TaskPool]:
    import loky

    _start_trackers()
    processes = loky.ProcessPoolExecutor(
        max_workers=workers, env=WORKER_ENVIRONMENT, initializer=start_worker, initargs=(os.getpid(),)
    )
    try:
        yield TaskPool(processes, depth=2 * workers)
    finally:
        # All results are in, or nobody wants them. A worker that waits for a lock which a killed one held would never
        # end by itself.
        processes.shutdown(wait=True, kill_workers=True)


def _start_trackers() -> None:
    """Start what the first worker would else start: each unblocks the signals that `_signals_held` blocks.

    That worker and all after it would then answer Ctrl-C with a traceback each, until `start_worker` ignores it.
    """
    if os.name != "posix":
        return
    from multiprocessing import resource_tracker as python_tracker

    from loky.backend import resource_tracker as loky_tracker

    python_tracker.ensure_running()
    loky_tracker.ensure_running()


@contextmanager
def _one_thread() -> Iterator[TaskPool]:
    stop = threading.Event()
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="h5cache-convert")
    try:
        yield TaskPool(thread, depth=1, _stopped=stop.is_set)
    finally:
        stop.set()
        thread.shutdown(wait=True, cancel_futures=True)


def _num_workers(executor: Any) -> int:
    return int(getattr(executor, "_max_workers", 0) or 0)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Start workers with Ctrl-C blocked: a terminal sends it to all processes, and the parent alone answers it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
