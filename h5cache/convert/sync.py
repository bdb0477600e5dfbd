"""Bring a file to the disk while it is being written, so that its commit has little to wait for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["sync_behind"]

#: A part of 90 MB would wait 0.2 s for a good disk at its end, with an idle core.
EVERY_S = 0.5


@contextmanager
def sync_behind(path: str) -> Iterator[None]:
    """Sync an existing file every half second, in a thread: fdatasync leaves the GIL to others.

    Promises nothing: whoever commits the file syncs it once more, and hears of what is wrong with the disk.
    """
    done = threading.Event()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    sync = getattr(os, "fdatasync", os.fsync)

    def keep_syncing() -> None:
        while not done.wait(EVERY_S):
            try:
                sync(descriptor)
            except OSError:
                return

    thread = threading.Thread(target=keep_syncing, name="h5cache-sync", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.close(descriptor)
