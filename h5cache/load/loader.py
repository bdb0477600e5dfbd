"""`Loader`: batches filled by threads, delivered in order. The fast way from a dataset to a training loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.load.device import DeviceStream
from h5cache.load.engine import Engine, default_threads
from h5cache.load.epoch import EpochRun, RunParts, plan_decoded
from h5cache.load.memory import BatchMemory, RecycledMemory
from h5cache.load.notebook import loader_html
from h5cache.load.options import check_whole
from h5cache.load.order import EpochOrder, Order
from h5cache.load.quality import ShuffleQuality, shuffle_quality
from h5cache.load.read import SampleReader
from h5cache.load.recipe import BatchRecipe
from h5cache.load.state import LoaderState
from h5cache.load.stats import LoaderStats
from h5cache.load.threads import ReadCounters

__all__ = ["Loader"]

log = logging.getLogger(__name__)

#: Batches that are filled ahead of the one the user has: enough for a step that takes a few times the usual time.
PREFETCH = 3
#: Decoded bytes below which a task is not worth its cost.
PIECE_NBYTES = 2 * 1024 * 1024
#: Threads are added, up to this many per core, while they spend more than this share of their time in pread.
COLD_THREADS_PER_CORE = 4
COLD_READ_SHARE = 0.5
#: Batches between two looks at where the threads' time goes.
LOOK_EVERY = 16


class Loader:
    """Iterate over a dataset in batches of contiguous tensors. `H5TensorDataset.loader` makes it and says all options.

    Each `iter()` begins the next epoch. Threads start with the first one and end with `close`, with the `with` block,
    or when the loader is dropped. Iterators are independent of each other. Not thread-safe itself: one consumer.
    """

    def __init__(
        self,
        reader: SampleReader,
        order: Order,
        recipe: BatchRecipe,
        *,
        memory: BatchMemory,
        device: DeviceStream | None = None,
        threads: int | None = None,
        prefetch: int = PREFETCH,
        window_nbytes: int = 0,
        labels: npt.NDArray[Any] | None = None,
        summary: bool = False,
    ) -> None:
        if threads is not None:
            check_whole("threads", threads, 0)
        check_whole("prefetch", prefetch, 0)
        self._reader = reader
        self._order = order
        self._recipe = recipe
        self._memory = memory
        self._device = device
        self._threads = threads
        self._prefetch = prefetch
        self._window_nbytes = window_nbytes
        self._window_memory = RecycledMemory(max_idle=1)
        self._labels = labels
        self._summary = summary
        self._fillers = recipe.fillers(reader)
        self._engine: Engine | None = None
        self._next_epoch = 0
        self._resume: LoaderState | None = None
        self._run: EpochRun | None = None
        self._counted = ReadCounters()

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return self._order.num_batches

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` begins."""
        return self._next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next `iter()` begins.

        It begins with its first batch, or where a state of this very epoch was loaded, after those delivered.
        """
        check_whole("epoch", epoch, 0)
        if self._resume is not None and self._resume.epoch == epoch:
            return
        self._next_epoch = int(epoch)
        self._resume = None
        self._run = None

    def __iter__(self) -> Iterator[Any]:
        if self._resume is not None:
            order, start = self._resume.resume(self._order), self._resume.next_batch
            self._resume = None
        else:
            order, start = self._order.epoch(self._next_epoch), 0
        self._next_epoch = order.epoch + 1
        self._counted = self._reader.counters()
        batches, engine = range(start, order.num_batches), self._running_engine()
        ahead = self._prefetch if engine.num_threads else 0
        self._run = EpochRun(order, batches, engine, self._parts(order, batches, ahead))
        return self._deliver(self._run)

    def state_dict(self) -> dict[str, Any]:
        """Return where the iteration stands: after the batches delivered so far."""
        if self._resume is not None:
            return self._resume.to_dict()
        if self._run is None:
            return LoaderState.of(self._order.epoch(self._next_epoch), 0).to_dict()
        run = self._run
        position = run.start + run.num_batches
        if position >= run.order.num_batches:
            return LoaderState.of(self._order.epoch(run.order.epoch + 1), 0).to_dict()
        return LoaderState.of(run.order, position).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken: the next `iter()` delivers exactly the batches that were left.

        Threads and workers may differ; so may the number of ranks if the global batch is the same.
        """
        resume = LoaderState.from_dict(state)
        # Says now, not later, what does not fit. Later epochs keep seed, lanes and window.
        self._order = replace(resume.resume(self._order).order, groups=self._order.groups)
        self._resume = resume
        self._run = None
        self._next_epoch = resume.epoch

    def stats(self) -> LoaderStats:
        """Return rates and shares of the epoch that is under way or was the last."""
        run, now = self._run, self._reader.counters()
        if run is None:
            return LoaderStats(0, 0, 0.0, 0.0, 0, 0.0, 0.0, self._num_threads())
        return LoaderStats(
            samples=run.num_samples,
            batches=run.num_batches,
            elapsed_s=(run.ended or perf_counter()) - run.began,
            waited_s=run.waited_s,
            nbytes_read=now.nbytes - self._counted.nbytes,
            read_s=(now.read_ns - self._counted.read_ns) / 1e9,
            decode_s=(now.decode_ns - self._counted.decode_ns) / 1e9,
            threads=self._num_threads(),
        )

    def shuffle_quality(self, num_batches: int = 64) -> ShuffleQuality:
        """Return how far batches are from a true shuffle: label entropy and chunks per batch. Reads no samples."""
        return shuffle_quality(self._order.epoch(self._next_epoch), self._labels, num_batches)

    def close(self) -> None:
        """End threads and what they are doing; idempotent. Iterating again starts new ones."""
        if self._run is not None:
            self._run.close()
        if self._engine is not None:
            self._engine.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        order = self._order
        return (
            f"Loader({self._reader.info.path!r}, {order.population.num_samples} samples in {len(self)} batches of "
            f"{order.batch_size}, shuffle={order.shuffle!r}, fields {', '.join(self._recipe.deliveries)})"
        )

    def _repr_html_(self) -> str:
        return loader_html(self._reader.info.path, self._order, self._recipe, len(self), self.stats())

    def _deliver(self, run: EpochRun) -> Iterator[Any]:
        try:
            for batch in run:
                if run.num_batches % LOOK_EVERY == 0:
                    self._add_threads_if_cold()
                yield batch
                del batch  # the user's reference alone decides how long a batch lives
        finally:
            run.close()  # who breaks out of the loop wants no more batches made
        if self._summary:
            log.warning("epoch %d: %s", run.order.epoch, self.stats())

    def _num_threads(self) -> int:
        return default_threads() if self._threads is None else self._threads

    def _running_engine(self) -> Engine:
        if self._engine is None or not self._engine.is_usable:
            self._engine = Engine(self._num_threads())
        return self._engine

    def _add_threads_if_cold(self) -> None:
        """Reads that wait for the disk leave cores idle: more threads ask it for more at once."""
        engine, stats = self._engine, self.stats()
        if (
            self._threads is not None
            or engine is None
            or stats.read_s < COLD_READ_SHARE * (stats.read_s + stats.decode_s)
        ):
            return
        if stats.waited_share > COLD_READ_SHARE:
            engine.grow(min(2 * engine.num_threads, COLD_THREADS_PER_CORE * self._num_threads()))

    def _parts(self, order: EpochOrder, batches: range, ahead: int) -> RunParts:
        sample_nbytes = sum(
            int(np.prod(plan.shape, dtype=np.int64)) * plan.memory_dtype.itemsize
            for plan in self._recipe.deliveries.values()
        )
        decoded, lead = plan_decoded(
            self._reader,
            self._recipe,
            order,
            batches,
            ahead,
            self._window_nbytes,
            self._window_memory,
            threads=self._num_threads() if ahead else 0,
        )
        return RunParts(
            recipe=self._recipe,
            fillers=self._fillers,
            decoded=decoded,
            memory=self._memory,
            device=self._device,
            piece_rows=plan_piece_rows(order.order.batch_size, sample_nbytes, self._num_threads()),
            ahead=ahead,
            lead=lead,
        )


def plan_piece_rows(batch_size: int, sample_nbytes: int, threads: int) -> int:
    """Return the rows that one task fills: a thread's share of the batch, but not less than is worth a task.

    Smaller pieces would not spread the work better, as who is done goes on with the next batch.
    """
    share = -(-batch_size // max(1, threads))
    return max(1, share, PIECE_NBYTES // max(1, sample_nbytes))
