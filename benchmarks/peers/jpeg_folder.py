"""A folder of JPEGs, decoded, scaled and cropped by cv2 for every sample: no preprocessing at all.

The photographs themselves where a folder of them was given, else the pictures at twice their size.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, check_similar, worker_loader


class FolderDataset:
    def __init__(self, folder: Path) -> None:
        self.files = sorted(path for path in folder.iterdir() if path.suffix != ".npy")
        self.size = int(np.load(folder / "size.npy"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        import cv2
        import torch
        from pictures import load_picture

        cv2.setNumThreads(0)
        picture = load_picture(self.files[index], self.size)
        return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))), index


def build(source: Source, folder: Path) -> None:
    import cv2

    images, photographs = source.images, source.photographs
    size = images.shape[-1]
    np.save(folder / "size.npy", size)
    border = size // 14  # what load_picture crops: its short side is 8/7 of the size
    for index, image in enumerate(images):
        if photographs:
            photograph = Path(photographs[index % len(photographs)])
            shutil.copyfile(photograph, folder / f"{index:08d}{photograph.suffix}")
            continue
        picture = np.ascontiguousarray(image.transpose(1, 2, 0)[..., ::-1])
        framed = cv2.copyMakeBorder(picture, border, border, border, border, cv2.BORDER_REFLECT)
        large = cv2.resize(framed, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{index:08d}.jpg"), large, [cv2.IMWRITE_JPEG_QUALITY, 90])


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    return worker_loader(FolderDataset(folder), setting)


PEERS = [Contestant("JPEG folder, cv2", "jpeg-folder", build, open_shuffled, ("cv2", "h5cache"), check=check_similar)]
