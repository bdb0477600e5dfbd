"""Shrink a picture and take its centre, without scaling what is cropped away. To the pixel what OpenCV gives.

INTER_AREA gives each pixel of the result the mean of the piece of the picture that it covers: pixel `d` of a side
covers `d * scale` to `(d + 1) * scale`. It depends on nothing outside, so the picture may be cut before it is scaled,
as long as OpenCV computes with the same numbers. It does behind the centre if it is told the factor. In front of it,
numbers are counted from another place: there a cut must be at a whole pixel of both sides, and all products exact.
Scaling is half the work of a conversion, and this saves a third of it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["crops_exactly", "shrink_centre"]

Pixels = npt.NDArray[np.uint8]

#: Bits behind the point of a scale with which products with any place in a picture (below 2**28) are exact in float64.
_EXACT_BITS = 24
#: Pixels that are kept behind what the last pixel covers: OpenCV treats the end of a picture differently.
_MARGIN = 2


def shrink_centre(picture: Pixels, target: tuple[int, int], size: int) -> Pixels:
    """Return the centre of `size` x `size` of the picture scaled to `target` (height, width) by INTER_AREA.

    Both sides of `target` are smaller than the picture's and at least `size`.
    """
    import cv2

    rows, columns = (_plan_side(*sides, size) for sides in zip(picture.shape, target, strict=False))
    scaled: Any = cv2.resize(
        picture[rows.start : rows.stop, columns.start : columns.stop],
        None,
        fx=columns.factor,
        fy=rows.factor,
        interpolation=cv2.INTER_AREA,
    )
    centre: Pixels = scaled[rows.skip : rows.skip + size, columns.skip : columns.skip + size]
    return centre


class _Side:
    """What is scaled of one side, by which factor, and how many pixels of the result come before the centre."""

    __slots__ = ("factor", "skip", "start", "stop")

    def __init__(self, factor: float, start: int, stop: int, skip: int) -> None:
        self.factor, self.start, self.stop, self.skip = factor, start, stop, skip


@functools.lru_cache(maxsize=4096)
def _plan_side(side: int, target: int, size: int) -> _Side:
    first = (target - size) // 2
    # As OpenCV computes them where it is given the result's size.
    factor = target / side
    scale = 1.0 / factor
    is_exact = scale == side / target and (scale * 2**_EXACT_BITS).is_integer()
    # The last place in front of the centre where a pixel of the result begins with one of the picture.
    step = target // math.gcd(side, target)
    cut = first // step * step if is_exact else 0
    start = cut * side // target
    stop = min(side, math.ceil((first + size) * scale) + _MARGIN)
    return _Side(factor, start, stop, first - cut)


@functools.cache
def crops_exactly() -> bool:
    """Whether this OpenCV does as said above: tried with noise, once in a process."""
    import cv2

    noise = np.random.default_rng(0).integers(0, 256, (533, 400, 3), dtype=np.uint8)
    for height, width, target, size in (
        (533, 400, (341, 256), 224),
        (400, 400, (256, 256), 224),
        (512, 384, (256, 192), 160),  # halves: OpenCV takes another way
        (297, 301, (256, 259), 224),
    ):
        picture = noise[:height, :width]
        whole: Any = cv2.resize(picture, target[::-1], interpolation=cv2.INTER_AREA)
        top, left = (target[0] - size) // 2, (target[1] - size) // 2
        if not np.array_equal(shrink_centre(picture, target, size), whole[top : top + size, left : left + size]):
            return False
    return True
