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

__all__ = [
    "check_absent",
    "check_kind",
    "check_parent",
    "lock_output",
    "partial_path",
    "publish_file",
    "sync_folder",
]


def partial_path(path: str) -> str:
    return path + ".partial"


def check_absent(path: str, overwrite: bool) -> None:
    if os.path.lexists(path) and not overwrite:
        raise DatasetExistsError(errno.EEXIST, "the output exists already; pass overwrite=True to replace it", path)


def check_kind(path: str, folder: bool) -> None:
    """Raise DatasetExistsError where a folder lies in the way of a file, or a file in the way of a folder."""
    if os.path.lexists(path) and os.path.isdir(path) != folder:
        kind, other = ("a folder of shards", "a file") if folder else ("a file", "a folder")
        raise DatasetExistsError(errno.EEXIST, f"the output is to be {kind}, but {other} has that name; rename", path)


def check_parent(path: str) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise MissingDatasetError(errno.ENOENT, "the folder of the output does not exist; create it first", parent)


#: Descriptors of the locks that this process holds.
_held: set[int] = set()


def _drop_inherited_locks() -> None:
    # A lock lives as long as any copy of its descriptor: a DataLoader worker would keep it beyond the writer's death.
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited_locks)


@contextmanager
def lock_output(path: str) -> Iterator[None]:
    """Hold the right to write `path`; DatasetBusyError where another process has it.

    The lock lies on a file beside the output and ends with the process, however that ends; forked children do not
    have it. The file itself is removed on leaving; one left by a kill is harmless.
    """
    lock_path = path + ".lock"
    owner = os.getpid()
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
    _held.add(descriptor)
    try:
        yield
    finally:
        if os.getpid() == owner:
            _held.discard(descriptor)
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
