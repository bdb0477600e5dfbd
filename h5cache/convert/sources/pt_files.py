"""PyTorch's `.pt` files: one sample per file in (class) folders, or one big file of tensors with a row per sample.

Loaded with `weights_only=True`, always: a `.pt` file is a pickle, and an untrusted pickle is a program.
"""

from __future__ import annotations

import copy
import math
import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .arrays import check_rows, check_unchanged, file_state, labels_of, name_columns
from .listing import FileList, list_class_folders, list_folder
from .naming import check_names, name_fields, to_own
from .source import (
    BadSampleError,
    Numbers,
    Source,
    SourceError,
    SourceFiles,
    check_samples,
    number_keys,
)

__all__ = ["SAMPLE_SUFFIXES", "PtFile", "PtFiles"]

PT_SUFFIXES = (".pt", ".pth")
#: `.npy` files of one sample each are the same thing without torch.
SAMPLE_SUFFIXES = (*PT_SUFFIXES, ".npy")


class PtFiles(Source):
    """One sample per file: a tensor, or a tuple, list or dict of tensors and numbers.

    Files in class folders get a field `label`, the number of their folder, beside what they hold. A file that holds
    a `label` of its own must agree with its folder. Files directly in `root` have no label but their own.
    """

    kind = "pt-files"
    needs_torch = True

    def __init__(self, root: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        name = os.path.abspath(root)
        self._fields = check_names(fields)
        self._classes: tuple[str, ...]
        self._labels: Numbers | None
        self._listed, self._classes, self._labels = list_class_folders(name, SAMPLE_SUFFIXES)
        if not len(self._listed):
            self._listed, self._classes, self._labels = list_folder(name, SAMPLE_SUFFIXES), (), None
        if not len(self._listed):
            raise SourceError(f"{name}: no .pt, .pth or .npy files in the folder or its class folders")

    @property
    def file_list(self) -> FileList:
        return self._listed

    def __len__(self) -> int:
        return len(self._listed)

    @property
    def files(self) -> SourceFiles:
        return self._listed.files

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def labels(self) -> Numbers | None:
        return self._labels

    def load(self, sample: int) -> Mapping[str, Any]:
        path = self._listed.path(sample)
        held = _read_npy(path) if path.lower().endswith(".npy") else _read_pt(path)
        try:
            values = name_fields(held, self._fields)
        except SourceError as exc:
            raise BadSampleError(str(exc)) from exc
        return values if self._labels is None else _with_label(values, int(self._labels[sample]))

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "fields": None if self._fields is None else list(self._fields),
            "classes": list(self._classes),
            "files": self._listed.digest(),
        }

    def take(self, samples: Numbers) -> PtFiles:
        taken = copy.copy(self)
        taken._listed = self._listed.take(samples)
        taken._labels = None if self._labels is None else self._labels[check_samples(samples, len(self))]
        return taken


class PtFile(Source):
    """One file of tensors (one, a tuple, list or dict of them) with a row per sample. Mapped where torch can."""

    kind = "pt-file"
    needs_torch = True

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        self._path = os.path.abspath(path)
        self._fields = check_names(fields)
        self._nbytes, self._mtime_ns = file_state(self._path)
        try:
            columns = self._open()
        except BadSampleError as exc:
            raise SourceError(f"{self._path}: {exc}") from exc
        self._count = check_rows(self._path, columns)
        self._labels = labels_of(columns)

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> SourceFiles:
        return SourceFiles(number_keys(self._count))

    @property
    def labels(self) -> Numbers | None:
        return self._labels

    def load(self, sample: int) -> Mapping[str, Any]:
        check_unchanged(self._path, self._nbytes, self._mtime_ns)
        return {name: to_own(column[sample]) for name, column in self._open().items()}

    def fingerprint(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "fields": None if self._fields is None else list(self._fields),
            "file": [os.path.basename(self._path), self._nbytes, self._mtime_ns],
        }

    def _open(self) -> dict[str, Any]:
        return name_columns(_open_big(self._path, self._nbytes, self._mtime_ns), self._fields)


@lru_cache(maxsize=1)
def _open_big(path: str, nbytes: int, mtime_ns: int) -> Any:
    """Open the big file; once per worker, not once per task. Size and time tell it from a newer one."""
    # Only the zip form (torch.save's since 1.6) can be mapped; the old form is read whole.
    return _read_pt(path, mmap=zipfile.is_zipfile(path))


def _read_pt(path: str, mmap: bool = False) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError as exc:
        raise BadSampleError(exc.strerror or str(exc)) from exc
    except pickle.UnpicklingError as exc:
        raise BadSampleError(
            "it is damaged, or holds Python objects, which h5cache never loads (torch.load with weights_only=True "
            "refused it): save tensors, numbers, tuples, lists and dicts alone"
        ) from exc
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError) as exc:
        raise BadSampleError(f"torch cannot read it: {_first_line(exc)}") from exc


def _read_npy(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as exc:
        raise BadSampleError(f"numpy cannot read it: {_first_line(exc)}") from exc


def _with_label(values: dict[str, Any], folder: int) -> dict[str, Any]:
    own = values.get("label")
    if own is None:
        return {**values, "label": folder}
    # By shape: numpy's size of a tensor is the tensor's method of that name.
    if math.prod(getattr(own, "shape", ())) != 1 or int(own) != folder:
        raise BadSampleError(
            f"the file holds the label {own}, its folder is number {folder}; give the field another name by fields="
        )
    return values


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]
