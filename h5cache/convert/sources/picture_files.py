"""What all sources of picture files share: a list of files, options, and reading one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.picture_bytes import read_picture_file
from h5cache.convert.pictures import PictureOptions, decode_picture
from h5cache.schema import Field, Schema

from .listing import PICTURE_SUFFIXES, FileList
from .source import BadSampleError, Source, SourceError, SourceFiles

__all__ = ["PictureFiles", "check_not_empty"]


class PictureFiles(Source):
    """One picture file per sample."""

    needs_cv2 = True

    @property
    @abstractmethod
    def file_list(self) -> FileList: ...

    @property
    @abstractmethod
    def pictures(self) -> PictureOptions: ...

    def __len__(self) -> int:
        return len(self.file_list)

    @property
    def files(self) -> SourceFiles:
        return self.file_list.files

    def picture_schema(self, others: Mapping[str, Field]) -> Schema | None:
        return Schema.of({"image": self.pictures.field(), **others}) if self.pictures.has_fixed_size else None

    def load_picture(self, sample: int) -> npt.NDArray[np.generic]:
        data = read_picture_file(self.file_list.path(sample))
        if len(data) != self.file_list.nbytes[sample]:
            raise BadSampleError(
                f"the file has changed since it was listed: it had {self.file_list.nbytes[sample]} bytes and now has "
                f"{len(data)}"
            )
        return decode_picture(data, self.pictures)

    def fingerprint(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "pictures": self.pictures.to_config(), "files": self.file_list.digest()}


def check_not_empty(files: FileList, problem: str) -> None:
    if not len(files):
        raise SourceError(f"{files.root}: {problem} ({', '.join(ending[1:] for ending in PICTURE_SUFFIXES)})")
