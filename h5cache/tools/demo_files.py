"""The demonstration's pictures in the forms people keep them in: JPEG, `.pt`, zipped `.pt`. Really written."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from h5cache.convert.pictures import PictureOptions, decode_picture
from h5cache.convert.sources.class_folders import ClassFolders

__all__ = ["PtFolders", "ZippedSamples", "save_tensors"]


@dataclass(frozen=True)
class PtFolders:
    """Where each sample lies as a file of each kind, in the order of the pictures' keys, and its class."""

    keys: tuple[str, ...]
    labels: tuple[int, ...]
    float32: tuple[str, ...]
    float32_zip: tuple[str, ...]
    uint8: tuple[str, ...]


class ZippedSamples(Dataset[Any]):
    """One zipped `.pt` file per sample, unzipped in memory: kinder than the usual temporary file."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int]) -> None:
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = np.asarray(labels, np.int64)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, int]:
        with zipfile.ZipFile(os.fsdecode(self._paths[sample])) as archive:
            data = archive.read(archive.namelist()[0])
        return torch.load(io.BytesIO(data), weights_only=True), int(self._labels[sample])


def save_tensors(
    pictures: str, root: str, options: PictureOptions, advance: Callable[[int], Any], threads: int
) -> PtFolders:
    """Decode all pictures and `torch.save` them: as normalised float32, the same zipped, and as uint8.

    Each tensor owns its memory, so that no file holds more than its sample.
    """
    source = ClassFolders(pictures)
    keys = tuple(key.decode() for key in source.files.keys.tolist())
    kinds = {"pt-float32": ".pt", "pt-float32-zip": ".pt.zip", "pt-uint8": ".pt"}
    places = {
        kind: tuple(os.path.join(root, kind, os.path.splitext(key)[0] + ending) for key in keys)
        for kind, ending in kinds.items()
    }
    for kind in kinds:
        for name in source.classes:
            os.makedirs(os.path.join(root, kind, name), exist_ok=True)
    raw = PictureOptions(options.resize, options.size)

    def save(number: int) -> None:
        path = source.file_list.path(number)
        torch.save(torch.from_numpy(decode_picture(path, raw)), places["pt-uint8"][number])
        plain = places["pt-float32"][number]
        torch.save(torch.from_numpy(decode_picture(path, options)), plain)
        with zipfile.ZipFile(places["pt-float32-zip"][number], "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(plain, os.path.basename(plain))
        advance(1)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for _ in pool.map(save, range(len(keys))):
                pass
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return PtFolders(
        keys, tuple(source.labels.tolist()), places["pt-float32"], places["pt-float32-zip"], places["pt-uint8"]
    )
