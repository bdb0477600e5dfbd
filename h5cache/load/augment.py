"""Random crops and flips while rows are filled. Every draw depends on (seed, epoch, sample) alone, so it resumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Augmentation", "Geometry", "HorizontalFlip", "RandomCrop", "RandomResizedCrop", "plan_geometry"]

Draws: TypeAlias = "npt.NDArray[np.float64]"

#: Uniform draws per sample and augmentation: RandomResizedCrop tries ten boxes of (area, ratio) and places one.
DRAWS = 24


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirror a picture left to right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError(f"p must be from 0 to 1, got {self.p}")


@dataclass(frozen=True)
class RandomCrop:
    """Cut a `size` x `size` (or height, width) piece at a random place, after padding all sides with zeros."""

    size: int | tuple[int, int]
    padding: int = 0

    def __post_init__(self) -> None:
        if min(_pair(self.size)) < 1 or self.padding < 0:
            raise ValueError(f"size must be at least 1 and padding at least 0, got {self.size} and {self.padding}")


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cut a random area of a random shape and scale it to `size`, as torchvision's transform of that name does."""

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        ordered = 0 < self.scale[0] <= self.scale[1] and 0 < self.ratio[0] <= self.ratio[1]
        if min(_pair(self.size)) < 1 or not ordered:
            raise ValueError(f"size must be at least 1, scale and ratio rising pairs above 0, got {self}")


Augmentation: TypeAlias = "HorizontalFlip | RandomCrop | RandomResizedCrop"


@dataclass(frozen=True, eq=False)
class Geometry:
    """For each of some samples: the box that is cut out, the size it gets, whether it is mirrored. Columns."""

    top: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    height: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    flip: npt.NDArray[np.bool_]
    #: Zeros around the picture that boxes may reach into.
    padding: int
    #: Height and width of what comes out; boxes of another size are scaled to it.
    size: tuple[int, int]
    resize: bool


def output_size(augment: Sequence[Augmentation], size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width of augmented pictures; ValueError where a crop does not fit or crops are combined."""
    crops = [step for step in augment if not isinstance(step, HorizontalFlip)]
    if len(crops) > 1:
        raise ValueError(f"augment takes one crop at most, got {crops}")
    if not crops:
        return size
    wanted = _pair(crops[0].size)
    if isinstance(crops[0], RandomCrop):
        padded = tuple(side + 2 * crops[0].padding for side in size)
        if wanted[0] > padded[0] or wanted[1] > padded[1]:
            raise ValueError(f"a crop of {wanted} does not fit pictures of {size} with padding {crops[0].padding}")
    return wanted


def plan_geometry(
    augment: Sequence[Augmentation], size: tuple[int, int], seed: int, epoch: int, samples: npt.NDArray[np.int64]
) -> Geometry:
    """Draw what happens to each sample. Pure; vectorised over the samples."""
    count = len(samples)
    out = output_size(augment, size)
    top = np.zeros(count, np.int64)
    left = np.zeros(count, np.int64)
    height = np.full(count, size[0])
    width = np.full(count, size[1])
    flip = np.zeros(count, bool)
    padding, resize = 0, False
    for place, step in enumerate(augment):
        draws = uniform_draws(seed, epoch, samples, place)
        if isinstance(step, HorizontalFlip):
            flip ^= draws[:, 0] < step.p
        elif isinstance(step, RandomCrop):
            padding = step.padding
            height, width = np.full(count, out[0]), np.full(count, out[1])
            top = np.floor(draws[:, 0] * (size[0] + 2 * padding - out[0] + 1)).astype(np.int64)
            left = np.floor(draws[:, 1] * (size[1] + 2 * padding - out[1] + 1)).astype(np.int64)
        else:
            resize = True
            top, left, height, width = _random_boxes(step, size, draws)
    return Geometry(top, left, height, width, flip, padding, out, resize)


def _random_boxes(step: RandomResizedCrop, size: tuple[int, int], draws: Draws) -> tuple[Any, Any, Any, Any]:
    """Draw boxes as torchvision does: ten tries for an area and an aspect ratio that fit, then the whole centre."""
    tries = (DRAWS - 2) // 2
    area = size[0] * size[1] * (step.scale[0] + draws[:, :tries] * (step.scale[1] - step.scale[0]))
    low, high = math.log(step.ratio[0]), math.log(step.ratio[1])
    ratio = np.exp(low + draws[:, tries : 2 * tries] * (high - low))
    width = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    height = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (width > 0) & (width <= size[1]) & (height > 0) & (height <= size[0])
    first = np.argmax(fits, axis=1)
    rows = np.arange(len(draws))
    whole_width, whole_height = _central_box(step, size)
    found = fits[rows, first]
    width = np.where(found, width[rows, first], whole_width)
    height = np.where(found, height[rows, first], whole_height)
    top = np.where(found, np.floor(draws[:, -2] * (size[0] - height + 1)), (size[0] - height) // 2).astype(np.int64)
    left = np.where(found, np.floor(draws[:, -1] * (size[1] - width + 1)), (size[1] - width) // 2).astype(np.int64)
    return top, left, height, width


def _central_box(step: RandomResizedCrop, size: tuple[int, int]) -> tuple[int, int]:
    height, width = size
    shape = width / height
    if shape < step.ratio[0]:
        return width, min(height, round(width / step.ratio[0]))
    if shape > step.ratio[1]:
        return min(width, round(height * step.ratio[1])), height
    return width, height


def uniform_draws(seed: int, epoch: int, samples: npt.NDArray[np.int64], place: int) -> Draws:
    """Return DRAWS numbers in [0, 1) for each sample, a pure function of the arguments.

    A counter through splitmix64's finaliser: independent per sample without making a generator for each.
    """
    key = np.random.SeedSequence([seed, epoch, place]).generate_state(1, np.uint64)[0]
    counter = samples.astype(np.uint64)[:, None] * np.uint64(DRAWS) + np.arange(DRAWS, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = key + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    draws: Draws = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
