"""Keep the workers of a killed run from meddling with the next one.

The parent holds the output's lock, which ends with it. Its workers notice that it is gone and end too; until then
each holds a shared lock while it works on a part, and the next run waits for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from h5cache.errors import DatasetBusyError

try:
    import fcntl
except ImportError:  # Windows: no advisory locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["claim_tasks", "hold_task_lock", "start_worker"]

#: How long a new run waits for the workers of a killed one. They notice within WATCH_S.
CLAIM_TIMEOUT_S = 30.0
WATCH_S = 0.2


def start_worker(parent: int) -> None:
    """Called in each worker process as it starts: leave Ctrl-C to the parent, and end when the parent is gone.

    A worker that goes on alone would take a core and write into the next run's parts. PR_SET_PDEATHSIG would do it
    too, but it fires when the *thread* that started the worker ends.
    """

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, name="h5cache-watch", daemon=True).start()


def claim_tasks(lock_path: str, owner: str) -> None:
    """Become the run whose tasks may work here; waits until no worker of an earlier run does."""
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + CLAIM_TIMEOUT_S
        while not _try_lock(descriptor, shared=False):
            if time.monotonic() > deadline:
                raise DatasetBusyError(f"{lock_path}: workers of a killed run are still at work; end them first")
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(), 0)
    finally:
        os.close(descriptor)


@contextmanager
def hold_task_lock(lock_path: str, owner: str) -> Iterator[None]:
    """Hold, shared with other workers, the right to work on a part; DatasetBusyError where another run took over."""
    descriptor = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _try_lock(descriptor, shared=True) or os.pread(descriptor, 64, 0) != owner.encode():
            raise DatasetBusyError(f"{lock_path}: another run has taken over this output")
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, shared: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
