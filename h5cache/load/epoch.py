"""One pass over an order: batches are scheduled ahead, filled by the engine's threads, delivered in order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h5cache.errors import H5CacheError, LoaderClosedError
from h5cache.load.decoded import DecodedChunks, plan_slots
from h5cache.load.device import DeviceStream
from h5cache.load.engine import Engine
from h5cache.load.fill import FieldFiller
from h5cache.load.memory import BatchMemory
from h5cache.load.order import ChunkSpans, EpochOrder, Population
from h5cache.load.read import SampleReader
from h5cache.load.recipe import BatchRecipe

__all__ = ["EpochRun", "RunParts", "plan_decoded"]

#: How often a waiting consumer makes sure that somebody is still working for it.
WATCH_S = 1.0


@dataclass(frozen=True, eq=False)
class RunParts:
    """What a run works with; shared by all runs of a loader but for `decoded`.

    Not the engine: a task that is running in a thread must not be the last to hold that, or who drops a loader would
    not wait for its threads.
    """

    recipe: BatchRecipe
    fillers: Mapping[str, FieldFiller]
    decoded: Mapping[str, DecodedChunks]
    memory: BatchMemory
    device: DeviceStream | None
    #: Rows that one task fills.
    piece_rows: int
    #: Batches scheduled ahead of the one that is delivered.
    ahead: int
    #: Batches whose chunks are decoded ahead of those: a chunk is one task, and all threads should have one.
    lead: int = 0


class _Countdown:
    """Runs `then` once, in the thread that finishes the last of some tasks."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._then = then
        if count == 0:
            then()

    def done(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._then()


class _Work:
    """Something that tasks of any thread do; others wait for `finished`."""

    def __init__(self, number: int, parts: RunParts, stopped: threading.Event) -> None:
        #: Of the batch.
        self.number = number
        self.finished = threading.Event()
        self.error: BaseException | None = None
        self._parts = parts
        self._stopped = stopped

    def _guard(self, work: Callable[[], None]) -> None:
        """Do a part of the work; keep the first error for the consumer. Nothing is done once somebody failed."""
        if self.error is not None or self._stopped.is_set():
            return
        try:
            work()
        except BaseException as exc:  # whatever it is, the consumer must see it
            self.error = exc


class _Decoding(_Work):
    """The chunks that one batch is the first to need, on their way into the windows."""

    def tasks(self) -> list[Callable[[], None]]:
        """Give slots to the chunks; return the tasks that decode them."""
        wanted = [(chunks, chunk) for chunks in self._parts.decoded.values() for chunk in chunks.schedule(self.number)]
        countdown = _Countdown(len(wanted), self.finished.set)

        def task(chunks: DecodedChunks, chunk: int) -> None:
            self._guard(lambda: chunks.decode(chunk))
            countdown.done()

        return [_bind(task, chunks, chunk) for chunks, chunk in wanted]

    def wait(self) -> None:
        self.finished.wait()
        if self.error is not None:
            raise self.error


class _Job(_Work):
    """One batch on its way."""

    def __init__(self, number: int, samples: npt.NDArray[np.int64], parts: RunParts, stopped: threading.Event) -> None:
        super().__init__(number, parts, stopped)
        self.samples = samples
        self.batch: Any = None
        self._memory: dict[str, tuple[npt.NDArray[Any], torch.Tensor]] = {}

    def tasks(self, order: EpochOrder, needed: Sequence[_Decoding]) -> list[Callable[[], None]]:
        """Return the tasks that fill the rows; each waits for the chunks that are needed first."""
        parts = self._parts
        self._memory = parts.recipe.take_memory(parts.memory, len(self.samples))
        starts = range(0, len(self.samples), parts.piece_rows)
        countdown = _Countdown(len(starts), self._finish)

        def fill(start: int) -> None:
            rows = slice(start, start + parts.piece_rows)
            for decoding in needed:
                decoding.wait()
            for name, filler in parts.fillers.items():
                filler.fill(
                    self.samples[rows],
                    self._memory[name][0][rows],
                    seed=order.order.seed,
                    epoch=order.epoch,
                    decoded=parts.decoded.get(name),
                )

        def task(start: int) -> None:
            self._guard(lambda: fill(start))
            countdown.done()

        return [_bind(task, start) for start in starts]

    def _finish(self) -> None:
        self._guard(self._make_batch)
        self._memory = {}
        self.finished.set()

    def _make_batch(self) -> None:
        recipe, device = self._parts.recipe, self._parts.device
        tensors = {name: tensor for name, (_, tensor) in self._memory.items()}
        if device is None:
            self.batch = recipe.finish(recipe.as_tensors(tensors))
            return
        with device.use():
            self.batch = recipe.finish(recipe.as_tensors(device.move(tensors)))


def _bind(function: Callable[..., None], *args: Any) -> Callable[[], None]:
    return lambda: function(*args)


class EpochRun(Iterator[Any]):
    """Iterate over the batches `batches` of an epoch. Dropping or closing it ends the work that is under way."""

    def __init__(self, order: EpochOrder, batches: range, engine: Engine, parts: RunParts) -> None:
        self._order = order
        self._engine = engine
        self._parts = parts
        self.start = batches.start
        self._waiting = iter(batches)
        self._undecoded = iter(batches) if parts.decoded else iter(())
        self._jobs: deque[_Job] = deque()
        self._decodings: deque[_Decoding] = deque()
        self._stopped = threading.Event()
        self._is_over = False
        self.num_batches = 0
        self.num_samples = 0
        self.waited_s = 0.0
        self.began = perf_counter()
        self.ended: float | None = None

    @property
    def order(self) -> EpochOrder:
        return self._order

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        began = perf_counter()
        try:
            return self._deliver_next()
        except BaseException:  # StopIteration, too
            self._is_over = True
            self.close()
            raise
        finally:
            self.waited_s += perf_counter() - began

    def _deliver_next(self) -> Any:
        self._check_open()
        while len(self._jobs) <= self._parts.ahead and self._schedule():
            pass
        if not self._jobs:
            raise StopIteration
        job = self._jobs.popleft()
        self._wait_for(job)
        if job.error is not None:
            raise _with_origin(job.error, job.number, self._order.epoch)
        self._check_open()
        for chunks in self._parts.decoded.values():
            chunks.release(job.number)
        if self._parts.device is not None:
            self._parts.device.hand_over(job.batch)
        self.num_batches += 1
        self.num_samples += len(job.samples)
        return job.batch

    def close(self) -> None:
        """Let go of batches that are still under way; idempotent."""
        self._stopped.set()
        self._jobs.clear()
        self._decodings.clear()
        if self.ended is None:
            self.ended = perf_counter()

    def __del__(self) -> None:
        if hasattr(self, "_stopped"):
            self._stopped.set()

    def _schedule(self) -> bool:
        """Give the next batch to the threads; False where there is none left.

        Chunks of batches to come are decoded before the rows of this one are filled: so that no thread stands idle
        while another decodes the chunk it waits for.
        """
        number = next(self._waiting, None)
        if number is None:
            return False
        is_first = number == self.start
        for later in itertools.islice(self._undecoded, 1 + self._parts.lead if is_first else 1):
            decoding = _Decoding(later, self._parts, self._stopped)
            self._decodings.append(decoding)
            self._submit(decoding.tasks())
        while self._decodings and self._decodings[0].finished.is_set() and self._decodings[0].error is None:
            self._decodings.popleft()
        job = _Job(number, self._order.batch(number), self._parts, self._stopped)
        self._jobs.append(job)
        self._submit(job.tasks(self._order, [one for one in self._decodings if one.number <= number]))
        return True

    def _submit(self, tasks: Sequence[Callable[[], None]]) -> None:
        for task in tasks:
            self._engine.submit(task)

    def _wait_for(self, job: _Job) -> None:
        while not job.finished.wait(WATCH_S):
            self._check_open()

    def _check_open(self) -> None:
        if self._stopped.is_set() or not self._engine.is_usable:
            raise LoaderClosedError("the loader was closed, or this process was forked, in mid-epoch: iterate anew")


def _with_origin(error: BaseException, batch: int, epoch: int) -> BaseException:
    where = f"while h5cache made batch {batch} of epoch {epoch}"
    if isinstance(error, StopIteration):
        # It would be taken for the end of the epoch.
        stopped = RuntimeError(f"StopIteration was raised {where}")
        stopped.__cause__ = error
        return stopped
    if hasattr(error, "add_note") and not isinstance(error, H5CacheError):
        error.add_note(where)
    return error


def plan_decoded(
    reader: SampleReader,
    recipe: BatchRecipe,
    order: EpochOrder,
    batches: range,
    ahead: int,
    window_nbytes: int,
    memory: BatchMemory,
    threads: int = 0,
) -> tuple[dict[str, DecodedChunks], int]:
    """Return the decoded windows that an epoch needs, and how many batches ahead of those scheduled they are filled.

    Windows are for fields of small samples, where whole chunks are used. Where more chunks are needed at once than fit
    into `window_nbytes`, single blocks are decoded instead: in full shuffle of large fields, for a view in random
    order, for a field whose chunks are not those that the order mixes.
    """
    spans: dict[str, ChunkSpans] = {}
    for name in recipe.deliveries:
        storage = reader.info.storage[name]
        layout = storage.layout
        if name in reader.resident or layout.block_samples == 1 or layout.contiguous or not len(batches):
            continue
        if order.order.shuffle == "full" and len(storage.chunk_offsets) * layout.chunk_nbytes > window_nbytes:
            continue
        population = Population(reader.info.starts, layout.chunk_samples, order.order.population.selected)
        by_chunks = EpochOrder(replace(order.order, population=population), order.epoch, order.sequence)
        needed = by_chunks.chunk_spans(batches)
        is_planned = order.order.shuffle == "chunk" and layout.chunk_samples == order.order.population.chunk_samples
        if is_planned or plan_slots(needed, ahead * batches.step) * layout.chunk_nbytes <= window_nbytes:
            spans[name] = needed
    layouts = {name: reader.info.storage[name].layout for name in spans}
    lead = -(-min((one.chunk_samples for one in layouts.values()), default=0) * threads // order.order.batch_size)
    for name, needed in spans.items():
        lead = _affordable_lead(
            needed, ahead, lead, batches.step, window_nbytes // layouts[name].chunk_nbytes, 2 * threads
        )
    windows = {
        name: DecodedChunks(reader, name, needed, batches, ahead + lead, memory) for name, needed in spans.items()
    }
    return windows, lead


def _affordable_lead(spans: ChunkSpans, ahead: int, lead: int, step: int, room: int, extra: int) -> int:
    """Return the largest lead, `lead` or a half of it or of that, that takes few more slots than there must be."""
    allowed = max(room, plan_slots(spans, ahead * step)) + extra
    while lead and plan_slots(spans, (ahead + lead) * step) > allowed:
        lead //= 2
    return lead
