"""What all sources of picture files share: a list of files, options, and reading one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.convert.picture_bytes import read_picture_file
from h5cache.convert.pictures import PictureOptions, decode_picture
from h5cache.schema import Field, Schema

from .listing import PICTURE_SUFFIXES, FileList
from .sample_files import SampleFiles
from .source import BadSampleError, Numbers, SourceError

__all__ = ["PictureFiles", "check_not_empty"]


class PictureFiles(SampleFiles):
    """One picture file per sample: the field `image`, and `label` where the class of each is known."""

    needs_cv2 = True

    def __init__(
        self,
        listed: FileList,
        pictures: PictureOptions | None,
        classes: Sequence[str] = (),
        labels: Numbers | None = None,
    ) -> None:
        super().__init__(listed, classes, labels)
        self._pictures = pictures or PictureOptions()

    @property
    def pictures(self) -> PictureOptions:
        return self._pictures

    @property
    def schema(self) -> Schema | None:
        if not self._pictures.has_fixed_size:
            return None
        label = {} if self._labels is None else {"label": Field("int64")}
        return Schema.of({"image": self._pictures.field(), **label})

    def load(self, sample: int) -> Mapping[str, Any]:
        label = {} if self._labels is None else {"label": int(self._labels[sample])}
        return {"image": self.load_picture(sample), **label}

    def load_picture(self, sample: int) -> npt.NDArray[np.generic]:
        data = read_picture_file(self._listed.path(sample))
        if len(data) != self._listed.nbytes[sample]:
            raise BadSampleError(
                f"the file has changed since it was listed: it had {self._listed.nbytes[sample]} bytes and now has "
                f"{len(data)}"
            )
        return decode_picture(data, self._pictures)

    def fingerprint(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "pictures": self._pictures.to_config(), "files": self._listed.digest()}


def check_not_empty(files: FileList, problem: str) -> None:
    if not len(files):
        raise SourceError(f"{files.root}: {problem} ({', '.join(ending[1:] for ending in PICTURE_SUFFIXES)})")
