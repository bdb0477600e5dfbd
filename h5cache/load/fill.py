"""Fill the rows of a batch with one field of some samples: read, decode, augment, reorder, look values up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.load.augment import Geometry, plan_geometry
from h5cache.load.decoded import DecodedChunks
from h5cache.load.delivery import Delivery
from h5cache.load.read import SampleReader
from h5cache.value_table import expand

__all__ = ["FieldFiller"]

Array = npt.NDArray[Any]
Samples = npt.NDArray[np.int64]


class FieldFiller:
    """Fill rows of one field. Thread-safe: what is between decoding and the row lies in memory of the thread."""

    def __init__(self, reader: SampleReader, name: str, delivery: Delivery) -> None:
        self._reader = reader
        self._name = name
        self._delivery = delivery
        layout = reader.info.storage[name].layout
        self._stored_dtype = layout.stored_dtype
        self._is_small = layout.block_samples > 1
        self._local = threading.local()

    @property
    def delivery(self) -> Delivery:
        return self._delivery

    def fill(
        self,
        samples: Samples,
        out: Array,
        *,
        seed: int = 0,
        epoch: int = 0,
        decoded: DecodedChunks | None = None,
    ) -> None:
        """Write the samples into `out`, C-contiguous `(len(samples), *delivery.shape)` of its memory dtype.

        Seed and epoch are for augmentation. `decoded` holds their chunks already, where samples are small.
        """
        plan = self._delivery
        if plan.is_direct:
            if decoded is not None:
                decoded.take(samples, out)
            else:
                self._reader.read_stored(self._name, samples, out)
            return
        geometry = self._plan_geometry(samples, seed, epoch)
        if self._is_small or decoded is not None:
            rows = np.empty((len(samples), *plan.field.shape), self._stored_dtype)
            if decoded is not None:
                decoded.take(samples, rows)
            else:
                self._reader.read_stored(self._name, samples, rows)
            if plan.table is not None and geometry is None and not plan.reorder:
                expand(rows, plan.table, out, self._table_axis())
                return
            stored: Iterator[tuple[int, Array]] = enumerate(rows)
        else:
            stored = self._reader.iter_stored(self._name, samples)
        for row, value in stored:
            self._finish_row(value, out[row], geometry, row, plan)

    def _plan_geometry(self, samples: Samples, seed: int, epoch: int) -> Geometry | None:
        field = self._delivery.field
        if not self._delivery.augment:
            return None
        height, width = field.shape[1:] if field.layout == "CHW" else field.shape[:2]
        return plan_geometry(self._delivery.augment, (height, width), seed, epoch, samples)

    def _finish_row(self, stored: Array, out: Array, geometry: Geometry | None, row: int, plan: Delivery) -> None:
        """Take one decoded sample through the steps it needs; the last step writes into the batch."""
        field, value = plan.field, stored
        if plan.expand_first is not None:
            floats = self._scratch("floats", stored.shape, field.stored_dtype)
            expand(value[np.newaxis], plan.expand_first, floats[np.newaxis], field.channel_axis)
            value = floats
        if geometry is not None:
            shape = _sized(field.layout, geometry.size, field.channels)
            last = not plan.reorder and plan.table is None
            target = out if last else self._scratch("crop", shape, value.dtype)
            cut(value, target, geometry, row, planar=field.layout == "CHW")
            value = target
        if plan.reorder:
            target = out if plan.table is None else self._scratch("order", plan.shape, value.dtype)
            reorder(value, target, channels_last=plan.channels_last)
            value = target
        if plan.table is not None:
            expand(value[np.newaxis], plan.table, out[np.newaxis], self._table_axis())

    def _table_axis(self) -> int | None:
        if self._delivery.field.layout is None:
            return None
        return -1 if self._delivery.channels_last else 0

    def _scratch(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        found: Array | None = getattr(self._local, name, None)
        if found is None or found.shape != shape or found.dtype != dtype:
            found = np.empty(shape, dtype)
            setattr(self._local, name, found)
        return found


def _sized(layout: str | None, size: tuple[int, int], channels: int) -> tuple[int, ...]:
    return (channels, *size) if layout == "CHW" else (*size, channels)


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


def cut(value: Array, out: Array, geometry: Geometry, row: int, *, planar: bool) -> None:
    """Cut the sample's box out of a picture, scale and mirror it, into `out`. Planar pictures are (C, H, W)."""
    height, width = int(geometry.height[row]), int(geometry.width[row])
    top, left = int(geometry.top[row]) - geometry.padding, int(geometry.left[row]) - geometry.padding
    flip = bool(geometry.flip[row])
    if geometry.resize and (height, width) != geometry.size:
        box = (slice(top, top + height), slice(left, left + width))
        for source, target in zip(value, out, strict=True) if planar else [(value, out)]:
            _scale(source[box], target, flip)
        return
    size = value.shape[1:] if planar else value.shape
    rows, columns = _clip(top, height, size[0]), _clip(left, width, size[1])
    if rows.stop - rows.start < height or columns.stop - columns.start < width:
        out.fill(0)
    place_rows = slice(rows.start - top, rows.stop - top)
    place_columns = slice(columns.start - left, columns.stop - left)
    if flip:
        place_columns = slice(width - place_columns.stop, width - place_columns.start)
    if not planar:
        _copy(value[rows, columns], out[place_rows, place_columns], flip)
    elif flip:
        for source, target in zip(value, out, strict=True):
            _copy(source[rows, columns], target[place_rows, place_columns], flip)
    else:
        np.copyto(out[:, place_rows, place_columns], value[:, rows, columns])


def _clip(start: int, length: int, size: int) -> slice:
    """Return the part of [start, start + length) that lies in the picture."""
    first = min(max(0, start), size)
    return slice(first, max(first, min(size, start + length)))


def _scale(source: Array, out: Array, flip: bool) -> None:
    """Scale a picture or plane to the size of `out`, mirrored where asked."""
    import cv2

    height, width = out.shape[:2]
    shrinks = source.shape[0] >= height and source.shape[1] >= width
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    scaled = cv2.resize(source, (width, height), dst=None if flip else out, interpolation=method)
    if flip:
        _copy(scaled.reshape(out.shape), out, flip=True)
    elif scaled is not out:
        np.copyto(out, scaled.reshape(out.shape))


def _copy(source: Array, out: Array, flip: bool) -> None:
    """Copy a picture or plane, mirrored where asked. cv2 mirrors bytes ten times as fast as numpy's reversed view."""
    if not flip:
        np.copyto(out, source)
    elif source.dtype == np.uint8 and source.size:
        import cv2

        mirrored = cv2.flip(source, 1, dst=out)
        if mirrored is not out and not np.shares_memory(mirrored, out):
            np.copyto(out, mirrored.reshape(out.shape))
    else:
        np.copyto(out, source[:, ::-1])
