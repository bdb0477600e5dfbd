"""List tensor files below a path: names, sizes, and what the file system gives them. Opens none."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from h5cache.convert.sources.source import SourceError

__all__ = ["SUFFIXES", "TensorFiles", "list_tensor_files"]

SUFFIXES = (".pt", ".pth", ".npy", ".npz")


@dataclass(frozen=True)
class TensorFiles:
    """The files below a path: sizes and bytes that the file system gives them."""

    root: str
    names: tuple[str, ...]
    nbytes: npt.NDArray[np.int64]
    disk_nbytes: npt.NDArray[np.int64]
    num_folders: int

    @property
    def total_nbytes(self) -> int:
        return int(self.nbytes.sum())

    def path(self, number: int) -> str:
        return os.path.join(self.root, self.names[number]) if self.names[number] else self.root


def list_tensor_files(path: str, suffixes: Sequence[str] = SUFFIXES) -> TensorFiles:
    """List files at any depth, sorted; hidden ones are left out, links to folders followed once."""
    root = os.path.abspath(path)
    if not os.path.exists(root):
        raise FileNotFoundError(errno.ENOENT, "there is no such file or folder", path)
    if not os.path.isdir(root):
        if not root.lower().endswith(tuple(suffixes)):
            raise SourceError(f"{path}: a folder was expected, or a file that ends in {', '.join(suffixes)}")
        rows = [("", *_sizes(os.stat(root)))]
    else:
        rows = sorted(_scan(root, tuple(suffixes)))
    if not rows:
        raise SourceError(f"{path}: no {', '.join(suffixes)} files in the folder or the folders in it")
    names, nbytes, disk = zip(*rows, strict=True)
    folders = len({os.path.dirname(name) for name in names})
    return TensorFiles(root, names, np.array(nbytes, np.int64), np.array(disk, np.int64), folders)


def _scan(root: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, int, int]]:
    folders, seen = [(root, "")], set()
    while folders:
        folder, prefix = folders.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append((entry.path, f"{prefix}{entry.name}/"))
                elif entry.name.lower().endswith(suffixes):
                    try:
                        yield (prefix + entry.name, *_sizes(entry.stat()))
                    except OSError:  # a link that leads nowhere: opening it says so
                        yield prefix + entry.name, 0, 0


def _sizes(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, getattr(status, "st_blocks", 0) * 512
