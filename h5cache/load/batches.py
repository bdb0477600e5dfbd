"""`ds.batches(...)`: ready batches for `DataLoader(batch_size=None)`, split exactly among its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, get_worker_info

from h5cache.load.engine import Engine
from h5cache.load.epoch import EpochRun, RunParts, plan_decoded
from h5cache.load.memory import BatchMemory, RecycledMemory, SharedMemory
from h5cache.load.options import LoaderOptions
from h5cache.load.order import Order
from h5cache.load.read import SampleReader
from h5cache.load.state import LoaderState

__all__ = ["BatchStream"]

#: Workers of one DataLoader that can tell their epochs apart.
MOST_WORKERS = 4096


class BatchStream(IterableDataset[Any]):
    """Batches of a dataset, each decoded in the worker that was dealt it, into shared memory. Picklable.

    `DataLoader(stream, batch_size=None, num_workers=k)` delivers the same batches in the same order for every k, but
    with shuffle="chunk", where each worker has chunks of its own. Each iteration is the next epoch; `set_epoch` says
    which and reaches workers that are running.
    """

    def __init__(
        self,
        reader: SampleReader,
        selected: npt.NDArray[np.int64] | None,
        fields: Sequence[str],
        as_dict: bool,
        options: LoaderOptions,
    ) -> None:
        self._reader = reader
        self._selected = selected
        self._options = options
        self._recipe = options.plan_recipe(reader, fields, as_dict)
        self._length = options.plan_order(reader, selected).num_batches
        # In shared memory: an attribute that is set later never reaches a worker that is running. First the epoch,
        # then how many epochs each worker has begun since it was set.
        self._epochs = torch.zeros(1 + MOST_WORKERS, dtype=torch.int64)
        self._epochs.share_memory_()  # type: ignore[no-untyped-call]
        self._resume: dict[str, Any] | None = None
        self._run: EpochRun | None = None
        self._stride = 1

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, also for workers that are running."""
        self._epochs.zero_()
        self._epochs[0] = int(epoch)
        self._resume = None

    def __iter__(self) -> Iterator[Any]:
        worker, num_workers = _this_worker()
        order = self._options.plan_order(self._reader, self._selected, groups=num_workers)
        if self._resume is not None:
            state = LoaderState.from_dict(self._resume["loader"])
            epoch_order = state.resume(order)
            batches = epoch_order.worker_batches(worker, num_workers, state.next_batch)
            if self._resume["stride"] == num_workers and num_workers > 1:
                # The state of one worker of several: it goes on with its own batches.
                batches = range(state.next_batch, epoch_order.num_batches, num_workers)
            self._resume = None
            self._epochs[1 + worker] = epoch_order.epoch - self._epochs[0] + 1
        else:
            epoch = int(self._epochs[0] + self._epochs[1 + worker])
            self._epochs[1 + worker] += 1
            epoch_order = order.epoch(epoch)
            batches = epoch_order.worker_batches(worker, num_workers)
        memory: BatchMemory = RecycledMemory(2) if get_worker_info() is None else SharedMemory()
        parts = RunParts(
            engine=Engine(0),
            recipe=self._recipe,
            fillers=self._recipe.fillers(self._reader),
            decoded=plan_decoded(self._reader, self._recipe, epoch_order, batches, 0, self._options.window_nbytes),
            memory=memory,
            device=None,
            piece_rows=max(1, self._options.batch_size),
            ahead=0,
        )
        self._stride = num_workers
        self._run = EpochRun(epoch_order, batches, parts)
        return self._run

    def state_dict(self, batches_done: int | None = None) -> dict[str, Any]:
        """Return where this process's iteration stands.

        With DataLoader workers only the consumer knows what it has received: say it by `batches_done` (of this
        epoch), or use torchdata's StatefulDataLoader, which asks each worker.
        """
        if self._resume is not None and batches_done is None:
            return self._resume
        if batches_done is not None:
            order = self._order_of_consumer()
            epoch = max(int(self._epochs[0] + self._epochs[1:].max()) - 1, 0)
            return {"loader": LoaderState.of(order.epoch(epoch), batches_done).to_dict(), "stride": 1}
        run = self._run
        if run is None:
            order = self._options.plan_order(self._reader, self._selected, groups=_this_worker()[1])
            return {"loader": LoaderState.of(order.epoch(int(self._epochs[0])), 0).to_dict(), "stride": 1}
        position = min(run.start + run.num_batches * self._stride, run.order.num_batches)
        return {"loader": LoaderState.of(run.order, position).to_dict(), "stride": self._stride}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, whatever the number of workers."""
        LoaderState.from_dict(state["loader"])
        self._resume = {"loader": dict(state["loader"]), "stride": int(state["stride"])}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def _order_of_consumer(self) -> Order:
        groups = int((self._epochs[1:] > 0).sum()) or 1
        return self._options.plan_order(self._reader, self._selected, groups=groups)


def _this_worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
