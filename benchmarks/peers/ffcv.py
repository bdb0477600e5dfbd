"""FFCV: pixels as they are, as an array or as JPEG, read by its compiled pipeline in threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, check_exact, check_similar

RAW, NDARRAY, JPEG, RESIZED = "FFCV raw", "FFCV ndarray", "FFCV JPEG-90", "FFCV raw, random resized crop, flip"


class _Samples:
    """Samples as FFCV's writer asks for them: pictures with channels last, arrays as they are."""

    def __init__(self, source: Source, pictures: bool) -> None:
        self.images, self.pictures = source.images, pictures

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = np.asarray(self.images[index])
        return np.ascontiguousarray(image.transpose(1, 2, 0)) if self.pictures else image, index


def build(source: Source, folder: Path, kind: str) -> None:
    from ffcv.fields import IntField, NDArrayField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {
        RAW: lambda: RGBImageField(write_mode="raw"),
        JPEG: lambda: RGBImageField(write_mode="jpg", jpeg_quality=90),
        NDARRAY: lambda: NDArrayField(np.dtype(np.uint8), source.images.shape[1:]),
    }
    writer = DatasetWriter(str(folder / "data.beton"), {"image": fields[kind](), "label": IntField()}, num_workers=1)
    writer.from_indexed_dataset(_Samples(source, pictures=kind != NDARRAY))


def open_random(folder: Path, setting: Setting, kind: str) -> Callable[[], Epoch]:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.ndarray import NDArrayDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    path = str(folder / "data.beton")
    if kind == NDARRAY:
        image = [NDArrayDecoder(), ToTensor()]
    elif kind == RESIZED:
        size = _stored_size(path)
        image = [RandomResizedCropRGBImageDecoder((size, size)), RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    else:
        image = [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage()]
    loader = Loader(
        path,
        batch_size=setting.batch_size,
        num_workers=setting.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": image, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return lambda: loader


def _stored_size(path: str) -> int:
    from ffcv.reader import Reader

    return int(Reader(path).metadata["f0"]["height"][0])


PEERS = [
    Contestant(
        name,
        store,
        functools.partial(build, kind=stored_as),
        functools.partial(open_random, kind=name),
        ("ffcv",),
        check=check,
        reopen_when_cold=False,
    )
    for name, store, stored_as, check in (
        (RAW, "ffcv-raw", RAW, check_exact),
        (NDARRAY, "ffcv-ndarray", NDARRAY, check_exact),
        (JPEG, "ffcv-jpeg", JPEG, check_similar),
        (RESIZED, "ffcv-raw", RAW, None),
    )
]
