"""What is wrong with a person's tensor files, as one value: causes, what each costs, and what h5cache would make of it.

All files are counted by `stat`, some are opened; what was measured on those is projected to all. Every wasted byte is
counted once: first what no tensor shows, then the bits that no value needs, then zeros. The problems
are found in `doctor_findings.py`, the command in `doctor_cure.py`, the words for people are in `doctor_text.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from h5cache.tools.doctor_cure import Cure, plan_cure
from h5cache.tools.doctor_findings import FieldLooks, Finding, find_problems, gather
from h5cache.tools.tensor_files import FileLook, look_at_file
from h5cache.tools.tensor_listing import TensorFiles, list_tensor_files

__all__ = ["SAMPLE_FILES", "Diagnosis", "Finding", "diagnose", "to_json"]

#: Files that are opened: a few seconds, and every 20th of a set of 4,000 tells what its preprocessing did.
SAMPLE_FILES = 200


@dataclass(frozen=True)
class Diagnosis:
    """All that `h5cache doctor` tells. Findings are in order of what they cost."""

    path: str
    num_files: int
    num_folders: int
    num_opened: int
    total_nbytes: int
    #: What the file system gives them: whole blocks.
    disk_nbytes: int
    #: Bytes of the tensors themselves, projected.
    tensor_nbytes: int
    findings: tuple[Finding, ...]
    cure: Cure

    @property
    def is_projected(self) -> bool:
        return self.num_opened < self.num_files


def diagnose(
    path: str | os.PathLike[str],
    num_sample: int = SAMPLE_FILES,
    progress: Callable[[int], None] | None = None,
    files: TensorFiles | None = None,
) -> Diagnosis:
    """Look at the files below a path, or at one file. Nothing is written but a trial in a temporary folder.

    `progress` is called with the number of files opened; `files` is the listing, where it was made already.
    SourceError or FileNotFoundError where there is nothing to look at.
    """
    files = files or list_tensor_files(os.fspath(path))
    count = min(len(files.names), max(1, num_sample))
    chosen = np.unique(np.linspace(0, len(files.names) - 1, count).astype(np.int64))
    looks: list[FileLook] = []
    fields: dict[str, FieldLooks] = {}
    for number in chosen.tolist():
        look, values = look_at_file(files.path(number))
        looks.append(look)
        gather(fields, look, values, is_rows=look.is_batch or not files.names[0])
        if progress is not None:
            progress(1)
    opened_nbytes = sum(look.nbytes for look in looks)
    scale = files.total_nbytes / opened_nbytes if opened_nbytes else 1.0
    return Diagnosis(
        path=os.fspath(path),
        num_files=len(files.names),
        num_folders=files.num_folders,
        num_opened=len(looks),
        total_nbytes=files.total_nbytes,
        disk_nbytes=max(files.total_nbytes, int(files.disk_nbytes.sum())),
        tensor_nbytes=round(scale * sum(look.array_nbytes for look in looks)),
        findings=tuple(_with_names(one, files.root) for one in find_problems(fields, looks, files)),
        cure=plan_cure(os.fspath(path), looks, len(files.names)),
    )


def _with_names(finding: Finding, root: str) -> Finding:
    names = tuple(os.path.basename(path) if path == root else os.path.relpath(path, root) for path in finding.examples)
    return replace(finding, examples=names)


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON values. Keys are only ever added, never renamed."""
    return {**asdict(diagnosis), "is_projected": diagnosis.is_projected}
