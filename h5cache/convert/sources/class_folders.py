"""Pictures in class folders, the ImageNet layout: `root/class/file.jpg`, at any depth below the class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from h5cache.convert.pictures import PictureOptions

from .listing import PICTURE_SUFFIXES, list_class_folders
from .picture_files import PictureFiles, check_not_empty
from .source import Numbers

__all__ = ["ClassFolders"]


class ClassFolders(PictureFiles):
    """Fields `image` and `label`; classes are the sorted names of the folders in `root`, empty ones included.

    Hidden files, files that are not pictures by their ending, and files directly in `root` are passed over.
    """

    kind = "class-folders"
    _labels: Numbers

    def __init__(self, root: str | os.PathLike[str], pictures: PictureOptions | None = None) -> None:
        listed, classes, labels = list_class_folders(os.path.abspath(root), PICTURE_SUFFIXES)
        check_not_empty(listed, "its folders hold no pictures")
        super().__init__(listed, pictures, classes, labels)

    @property
    def labels(self) -> Numbers:
        return self._labels

    def fingerprint(self) -> Mapping[str, Any]:
        return {**super().fingerprint(), "classes": list(self._classes)}
