"""Atomic or absent: partial files, syncing, renaming, and one writer per output at a time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from h5cache.errors import DatasetBusyError, DatasetExistsError, MissingDatasetError

try:
    import fcntl
except ImportError:  # Windows: no advisory locks; the partial file alone marks the output
    fcntl = None  # type: ignore[assignment]

__all__ = ["check_absent", "check_parent", "lock_output", "partial_path", "publish_file", "sync_folder"]


def partial_path(path: str) -> str:
    return path + ".partial"


def check_absent(path: str, overwrite: bool) -> None:
    if os.path.lexists(path) and not overwrite:
        raise DatasetExistsError(errno.EEXIST, "the output exists already; pass overwrite=True to replace it", path)


def check_parent(path: str) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise MissingDatasetError(errno.ENOENT, "the folder of the output does not exist; create it first", parent)


@contextmanager
def lock_output(path: str) -> Iterator[None]:
    """Hold the right to write `path`; DatasetBusyError where another process has it.

    The lock lies on a file beside the output and ends with the process, however that ends. The file itself is
    removed on leaving; one left by a kill is harmless.
    """
    lock_path = path + ".lock"
    while True:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                os.close(descriptor)
                raise DatasetBusyError(
                    errno.EBUSY, "another process is writing this dataset; wait for it", path
                ) from exc
        # The last owner may have removed the file between our open and our lock.
        if _is_same_file(descriptor, lock_path):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        os.unlink(lock_path)
        os.close(descriptor)


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def sync_file(path: str) -> None:
    """Bring a closed file to the disk. libhdf5's flush never does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    if os.name == "posix":
        sync_file(path)


def publish_file(partial: str, path: str) -> None:
    """Sync a finished file and give it its name in one step."""
    sync_file(partial)
    os.replace(partial, path)
    sync_folder(os.path.dirname(os.path.abspath(path)))


def remove(path: str) -> None:
    """Remove a file or a folder of ours; nothing happens where it is absent."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
