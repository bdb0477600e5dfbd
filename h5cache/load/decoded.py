"""A bounded window of decoded chunks, for samples so small that they share blocks. Each chunk is decoded once.

When which chunk is needed is known before the epoch begins, so nothing is guessed: a chunk takes a slot when the first
batch that needs it is scheduled and leaves it when the last one has been delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.load.memory import BatchMemory
from h5cache.load.order import ChunkSpans
from h5cache.load.plan import chunks_of
from h5cache.load.read import SampleReader

__all__ = ["DecodedChunks", "plan_slots"]

Array = npt.NDArray[Any]
Samples = npt.NDArray[np.int64]


def plan_slots(spans: ChunkSpans, ahead: int) -> int:
    """Return how many chunks are held at most where batches are scheduled `ahead` of the delivered one."""
    return ChunkSpans(spans.chunks, spans.first, spans.last + ahead).most_at_once


class DecodedChunks:
    """The decoded chunks of one field during one epoch.

    `schedule` and `release` belong to one thread, the one that schedules batches. `decode` and `take` may run in
    any; `take` for a batch only after all `decode`s scheduled up to it are done.
    """

    def __init__(
        self, reader: SampleReader, name: str, spans: ChunkSpans, batches: range, ahead: int, memory: BatchMemory
    ) -> None:
        self._reader = reader
        self._name = name
        storage = reader.info.storage[name]
        self._storage = storage
        layout = storage.layout
        count = plan_slots(spans, ahead * batches.step)
        # Recycled from epoch to epoch: fresh pages would cost as much as decoding into them.
        self._memory, _ = memory.take((count, *layout.chunk_shape), layout.stored_dtype)
        self._rows = self._memory.reshape(count * layout.chunk_samples, *layout.field.shape)
        self._free = list(range(count))
        self._slots = np.full(len(storage.chunk_offsets), -1, np.int64)
        by_last = np.argsort(spans.last, kind="stable")
        # As lists, the next one at the end: looked at once per batch, where numpy would cost more than the rest.
        self._to_come = list(zip(spans.first[::-1].tolist(), spans.chunks[::-1].tolist(), strict=True))
        self._to_go = list(zip(spans.last[by_last][::-1].tolist(), spans.chunks[by_last][::-1].tolist(), strict=True))

    def schedule(self, batch: int) -> Sequence[int]:
        """Give slots to the chunks that `batch` is the first to need; return them, to be decoded."""
        chunks = []
        while self._to_come and self._to_come[-1][0] <= batch:
            chunks.append(self._to_come.pop()[1])
            self._slots[chunks[-1]] = self._free.pop()
        return chunks

    def decode(self, chunk: int) -> None:
        self._reader.read_chunk(self._name, chunk, self._memory[self._slots[chunk]])

    def take(self, samples: Samples, out: Array) -> None:
        """Copy samples into rows of `out`, in stored dtype. Vectorised: no Python per sample."""
        chunks, places = chunks_of(self._storage, self._reader.info.starts, samples)
        slots = self._slots[chunks]
        if slots.min(initial=0) < 0:
            # Padding repeats a sample of the epoch's start, whose chunk has gone.
            gone = slots < 0
            self._reader.read_stored(
                self._name, samples[gone], rows := np.empty((gone.sum(), *out.shape[1:]), out.dtype)
            )
            out[gone] = rows
            out[~gone] = self._rows[slots[~gone] * self._storage.layout.chunk_samples + places[~gone]]
            return
        np.take(self._rows, slots * self._storage.layout.chunk_samples + places, axis=0, out=out, mode="clip")

    def release(self, batch: int) -> None:
        """Free the slots of chunks that no batch after `batch` needs."""
        while self._to_go and self._to_go[-1][0] <= batch:
            chunk = self._to_go.pop()[1]
            self._free.append(int(self._slots[chunk]))
            self._slots[chunk] = -1
