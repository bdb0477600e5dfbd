"""Pictures made by a seed: as hard to compress as photographs, and of classes that a small network tells apart.

For the demonstration, benchmarks and notebooks, so that all of them run without a download.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["SCENE_CLASSES", "generate_pictures", "generate_scene", "write_class_folders"]

Floats: TypeAlias = npt.NDArray[np.float32]
Pixels: TypeAlias = npt.NDArray[np.uint8]
Rng: TypeAlias = np.random.Generator

#: Sides of a scene before it is cropped: those of a small photograph.
SCENE_SIZE = (240, 320)
JPEG_QUALITY = 92
#: Texture and noise that make scenes, scaled down, as hard to compress as photographs: 1.7 times smaller.
SCENE_FALLOFF = 0.6
SCENE_NOISE = 8.0
#: Clouds that scenes are cut from: making them anew for each would be three quarters of the work.
NUM_CLOUDS = 12
CLOUD_SIZE = 512


def generate_pictures(count: int, size: int, seed: int = 0) -> Pixels:
    """Make `(count, size, size, 3)` pictures that compress about as photographs do.

    Light that falls off smoothly, clouds of noise at every scale (amplitude falling with frequency, as in nature), a
    few shapes with soft edges and their own texture, and the noise of a sensor.
    """
    rng = np.random.default_rng(seed)
    return np.stack([_picture(rng, size) for _ in range(count)])


def write_class_folders(
    root: str, num_samples: int, seed: int = 0, advance: Callable[[int], Any] = lambda count: None, threads: int = 2
) -> tuple[str, ...]:
    """Write `root/class/0001.jpg`, as many of each class as of the others; return the classes.

    The same seed gives the same pictures. `advance(1)` is called after each, in some thread.
    """
    clouds = make_clouds(np.random.default_rng(seed))
    for name in SCENE_CLASSES:
        os.makedirs(os.path.join(root, name), exist_ok=True)

    def write(number: int) -> None:
        name = tuple(SCENE_CLASSES)[number % len(SCENE_CLASSES)]
        scene = generate_scene(np.random.default_rng([seed, number]), name, clouds)
        path = os.path.join(root, name, f"{number // len(SCENE_CLASSES):04d}.jpg")
        written = cv2.imwrite(path, scene[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
        if not written:
            raise OSError(f"{path}: OpenCV could not write the picture")
        advance(1)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for _ in pool.map(write, range(num_samples)):
                pass
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return tuple(SCENE_CLASSES)


def make_clouds(rng: Rng) -> Sequence[Floats]:
    return [_clouds(rng, CLOUD_SIZE, SCENE_FALLOFF) for _ in range(NUM_CLOUDS)]


def generate_scene(rng: Rng, name: str, clouds: Sequence[Floats]) -> Pixels:
    """Make one `(240, 320, 3)` picture of a class: a thing somewhere before a background, among other shapes."""
    height, width = SCENE_SIZE

    def cloud() -> Floats:
        chosen = clouds[int(rng.integers(len(clouds)))]
        top, left = int(rng.integers(CLOUD_SIZE - height)), int(rng.integers(CLOUD_SIZE - width))
        return chosen[top : top + height, left : left + width]

    picture = _background(rng, height, width, cloud)
    for _ in range(rng.integers(1, 4)):
        mask = _soft_shape(rng, height, width)[..., None]
        inside = rng.uniform(40, 200) + rng.normal(0, 22, 3) + rng.uniform(2, 12) * cloud()[..., None]
        picture = picture * (1 - mask) + inside.astype(np.float32) * mask
    colour, draw = SCENE_CLASSES[name]
    mask, light = draw(rng, height, width)
    thing = np.asarray(colour, np.float32) + rng.normal(0, 16, 3).astype(np.float32)
    inside = thing * (light[..., None] * rng.uniform(0.8, 1.1)) + rng.uniform(4, 10) * cloud()[..., None]
    picture = np.asarray(picture * (1 - mask[..., None]) + inside * mask[..., None], np.float32)
    picture += rng.standard_normal(picture.shape, np.float32) * np.float32(SCENE_NOISE)
    return _to_pixels(picture)


def _ball(rng: Rng, height: int, width: int) -> tuple[Floats, Floats]:
    """Return the mask of a ball and its light, brightest where the lamp is."""
    centre, radius = _place(rng, height, width)
    mask = np.zeros((height, width), np.float32)
    cv2.circle(mask, centre, radius, 1.0, -1)
    y, x = np.ogrid[0:height, 0:width]
    away = np.hypot(x - centre[0] + 0.4 * radius, y - centre[1] + 0.4 * radius) / radius
    return _soften(rng, mask), np.clip(1.25 - 0.5 * away, 0.3, 1.3).astype(np.float32)


def _crescent(rng: Rng, height: int, width: int) -> tuple[Floats, Floats]:
    centre, radius = _place(rng, height, width)
    mask = np.zeros((height, width), np.float32)
    cv2.circle(mask, centre, radius, 1.0, -1)
    angle, gap = rng.uniform(0, 2 * np.pi), 0.55 * radius
    bitten = (int(centre[0] + gap * np.cos(angle)), int(centre[1] + gap * np.sin(angle)))
    cv2.circle(mask, bitten, int(0.85 * radius), 0.0, -1)
    return _soften(rng, mask), np.ones((height, width), np.float32)


def _bricks(rng: Rng, height: int, width: int) -> tuple[Floats, Floats]:
    """Return the mask of a turned rectangle and the light of its courses, with joints between them."""
    centre, radius = _place(rng, height, width)
    angle = float(rng.uniform(-35, 35))
    corners = cv2.boxPoints((centre, (2.2 * radius, 1.3 * radius), angle)).astype(np.int32)
    mask = np.zeros((height, width), np.float32)
    cv2.fillPoly(mask, [corners], 1.0)
    turn = np.deg2rad(angle)
    y, x = np.ogrid[0:height, 0:width]
    across = (x - centre[0]) * -np.sin(turn) + (y - centre[1]) * np.cos(turn)
    light = np.where(np.mod(across, radius * 0.42) < radius * 0.06, 0.55, 1.0).astype(np.float32)
    return _soften(rng, mask), light


def _leaf(rng: Rng, height: int, width: int) -> tuple[Floats, Floats]:
    """Return the mask of a pointed ellipse and its light, with a vein along the middle."""
    centre, radius = _place(rng, height, width)
    turn = rng.uniform(0, np.pi)
    y, x = np.ogrid[0:height, 0:width]
    along = ((x - centre[0]) * np.cos(turn) + (y - centre[1]) * np.sin(turn)) / (1.3 * radius)
    across = ((y - centre[1]) * np.cos(turn) - (x - centre[0]) * np.sin(turn)) / (1.3 * radius)
    mask = (np.abs(across) < 0.45 * np.clip(1 - along**2, 0, 1)).astype(np.float32)
    light = np.where(np.abs(across) < 0.02, 1.35, 1.0 - 0.4 * np.abs(across))
    return _soften(rng, mask), light.astype(np.float32)


#: What a scene shows, sorted by name: its colour and how it is drawn. Different enough to be learnt in seconds.
SCENE_CLASSES: dict[str, tuple[tuple[int, int, int], Callable[[Rng, int, int], tuple[Floats, Floats]]]] = {
    "apple": ((196, 58, 48), _ball),
    "brick": ((172, 116, 78), _bricks),
    "leaf": ((84, 146, 62), _leaf),
    "moon": ((222, 218, 186), _crescent),
}


def _place(rng: Rng, height: int, width: int) -> tuple[tuple[int, int], int]:
    """Return a centre, not far from the picture's, and a radius."""
    centre = int(width * rng.uniform(0.4, 0.6)), int(height * rng.uniform(0.38, 0.62))
    return centre, int(height * rng.uniform(0.2, 0.34))


