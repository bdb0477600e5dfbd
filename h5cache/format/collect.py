"""Collect the rows of one field into chunks, and decide from the first of them how the field is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import Codec, choose_codec, codec_from_name
from h5cache.errors import QuantiseConflictError
from h5cache.format.encode import EncodedChunk, encode_chunk, pad_chunk
from h5cache.format.layout import (
    FieldLayout,
    is_resident,
    plan_chunking,
    plan_geometry,
    plan_layout,
    plan_resident_layout,
)
from h5cache.format.shard import FieldEnd, FieldPlan
from h5cache.quantise import Quantiser, fit_quantiser
from h5cache.schema import Field
from h5cache.value_table import ValueTable

__all__ = ["ChunkCollector", "ReadyChunk", "RowCollector", "RowStack", "collector_for"]

PIECES_JOINED = 1024


@dataclass(frozen=True, eq=False)
class ReadyChunk:
    """A chunk to be stored now; its last sample is `stop - 1`."""

    layout: FieldLayout
    chunk: EncodedChunk
    stop: int


class RowStack:
    """Copies of rows, in order. Many small pieces are joined to larger ones: an array alone costs 112 bytes."""

    def __init__(self, join: Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[Any]] = np.concatenate) -> None:
        self._join = join
        self._joined: list[npt.NDArray[Any]] = []
        self._latest: list[npt.NDArray[Any]] = []

    @property
    def pieces(self) -> list[npt.NDArray[Any]]:
        return [*self._joined, *self._latest]

    def add(self, rows: npt.NDArray[Any]) -> None:
        self._latest.append(rows.copy())
        if len(self._latest) == PIECES_JOINED:
            self._joined.append(self._join(self._latest))
            self._latest = []


class RowCollector:
    """Keep the rows of a small field (a label) until the end: they are written in one piece."""

    def __init__(self, field: Field, plan: FieldPlan | None) -> None:
        self.plan = plan or FieldPlan(plan_resident_layout(field))
        self._rows = RowStack()
        self._rows.add(np.zeros((0, *field.shape), field.stored_dtype))

    @property
    def room(self) -> int | None:
        """Rows until a chunk is ready: never."""
        return None

    def prepare(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return rows

    def add(self, prepared: npt.NDArray[Any]) -> ReadyChunk | None:
        self._rows.add(prepared)
        return None

    def finish(self) -> tuple[ReadyChunk | None, FieldEnd]:
        return None, FieldEnd(self.plan.layout, rows=np.concatenate(self._rows.pieces))


class ChunkCollector:
    """Collect one field's rows; give back each chunk, encoded, as soon as it is full.

    The decisions (exact codes? which codec?) rest on the first chunk alone, so that neither batch sizes nor parts
    change the file. `prepare` is the only step that refuses data: call it for all fields before adding to any.
    """

    def __init__(self, field: Field, plan: FieldPlan | None) -> None:
        self._field = field
        self._codec: Codec | None = _given_codec(field)
        self._layout: FieldLayout | None = None
        self._quantiser: Quantiser | None = None
        self._table: ValueTable | None = None
        #: The codes of the parts before this one.
        self._known: ValueTable | None = None
        self._may_become_codes = plan is None and field.may_be_coded_exactly
        if plan is not None:
            self._layout, self._quantiser = plan.layout, plan.quantiser
            self._table = plan.layout.empty_table() if plan.layout.codes else None
            self._known = plan.table
        self._buffer = self._new_buffer()
        self._fill = 0
        self._num_samples = 0

    @property
    def plan(self) -> FieldPlan | None:
        """The decision; None before the first chunk is full."""
        if self._layout is None:
            return None
        table = self._table if self._table is None or self._known is None else self._known.union(self._table)
        return FieldPlan(self._layout, self._quantiser, table)

    @property
    def room(self) -> int | None:
        """How many rows may be added at once."""
        return len(self._buffer) - self._fill

    def prepare(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows as they will be stored (codes, if so decided); QuantiseConflictError where they cannot be."""
        if self._quantiser is None or self._table is None:
            return rows
        codes, table = self._quantiser.encode(np.ascontiguousarray(rows), self._field.channel_axis)
        if self._known is not None:
            self._known.union(table)
        self._table = self._table.union(table)
        return codes

    def add(self, prepared: npt.NDArray[Any]) -> ReadyChunk | None:
        """Take what `prepare` returned, at most `room` rows."""
        self._buffer[self._fill : self._fill + len(prepared)] = prepared
        self._fill += len(prepared)
        self._num_samples += len(prepared)
        if self._room_left() == 0 and self._may_become_codes:
            self._decide_codes()
        return None if self._room_left() else self._emit()

    def finish(self) -> tuple[ReadyChunk | None, FieldEnd]:
        """Return the last, partly filled chunk, if any, and what closes the field."""
        if self._may_become_codes and self._fill:
            self._decide_codes()
        if self._layout is None:
            # Nothing was written yet: the dataset is smaller than a chunk, and its chunk may be so too.
            self._layout = self._choose_layout(num_samples=self._num_samples)
        ready = self._emit() if self._fill else None
        return ready, FieldEnd(self._layout, table=self._table, quantiser=self._quantiser)

    def _room_left(self) -> int:
        return len(self._buffer) - self._fill

    def _new_buffer(self) -> npt.NDArray[Any]:
        if self._layout is not None:
            return np.empty(self._layout.chunk_shape, self._layout.stored_dtype)
        codes = self._quantiser is not None
        has_blocks = self._codec is None or self._codec.has_blocks
        _, chunk_samples = plan_chunking(self._field, codes, has_blocks, None)
        return np.empty((chunk_samples, *self._field.shape), np.uint8 if codes else self._field.stored_dtype)

    def _decide_codes(self) -> None:
        """Store 8-bit codes if the rows so far allow it; the buffer then holds codes and has room for more."""
        self._may_become_codes = False
        rows, axis = self._buffer[: self._fill], self._field.channel_axis
        quantiser = fit_quantiser(rows, axis)
        if quantiser is None:
            return
        try:
            codes, self._table = quantiser.encode(rows, axis)
        except QuantiseConflictError:
            return
        self._quantiser = quantiser
        self._buffer = self._new_buffer()
        self._buffer[: self._fill] = codes

    def _choose_layout(self, num_samples: int | None) -> FieldLayout:
        codes = self._quantiser is not None
        codec = self._codec or self._choose_codec(codes, num_samples)
        return plan_layout(self._field, codec, codes=codes, num_samples=num_samples)

    def _choose_codec(self, codes: bool, num_samples: int | None) -> Codec:
        if self._fill == 0:
            return codec_from_name("blosc2")
        block_samples, chunk_samples = plan_chunking(self._field, codes, True, num_samples)
        geometry = plan_geometry(self._field, codes, block_samples, chunk_samples)
        return choose_codec(pad_chunk(self._buffer[: self._fill], chunk_samples), geometry).codec

    def _emit(self) -> ReadyChunk:
        self._layout = self._layout or self._choose_layout(num_samples=None)
        is_first = self._num_samples == self._fill
        chunk = encode_chunk(self._layout, self._buffer[: self._fill], whole=is_first)
        self._fill = 0
        return ReadyChunk(self._layout, chunk, self._num_samples)


def _given_codec(field: Field) -> Codec | None:
    if isinstance(field.codec, Codec):
        return field.codec
    return None if field.codec == "auto" else codec_from_name(field.codec)


def collector_for(field: Field, plan: FieldPlan | None) -> RowCollector | ChunkCollector:
    """Return the collector a field needs: small uncompressed fields are kept, all others go in chunks."""
    resident = plan.layout.resident if plan else is_resident(field)
    return RowCollector(field, plan) if resident else ChunkCollector(field, plan)
