"""One pass over an order: batches are scheduled ahead, filled by the engine's threads, delivered in order."""

from __future__ import annotations

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
from h5cache.load.order import EpochOrder, Population
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


class _Job:
    """One batch on its way. Tasks of any thread fill it; the consumer waits for `finished`."""

    def __init__(self, number: int, samples: npt.NDArray[np.int64], parts: RunParts, stopped: threading.Event) -> None:
        self.number = number
        self.samples = samples
        self.finished = threading.Event()
        self.decoded = threading.Event()
        self.error: BaseException | None = None
        self.batch: Any = None
        self._parts = parts
        self._stopped = stopped
        self._memory: dict[str, tuple[npt.NDArray[Any], torch.Tensor]] = {}

    def decode_tasks(self) -> list[Callable[[], None]]:
        """Give slots to the chunks this batch is the first to need; return the tasks that decode them."""
        wanted = [(chunks, chunk) for chunks in self._parts.decoded.values() for chunk in chunks.schedule(self.number)]
        countdown = _Countdown(len(wanted), self.decoded.set)

        def task(chunks: DecodedChunks, chunk: int) -> None:
            self._guard(lambda: chunks.decode(chunk))
            countdown.done()

        return [_bind(task, chunks, chunk) for chunks, chunk in wanted]

    def fill_tasks(self, order: EpochOrder, waiting_for: Sequence[threading.Event]) -> list[Callable[[], None]]:
        """Return the tasks that fill the rows; each waits for the decoding of the batches before."""
        parts = self._parts
        self._memory = parts.recipe.take_memory(parts.memory, len(self.samples))
        starts = range(0, len(self.samples), parts.piece_rows)
        countdown = _Countdown(len(starts), self._finish)

        def fill(start: int) -> None:
            rows = slice(start, start + parts.piece_rows)
            for event in waiting_for:
                event.wait()
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

    def _guard(self, work: Callable[[], None]) -> None:
        """Do a part of the work; keep the first error for the consumer. Nothing is done once somebody failed."""
        if self.error is not None or self._stopped.is_set():
            return
        try:
            work()
        except BaseException as exc:  # whatever it is, the consumer must see it
            self.error = exc


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
        self._jobs: deque[_Job] = deque()
        self._stopped = threading.Event()
        self._held: _Job | None = None
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
        self._held = None
        if self.ended is None:
            self.ended = perf_counter()

    def __del__(self) -> None:
        if hasattr(self, "_stopped"):
            self._stopped.set()

    def _schedule(self) -> bool:
        """Give the next batch to the threads; False where there is none left.

        Chunks of a batch are decoded before the rows of the batch before are filled: so that no thread stands idle
        while another decodes the chunk it waits for.
        """
        number = next(self._waiting, None)
        if number is None:
            self._submit_rows(None)
            return False
        job = _Job(number, self._order.batch(number), self._parts, self._stopped)
        for task in job.decode_tasks():
            self._engine.submit(task)
        self._jobs.append(job)
        look_ahead = bool(self._parts.decoded) and self._engine.num_threads > 0
        self._submit_rows(job)
        if not look_ahead:
            self._submit_rows(None)
        return True

    def _submit_rows(self, following: _Job | None) -> None:
        held, self._held = self._held, following
        if held is None:
            return
        # The held batch itself may have left the queue: the consumer is waiting for it.
        before = [job.decoded for job in (*self._jobs, held) if job.number <= held.number and not job.decoded.is_set()]
        for task in held.fill_tasks(self._order, before):
            self._engine.submit(task)

    def _wait_for(self, job: _Job) -> None:
        if job is self._held:
            self._submit_rows(None)
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
) -> dict[str, DecodedChunks]:
    """Return the decoded windows that an epoch needs: for fields of small samples, where whole chunks are used.

    Where more chunks are needed at once than fit into `window_nbytes`, single blocks are decoded instead: in full
    shuffle of large fields, for a view in random order, for a field whose chunks are not those that the order mixes.
    """
    windows = {}
    for name in recipe.deliveries:
        storage = reader.info.storage[name]
        layout = storage.layout
        if name in reader.resident or layout.block_samples == 1 or layout.contiguous or not len(batches):
            continue
        if order.order.shuffle == "full" and len(storage.chunk_offsets) * layout.chunk_nbytes > window_nbytes:
            continue
        population = Population(reader.info.starts, layout.chunk_samples, order.order.population.selected)
        by_chunks = EpochOrder(replace(order.order, population=population), order.epoch, order.sequence)
        spans = by_chunks.chunk_spans(batches)
        is_planned = order.order.shuffle == "chunk" and layout.chunk_samples == order.order.population.chunk_samples
        if is_planned or plan_slots(spans, ahead * batches.step) * layout.chunk_nbytes <= window_nbytes:
            windows[name] = DecodedChunks(reader, name, spans, batches, ahead, memory)
    return windows
