"""Pictures in class folders, the ImageNet layout: `root/class/file.jpg`, at any depth below the class."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

from h5cache.convert.pictures import PictureOptions
from h5cache.schema import Field, Schema

from .listing import PICTURE_SUFFIXES, FileList, list_class_folders
from .picture_files import PictureFiles, check_not_empty
from .source import Numbers, check_samples

__all__ = ["ClassFolders"]


class ClassFolders(PictureFiles):
    """Fields `image` and `label`; classes are the sorted names of the folders in `root`, empty ones included.

    Hidden files, files that are not pictures by their ending, and files directly in `root` are passed over.
    """

    kind = "class-folders"

    def __init__(self, root: str | os.PathLike[str], pictures: PictureOptions | None = None) -> None:
        self._listed, self._classes, self._labels = list_class_folders(os.path.abspath(root), PICTURE_SUFFIXES)
        check_not_empty(self._listed, "its folders hold no pictures")
        self._pictures = pictures or PictureOptions()

    @property
    def file_list(self) -> FileList:
        return self._listed

    @property
    def pictures(self) -> PictureOptions:
        return self._pictures

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    def labels(self) -> Numbers:
        return self._labels

    @property
    def schema(self) -> Schema | None:
        return self.picture_schema({"label": Field("int64")})

    def load(self, sample: int) -> Mapping[str, Any]:
        return {"image": self.load_picture(sample), "label": int(self._labels[sample])}

    def fingerprint(self) -> Mapping[str, Any]:
        return {**super().fingerprint(), "classes": list(self._classes)}

    def take(self, samples: Numbers) -> ClassFolders:
        taken = copy.copy(self)
        taken._listed = self._listed.take(samples)
        taken._labels = self._labels[check_samples(samples, len(self))]
        return taken
