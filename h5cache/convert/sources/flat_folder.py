"""Pictures directly in a folder: no classes, so no labels."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

from h5cache.convert.pictures import PictureOptions
from h5cache.schema import Schema

from .listing import PICTURE_SUFFIXES, FileList, list_folder
from .picture_files import PictureFiles, check_not_empty
from .source import Numbers

__all__ = ["FlatFolder"]


class FlatFolder(PictureFiles):
    """One field, `image`. Hidden files, other files and folders in `root` are passed over."""

    kind = "folder"

    def __init__(self, root: str | os.PathLike[str], pictures: PictureOptions | None = None) -> None:
        self._listed = list_folder(os.path.abspath(root), PICTURE_SUFFIXES)
        check_not_empty(self._listed, "no pictures directly in the folder")
        self._pictures = pictures or PictureOptions()

    @property
    def file_list(self) -> FileList:
        return self._listed

    @property
    def pictures(self) -> PictureOptions:
        return self._pictures

    @property
    def schema(self) -> Schema | None:
        return self.picture_schema({})

    def load(self, sample: int) -> Mapping[str, Any]:
        return {"image": self.load_picture(sample)}

    def take(self, samples: Numbers) -> FlatFolder:
        taken = copy.copy(self)
        taken._listed = self._listed.take(samples)
        return taken
