"""Pictures for the benchmarks: made by a seed, or read from a folder by the usual pipeline."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from h5cache.tools.pictures import generate_pictures

__all__ = ["find_pictures", "generate_pictures", "load_picture", "load_pictures"]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def load_pictures(folder: Path, count: int, size: int = 224) -> npt.NDArray[np.uint8]:
    """Read up to `count` pictures, spread over the folder: short side to 8/7 of `size`, centre crop, RGB."""
    return np.stack([load_picture(path, size) for path in find_pictures(folder, count)])


def find_pictures(folder: Path, count: int) -> list[Path]:
    """Return the paths of up to `count` pictures, spread over the folder."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not files:
        raise SystemExit(f"no pictures in {folder}")
    return files[:: max(1, len(files) // count)][:count]


def load_picture(path: Path, size: int) -> npt.NDArray[np.uint8]:
    """Read one picture: short side to 8/7 of `size`, centre crop, RGB."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise SystemExit(f"not a picture: {path}")
    short_side = size * 256 // 224
    height, width = image.shape[:2]
    short = min(height, width)
    target = tuple(short_side if side == short else round(side * short_side / short) for side in (width, height))
    image = cv2.resize(image, target, interpolation=cv2.INTER_CUBIC if short < short_side else cv2.INTER_AREA)
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    crop = image[top : top + size, left : left + size]
    return np.ascontiguousarray(crop[..., ::-1])
