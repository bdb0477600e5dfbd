"""Pictures for the benchmarks: made by a seed, or read from a folder by the usual pipeline."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["generate_pictures", "load_pictures"]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}


def generate_pictures(count: int, size: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Make `(count, size, size, 3)` pictures that compress about as photographs do.

    Light that falls off smoothly, clouds of noise at every scale (amplitude falling with frequency, as in nature), a
    few shapes with soft edges and their own texture, and the noise of a sensor.
    """
    rng = np.random.default_rng(seed)
    return np.stack([_picture(rng, size) for _ in range(count)])


def _picture(rng: np.random.Generator, size: int) -> npt.NDArray[np.uint8]:
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size
    grey = 90 + 60 * rng.random() + 50 * (rng.normal() * (x - 0.5) + rng.normal() * (y - 0.5))
    colour = rng.normal(0, 18, 3).astype(np.float32)
    picture = (
        grey[..., None] + colour + 22 * _clouds(rng, size)[..., None] + 5 * _clouds(rng, size)[..., None] * colour / 18
    )
    for _ in range(rng.integers(3, 8)):
        mask = _soft_shape(rng, size)[..., None]
        inside = rng.uniform(20, 230, 3).astype(np.float32) + rng.uniform(2, 14) * _clouds(rng, size)[..., None]
        picture = picture * (1 - mask) + inside * mask
    picture += rng.normal(0, 1.2, picture.shape).astype(np.float32)
    return np.clip(picture, 0, 255).astype(np.uint8)


def _clouds(rng: np.random.Generator, size: int) -> npt.NDArray[np.float32]:
    """Return noise of unit deviation whose amplitude falls as 1/f."""
    clouds = np.zeros((size, size), np.float32)
    cells = 4
    while cells <= size:
        coarse = rng.normal(0, 1, (cells, cells)).astype(np.float32)
        clouds += cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC) * (4 / cells) ** 0.9
        cells *= 2
    return clouds / clouds.std()


def _soft_shape(rng: np.random.Generator, size: int) -> npt.NDArray[np.float32]:
    mask = np.zeros((size, size), np.float32)
    centre = tuple(int(v) for v in rng.integers(0, size, 2))
    axes = tuple(int(v) for v in rng.integers(size // 12 + 1, size // 3 + 2, 2))
    if rng.random() < 0.5:
        cv2.ellipse(mask, centre, axes, float(rng.uniform(0, 180)), 0, 360, 1.0, -1)
    else:
        box = cv2.boxPoints((centre, axes, float(rng.uniform(0, 90)))).astype(np.int32)
        cv2.fillPoly(mask, [box], 1.0)
    return cv2.GaussianBlur(mask, (0, 0), float(rng.uniform(0.4, 1.5)))


def load_pictures(folder: Path, count: int, size: int = 224) -> npt.NDArray[np.uint8]:
    """Read up to `count` pictures, spread over the folder: short side to 8/7 of `size`, centre crop, RGB."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    if not files:
        raise SystemExit(f"no pictures in {folder}")
    chosen = files[:: max(1, len(files) // count)][:count]
    return np.stack([_load(path, size) for path in chosen])


def _load(path: Path, size: int) -> npt.NDArray[np.uint8]:
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
