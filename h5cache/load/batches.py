"""`ds.batches(...)`: ready batches for `DataLoader(batch_size=None)`, split exactly among its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from h5cache.errors import StateError
from h5cache.load.board import EpochBoard
from h5cache.load.engine import Engine
from h5cache.load.epoch import EpochRun, RunParts, plan_decoded
from h5cache.load.memory import BatchMemory, FreshMemory, RecycledMemory
from h5cache.load.options import LoaderOptions, check_whole, resolve_rank
from h5cache.load.order import EpochOrder, Order
from h5cache.load.read import SampleReader
from h5cache.load.shared import worker_memory
from h5cache.load.state import LoaderState

__all__ = ["BatchStream"]


@dataclass(frozen=True)
class _Resume:
    """A state that was loaded. Later epochs keep its seed, lanes and window."""

    state: LoaderState
    #: 1, or the number of workers one of which this is the state of: it goes on with its own batches.
    stride: int
    #: The board's number of the call that loaded it; None where StatefulDataLoader gave it to this worker alone.
    call: int | None
    to_dict: dict[str, Any]


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
        # Now: a worker that is spawned knows nothing of torch.distributed.
        rank, world_size = resolve_rank(options.rank, options.world_size)
        self._options = replace(options, rank=rank, world_size=world_size)
        self._recipe = options.plan_recipe(reader, fields, as_dict)
        self._length = self._options.plan_order(reader, selected).num_batches
        self._board = EpochBoard()
        self._resume: _Resume | None = None
        self._run: EpochRun | None = None
        self._stride = 1

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, also for workers that are running.

        It begins with its first batch, or where a state of this very epoch was loaded, after those delivered.
        """
        check_whole("epoch", epoch, 0)
        if self._board.loaded and epoch == self._board.next_epoch:
            return
        self._board.say(int(epoch))
        self._run = None

    def __iter__(self) -> Iterator[Any]:
        worker, num_workers = _this_worker()
        try:
            epoch_order, start, batches = self._begin(worker, num_workers)
        except StateError as exc:
            # Raised here it would end a persistent worker, and the consumer would hear of an exit code.
            return _raise_later(exc)
        self._board.note(epoch_order.epoch, epoch_order.order.groups, start)
        memory: BatchMemory = RecycledMemory(2) if get_worker_info() is None else worker_memory()
        decoded, _ = plan_decoded(
            self._reader, self._recipe, epoch_order, batches, 0, self._options.window_nbytes, FreshMemory()
        )
        parts = RunParts(
            recipe=self._recipe,
            fillers=self._recipe.fillers(self._reader),
            decoded=decoded,
            memory=memory,
            device=None,
            piece_rows=max(1, self._options.batch_size),
            ahead=0,
        )
        self._stride = num_workers
        self._run = EpochRun(epoch_order, batches, Engine(0), parts)
        return self._run

    def state_dict(self, batches_done: int | None = None) -> dict[str, Any]:
        """Return where the iteration stands. After the last batch of an epoch, nothing of it is left to deliver.

        With DataLoader workers only the consumer knows what it has received: say by `batches_done` how many batches
        of the iteration that is under way; all of them are the start of the next epoch. torchdata's
        StatefulDataLoader needs none of this: it asks each worker.
        """
        if self._resume is not None and self._resume.call == self._board.loaded:
            return self._resume.to_dict
        run, now = self._run, self._board.now
        if batches_done is not None and now is not None:
            epoch, groups, start = now
            order = self._order(groups)
            if start + batches_done >= order.num_batches:
                return _state_dict(order.epoch(epoch + 1), 0, 1)
            return _state_dict(order.epoch(epoch), start + batches_done, 1)
        if run is not None:
            position = min(run.start + run.num_batches * self._stride, run.order.num_batches)
            return _state_dict(run.order, position, self._stride)
        if now is not None:
            raise ValueError("state_dict: DataLoader's workers iterate; say batches_done=, the batches received so far")
        return _state_dict(self._order(1).epoch(self._board.next_epoch), 0, 1)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, whatever the number of workers, which must start after this."""
        if not isinstance(state, Mapping) or not {"loader", "stride"} <= state.keys():
            raise StateError("this is no state of batches(): pass what its state_dict() returned")
        loaded, stride = LoaderState.from_dict(state["loader"]), int(state["stride"])
        loaded.resume(self._options.plan_order(self._reader, self._selected))  # says now what does not fit
        call = None if get_worker_info() is not None else self._board.say(loaded.epoch, loaded=True)
        self._resume = _Resume(loaded, stride, call, {"loader": dict(state["loader"]), "stride": stride})
        self._run = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def _begin(self, worker: int, num_workers: int) -> tuple[EpochOrder, int, range]:
        """Return the epoch that begins, the first batch of all workers, and the batches of this one."""
        resume = self._resume
        told = resume is not None and resume.call is None and self._run is None
        epoch, call = self._board.begin(resume.state.epoch if resume is not None and told else None)
        if not told and not call:
            order = self._order(num_workers).epoch(epoch)
            return order, 0, order.worker_batches(worker, num_workers)
        if resume is None or not (told or resume.call == call):
            raise StateError(
                "load_state_dict does not reach DataLoader workers that are running: make a new DataLoader"
            )
        order = resume.state.resume(self._order(num_workers))
        start = resume.state.next_batch
        if num_workers > 1 and resume.stride == num_workers:
            return order, start, range(start, order.num_batches, num_workers)
        return order, start, order.worker_batches(worker, num_workers, start)

    def _order(self, num_workers: int) -> Order:
        order = self._options.plan_order(self._reader, self._selected, groups=num_workers)
        if self._resume is None:
            return order
        state = self._resume.state
        return replace(order, seed=state.seed, lanes=state.lanes, window=state.window)


def _state_dict(order: EpochOrder, position: int, stride: int) -> dict[str, Any]:
    return {"loader": LoaderState.of(order, position).to_dict(), "stride": stride}


def _raise_later(error: Exception) -> Iterator[Any]:
    raise error
    yield  # makes it a generator


def _this_worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
