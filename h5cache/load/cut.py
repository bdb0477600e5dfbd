"""What is done to single pictures while a batch is filled: cut, mirror, scale, other memory order.

cv2 and numpy's large copies release the GIL. Every release may cost a thread its turn, so a picture takes as few calls
as can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.load.augment import Geometry

__all__ = ["Cutter", "mirror", "reorder"]

Array = npt.NDArray[Any]

#: What cv2.flip takes.
_FLIPPABLE = frozenset(["uint8", "int8", "uint16", "int16", "int32", "float16", "float32", "float64"])


class Cutter:
    """Cuts the boxes that a geometry has drawn, one per row, out of pictures (C, H, W) or, if not planar, (H, W, C)."""

    def __init__(self, geometry: Geometry, size: tuple[int, int], *, planar: bool) -> None:
        """`size` is the height and width of the pictures."""
        self._planar = planar
        self._scales = geometry.resize
        self._flips: list[bool] = geometry.flip.tolist()
        top, left = geometry.top - geometry.padding, geometry.left - geometry.padding
        if not geometry.resize:
            # Pictures are mirrored before they are cut: all their lines at once.
            left = np.where(geometry.flip, size[1] - left - geometry.width, left)
        rows, columns = _clip(top, geometry.height, size[0]), _clip(left, geometry.width, size[1])
        channels = (slice(None),) if planar else ()
        self._boxes = [(*channels, *box) for box in zip(rows, columns, strict=True)]
        #: Where the box lies in what comes out, and whether there is a margin around it.
        self._shown: list[tuple[slice, ...]] = [channels] * len(rows)
        self._margins: list[bool] = [False] * len(rows)
        if geometry.padding:
            places = zip(rows, columns, top.tolist(), left.tolist(), strict=True)
            shown = [(_moved(down, above), _moved(across, before)) for down, across, above, before in places]
            self._shown = [(*channels, *box) for box in shown]
            whole = tuple(slice(0, side) for side in geometry.size)
            self._margins = [box != whole for box in shown]

    def cut(self, row: int, picture: Array, out: Array) -> None:
        """Cut, scale and mirror the row's box into `out`. `picture` is the caller's to lose: mirrored in place."""
        box = self._boxes[row]
        if self._scales:
            for source, target in zip(picture, out, strict=True) if self._planar else [(picture, out)]:
                _scale(source[box[-2:]], target)
            if self._flips[row]:
                mirror(out, planar=self._planar)
            return
        if self._flips[row]:
            mirror(picture, planar=self._planar)
        if self._margins[row]:
            out.fill(0)
        np.copyto(out[self._shown[row]], picture[box])

    def cut_each(self, picture: Array, rows: Iterable[int], out: Array) -> None:
        """Cut the row's box into its row of `out` whenever `rows` yields one: `picture` then holds that row's.

        All that does not need the pixels is done before the first: between two decoded pictures the caches hold
        nothing of Python, and the same lines take five times as long.
        """
        if self._scales or picture.dtype.name not in _FLIPPABLE:
            for row in rows:
                self.cut(row, picture, out[row])
            return
        import cv2

        wholes = list(out)
        targets = [out[row][shown] for row, shown in enumerate(self._shown)]
        sources = [picture[box] for box in self._boxes]
        lines = picture.reshape(-1, picture.shape[-1]) if self._planar else picture
        flips, margins, copy, flip = self._flips, self._margins, np.copyto, cv2.flip
        for row in rows:
            if flips[row]:
                flip(lines, 1, lines)
            if margins[row]:
                wholes[row].fill(0)  # all of it, in one piece: the margins alone take longer
            copy(targets[row], sources[row])


def _moved(part: slice, start: int) -> slice:
    return slice(part.start - start, part.stop - start)


def _clip(start: Any, length: Any, size: int) -> list[slice]:
    """Return the parts of [start, start + length) that lie in the picture."""
    first = np.clip(start, 0, size)
    last = np.maximum(first, np.minimum(start + length, size))
    return [slice(*bounds) for bounds in zip(first.tolist(), last.tolist(), strict=True)]


def mirror(picture: Array, *, planar: bool) -> None:
    """Mirror a C-contiguous picture left to right, in place."""
    lines = picture.reshape(-1, picture.shape[-1]) if planar else picture
    if picture.dtype.name not in _FLIPPABLE or not picture.size:
        lines[...] = lines[:, ::-1].copy()
        return
    import cv2

    # All planes at once, 2 us for 224 px; numpy's reversed view takes ten times as long.
    mirrored = cv2.flip(lines, 1, dst=lines)
    if mirrored is not lines and not np.shares_memory(mirrored, lines):
        lines[...] = mirrored.reshape(lines.shape)


def _scale(source: Array, out: Array) -> None:
    """Scale a picture or plane to the size of `out`."""
    import cv2

    height, width = out.shape[:2]
    shrinks = source.shape[0] >= height and source.shape[1] >= width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    scaled = cv2.resize(source, (width, height), dst=out, interpolation=method)
    if scaled is not out:
        np.copyto(out, scaled.reshape(out.shape))


def reorder(value: Array, out: Array, *, channels_last: bool) -> None:
    """Copy a (C, H, W) picture into (H, W, C) memory, or the other way round.

    cv2 interleaves planes of bytes ten times as fast as numpy copies a transposed view.
    """
    if value.dtype == np.uint8 and min(value.shape) > 1:
        import cv2

        if channels_last:
            made = cv2.merge(list(value), dst=out)
            if made is out or np.shares_memory(made, out):
                return
        elif all(np.shares_memory(one, plane) for one, plane in zip(cv2.split(value, list(out)), out, strict=True)):
            return
    np.copyto(out, value.transpose(1, 2, 0) if channels_last else value.transpose(2, 0, 1))
