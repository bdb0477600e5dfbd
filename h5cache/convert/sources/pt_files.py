"""PyTorch's `.pt` files: one sample per file in (class) folders, or one big file of tensors with a row per sample.

Loaded with `weights_only=True`, always: a `.pt` file is a pickle, and an untrusted pickle is a program.
"""

from __future__ import annotations

import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .listing import list_class_folders, list_folder
from .naming import check_names, name_fields
from .row_file import RowFile
from .sample_files import SampleFiles
from .source import BadSampleError, SourceError

__all__ = ["SAMPLE_SUFFIXES", "PtFile", "PtFiles"]

PT_SUFFIXES = (".pt", ".pth")
#: `.npy` files of one sample each are the same thing without torch.
SAMPLE_SUFFIXES = (*PT_SUFFIXES, ".npy")


class PtFiles(SampleFiles):
    """One sample per file: a tensor, or a tuple, list or dict of tensors and numbers.

    Files in class folders get a field `label`, the number of their folder, beside what they hold. A file that holds
    a `label` of its own must agree with its folder. Files directly in `root` have no label but their own.
    """

    kind = "pt-files"
    needs_torch = True

    def __init__(self, root: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        name = os.path.abspath(root)
        self._fields = check_names(fields)
        listed, classes, labels = list_class_folders(name, SAMPLE_SUFFIXES)
        if len(listed):
            super().__init__(listed, classes, labels)
        else:
            super().__init__(list_folder(name, SAMPLE_SUFFIXES))
        if not len(self):
            raise SourceError(f"{name}: no .pt, .pth or .npy files in the folder or its class folders")

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


class PtFile(RowFile):
    """One file of tensors (one, a tuple, list or dict of them) with a row per sample.

    The zip form (torch.save's since 1.6) is mapped, and only the rows asked for are read. The old form cannot be: it is
    read whole into each worker's memory.
    """

    kind = "pt-file"
    needs_torch = True

    @staticmethod
    def read_file(path: str) -> Any:
        try:
            return _read_pt(path, mmap=zipfile.is_zipfile(path))
        except BadSampleError as exc:
            raise SourceError(f"{path}: {exc}") from exc


def _read_pt(path: str, mmap: bool = False) -> Any:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles in another protocol: that it reads them, or why not, is enough
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError as exc:
        raise BadSampleError(exc.strerror or str(exc)) from exc
    except pickle.UnpicklingError as exc:
        raise BadSampleError(
            "it is damaged, or holds Python objects, which h5cache never loads (torch.load with weights_only=True "
            "refused it): save tensors, numbers, tuples, lists and dicts alone"
        ) from exc
    except Exception as exc:  # torch's unpickler raises whatever hostile bytes make it stumble over
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
