"""Pictures directly in a folder: no classes, so no labels."""

from __future__ import annotations

import os

from h5cache.convert.pictures import PictureOptions

from .listing import PICTURE_SUFFIXES, list_folder
from .picture_files import PictureFiles, check_not_empty

__all__ = ["FlatFolder"]


class FlatFolder(PictureFiles):
    """One field, `image`. Hidden files, other files and folders in `root` are passed over."""

    kind = "folder"

    def __init__(self, root: str | os.PathLike[str], pictures: PictureOptions | None = None) -> None:
        listed = list_folder(os.path.abspath(root), PICTURE_SUFFIXES)
        check_not_empty(listed, "no pictures directly in the folder")
        super().__init__(listed, pictures)
