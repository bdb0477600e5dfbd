"""Fill the rows of a batch with one field of some samples: read, decode, augment, reorder, look values up."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.load.augment import plan_geometry
from h5cache.load.cut import Cutter, reorder
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
        cutter = self._plan_cuts(samples, seed, epoch)
        one_by_one = decoded is None and self._reader.reads_one_by_one(self._name)
        if one_by_one:
            sample, rows = self._reader.iter_samples(self._name, samples)
            if plan.is_cut_only and cutter is not None:
                cutter.cut_each(sample, rows, out)
                return
            for row in rows:
                self._finish_row(sample, out[row], cutter, row)
            return
        stored = np.empty((len(samples), *plan.field.shape), self._stored_dtype)
        if decoded is not None:
            decoded.take(samples, stored)
        else:
            self._reader.read_stored(self._name, samples, stored)
        if plan.table is not None and cutter is None and not plan.reorder:
            expand(stored, plan.table, out, self._table_axis())
            return
        for row, value in enumerate(stored):
            self._finish_row(value, out[row], cutter, row)

    def _plan_cuts(self, samples: Samples, seed: int, epoch: int) -> Cutter | None:
        field = self._delivery.field
        if not self._delivery.augment:
            return None
        planar = field.layout == "CHW"
        height, width = field.shape[1:] if planar else field.shape[:2]
        geometry = plan_geometry(self._delivery.augment, (height, width), seed, epoch, samples)
        return Cutter(geometry, (height, width), planar=planar)

    def _finish_row(self, stored: Array, out: Array, cutter: Cutter | None, row: int) -> None:
        """Take one decoded sample through the steps it needs; the last step writes into the batch."""
        plan, field, value = self._delivery, self._delivery.field, stored
        if plan.expand_first is not None:
            floats = self._scratch("floats", stored.shape, field.stored_dtype)
            expand(value[np.newaxis], plan.expand_first, floats[np.newaxis], field.channel_axis)
            value = floats
        if cutter is not None:
            last = not plan.reorder and plan.table is None
            target = out if last else self._scratch("crop", plan.cut_shape, value.dtype)
            cutter.cut(row, value, target)
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
