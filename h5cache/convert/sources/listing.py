"""List the files of a folder: names, sizes and times in arrays. Knows endings, not what is in the files.

ImageNet has 1.3 million files: one `os.scandir` per folder, and nothing kept per file but its row of three arrays.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .source import MissingSourceError, Numbers, SourceError, SourceFiles, check_samples, digest

__all__ = ["PICTURE_SUFFIXES", "FileList", "list_class_folders", "list_folder"]

log = logging.getLogger(__name__)

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


@dataclass(frozen=True, eq=False)
class FileList:
    """Files below a root, one per sample. Frozen, picklable; small after `take`."""

    root: str
    #: Paths below the root as the system has them (bytes, forward slashes).
    names: npt.NDArray[np.bytes_]
    nbytes: Numbers
    mtimes_ns: Numbers

    def __len__(self) -> int:
        return len(self.names)

    def path(self, sample: int) -> str:
        return os.path.join(self.root, os.fsdecode(self.names[sample]))

    @cached_property
    def files(self) -> SourceFiles:
        return SourceFiles(_to_keys(self.names), self.nbytes, self.mtimes_ns)

    def digest(self) -> str:
        return digest(self.names, self.nbytes, self.mtimes_ns)

    def take(self, samples: Numbers) -> FileList:
        chosen = check_samples(samples, len(self))
        return FileList(self.root, _narrow(self.names[chosen]), self.nbytes[chosen], self.mtimes_ns[chosen])


def list_folder(root: str, suffixes: Sequence[str]) -> FileList:
    """List the files directly in `root` that end so, sorted by name. Hidden ones are left out."""
    rows = sorted(_scan(_checked_root(root), b"", _endings(suffixes), recurse=False))
    return _to_list(root, rows)


def list_class_folders(root: str, suffixes: Sequence[str]) -> tuple[FileList, tuple[str, ...], Numbers]:
    """List `root/class/**/file`: the files sorted by class, then by path; the class names; the class of each file.

    Every folder in `root` whose name does not begin with a dot is a class, sorted by name. One without files keeps
    its number, as it may have files in another split, and is logged. Links to folders are followed; a folder that is
    reached twice within one class is listed once.
    """
    top = _checked_root(root)
    classes = sorted(os.fsdecode(entry.name) for entry in _entries(top) if _is_folder(entry))
    ending = _endings(suffixes)
    lists, counts = [], []
    for name in classes:
        prefix = os.fsencode(name) + b"/"
        lists.append(_to_list(root, sorted(_scan(os.path.join(top, os.fsencode(name)), prefix, ending, recurse=True))))
        counts.append(len(lists[-1]))
    empty = [name for name, count in zip(classes, counts, strict=True) if not count]
    if empty and len(empty) < len(classes):
        log.warning("%s: %d class folder(s) without files to convert: %s", root, len(empty), ", ".join(empty[:10]))
    labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
    files = _join(root, lists)
    return files, tuple(_to_text(os.fsencode(name)) for name in classes), labels


def _scan(folder: bytes, prefix: bytes, suffixes: tuple[bytes, ...], recurse: bool) -> Iterator[tuple[bytes, int, int]]:
    # A link that leads up and out again would list the other classes, or the whole disk.
    seen = {_identity(parent) for parent in _parents(folder)}
    # Links are followed after all real folders and in order of name: the same tree always gives the same keys.
    real = [(folder, prefix)]
    links: list[tuple[bytes, bytes]] = []
    while real or links:
        folder, prefix = real.pop() if real else links.pop()
        if _identity(folder) in seen:
            continue
        seen.add(_identity(folder))
        for entry in _entries(folder):
            if entry.name.lower().endswith(suffixes) and not _is_folder(entry):
                yield (prefix + entry.name, *_size_and_time(entry))
            elif recurse and _is_folder(entry):
                (links if entry.is_symlink() else real).append((entry.path, prefix + entry.name + b"/"))
        links.sort(key=lambda item: item[1], reverse=True)


def _identity(folder: bytes) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _parents(folder: bytes) -> Iterator[bytes]:
    above = os.path.dirname(os.path.abspath(folder))
    while above != folder:
        yield above
        folder, above = above, os.path.dirname(above)


def _entries(folder: bytes) -> Iterator[os.DirEntry[bytes]]:
    """Yield what is in a folder but for hidden entries."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(b"."):
                yield entry


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle
        return False


def _size_and_time(entry: os.DirEntry[bytes]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:
        # A dangling link is not passed over in silence: it becomes a bad sample when it is read.
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _checked_root(root: str) -> bytes:
    if not os.path.exists(root):
        raise MissingSourceError(errno.ENOENT, "there is no such folder", root)
    if not os.path.isdir(root):
        raise SourceError(f"{root}: is a file; a folder was expected")
    return os.fsencode(root)


def _endings(suffixes: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(suffix.encode() for suffix in suffixes)


def _to_list(root: str, rows: Sequence[tuple[bytes, int, int]]) -> FileList:
    names = np.array([row[0] for row in rows], np.bytes_) if rows else np.zeros(0, "S1")
    numbers = np.array([row[1:] for row in rows], np.int64).reshape(len(rows), 2)
    return FileList(root, names, numbers[:, 0].copy(), numbers[:, 1].copy())


def _join(root: str, lists: Sequence[FileList]) -> FileList:
    if not lists:
        return _to_list(root, [])
    return FileList(
        root,
        np.concatenate([part.names for part in lists]),
        np.concatenate([part.nbytes for part in lists]),
        np.concatenate([part.mtimes_ns for part in lists]),
    )


def _to_keys(names: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bytes_]:
    """Names that are not UTF-8 (from an old disk) get \\xNN in their keys; their files are read all the same."""
    try:
        np.char.decode(names, "utf-8")
    except UnicodeDecodeError:
        return np.array([_to_text(name).encode() for name in names.tolist()], np.bytes_)
    return names


def _to_text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _narrow(names: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bytes_]:
    """As wide as the longest name taken, not as the longest of the whole source."""
    width = int(np.char.str_len(names).max()) if len(names) else 1
    return names.astype(f"S{max(width, 1)}")
