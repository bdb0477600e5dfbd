"""What sources of one file per sample share: the list of files, and a class for each where folders or lists name it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

from .listing import FileList
from .source import Numbers, Source, SourceFiles, check_samples

__all__ = ["SampleFiles"]

Own = TypeVar("Own", bound="SampleFiles")


class SampleFiles(Source):
    """One file per sample. `take` carries the rows of its samples alone."""

    def __init__(self, listed: FileList, classes: Sequence[str] = (), labels: Numbers | None = None) -> None:
        self._listed = listed
        self._classes = tuple(classes)
        self._labels = labels

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

    def take(self: Own, samples: Numbers) -> Own:
        taken = copy.copy(self)
        taken._listed = self._listed.take(samples)
        taken._labels = None if self._labels is None else self._labels[check_samples(samples, len(self))]
        return taken