def _soften(rng: Rng, mask: Floats) -> Floats:
    return np.asarray(cv2.GaussianBlur(mask, (0, 0), float(rng.uniform(0.5, 1.2))), np.float32)


def _picture(rng: Rng, size: int) -> Pixels:
    picture = _background(rng, size, size, lambda: _clouds(rng, size))
    for _ in range(rng.integers(3, 8)):
        mask = _soft_shape(rng, size, size)[..., None]
        inside = rng.uniform(20, 230, 3).astype(np.float32) + rng.uniform(2, 14) * _clouds(rng, size)[..., None]
        picture = np.asarray(picture * (1 - mask) + inside * mask, np.float32)
    picture += rng.normal(0, 1.2, picture.shape).astype(np.float32)
    return _to_pixels(picture)


def _to_pixels(picture: npt.NDArray[Any]) -> Pixels:
    pixels: Pixels = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


def _background(rng: Rng, height: int, width: int, cloud: Callable[[], Floats]) -> Floats:
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / max(height, width)
    grey = 90 + 60 * rng.random() + 50 * (rng.normal() * (x - 0.5) + rng.normal() * (y - 0.5))
    colour = rng.normal(0, 18, 3).astype(np.float32)
    picture = grey[..., None] + colour + 22 * cloud()[..., None] + 5 * cloud()[..., None] * colour / 18
    return np.asarray(picture, np.float32)


def _clouds(rng: Rng, size: int, falloff: float = 0.9) -> Floats:
    """Return noise of unit deviation whose amplitude falls as 1/f, more or less."""
    clouds = np.zeros((size, size), np.float32)
    cells = 4
    while cells <= size:
        coarse = rng.normal(0, 1, (cells, cells)).astype(np.float32)
        clouds += cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC) * (4 / cells) ** falloff
        cells *= 2
    return np.asarray(clouds / clouds.std(), np.float32)


def _soft_shape(rng: Rng, height: int, width: int) -> Floats:
    size = max(height, width)
    mask = np.zeros((height, width), np.float32)
    centre = tuple(int(v) for v in rng.integers(0, size, 2))
    axes = tuple(int(v) for v in rng.integers(size // 12 + 1, size // 3 + 2, 2))
    if rng.random() < 0.5:
        cv2.ellipse(mask, centre, axes, float(rng.uniform(0, 180)), 0, 360, 1.0, -1)
    else:
        box = cv2.boxPoints((centre, axes, float(rng.uniform(0, 90)))).astype(np.int32)
        cv2.fillPoly(mask, [box], 1.0)
    return np.asarray(cv2.GaussianBlur(mask, (0, 0), float(rng.uniform(0.4, 1.5))), np.float32)
