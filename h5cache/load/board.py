"""Which epoch an iteration is, agreed on by the DataLoader workers that make it, in shared memory.

A worker hears nothing of the consumer once it runs, and DataLoader tells the dataset nothing in the consumer. Counting
iterations per worker is not enough: a peek with fewer workers, or a worker that is ended before it began, would leave
workers of one iteration in different epochs. So an iteration has a name that its workers know alike and no other
iteration has; the first worker to come takes the next epoch for it, the others find it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils.data import get_worker_info

__all__ = ["MOST_WORKERS", "EpochBoard"]

#: Workers of one DataLoader that are told apart.
MOST_WORKERS = 1024
#: Iterations that are remembered, for workers that come late.
_REMEMBERED = 256

_NEXT, _CALLS, _SAID, _LOADED, _NOW_EPOCH, _NOW_GROUPS, _NOW_START, _HEADER = range(8)


class EpochBoard:
    """Hand out epochs. Any process that holds it sees the same; the consumer speaks, workers only begin."""

    def __init__(self) -> None:
        cells = torch.zeros(_HEADER + 2 * (_REMEMBERED + MOST_WORKERS), dtype=torch.int64)
        cells.share_memory_()  # type: ignore[no-untyped-call]
        self._cells = cells
        #: Of this worker process: processes before it of the same name, and iterations it has begun.
        self._begun: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_cells": self._cells, "_begun": None}

    @property
    def next_epoch(self) -> int:
        return int(self._cells[_NEXT])

    @property
    def loaded(self) -> int:
        """Number of the call of `say` whose state the next epoch resumes; 0: none, or it was resumed already."""
        is_next = self._cells[_NEXT] == self._cells[_SAID]
        return int(self._cells[_LOADED]) if is_next else 0

    @property
    def now(self) -> tuple[int, int, int] | None:
        """Epoch, groups and first batch of the iteration that began last; None after `say`."""
        epoch, groups, start = self._cells[_NOW_EPOCH : _NOW_START + 1].tolist()
        return (epoch, groups, start) if groups else None

    def say(self, epoch: int, *, loaded: bool = False) -> int:
        """Decide the next epoch, and whether it resumes a state; return the number of this call."""
        calls = int(self._cells[_CALLS]) + 1
        for cell, value in ((_SAID, epoch), (_NEXT, epoch), (_LOADED, calls if loaded else 0), (_NOW_GROUPS, 0)):
            self._cells[cell] = value
        self._cells[_CALLS] = calls
        return calls

    def begin(self, epoch: int | None = None) -> tuple[int, int]:
        """Begin an iteration, or join it; return its epoch, and the call of `say` whose state it resumes or 0.

        With `epoch`, that one: a worker that was told by itself.
        """
        # Read before the look into the table, and raised after the entry there: a worker that does not find the
        # entry has the number from before it.
        following = self.next_epoch if epoch is None else epoch
        if get_worker_info() is not None:
            name = self._name_iteration()
            entry = self._cells[_HEADER + 2 * (name % _REMEMBERED) :][:2]
            if epoch is None and int(entry[0]) == name:
                following = int(entry[1])
            else:
                entry[1] = following
                entry[0] = name
        if self.next_epoch <= following or epoch is not None:
            self._cells[_NEXT] = following + 1
        resumes = epoch is None and following == int(self._cells[_SAID])
        return following, int(self._cells[_LOADED]) if resumes else 0

    def note(self, epoch: int, groups: int, start: int) -> None:
        """Keep what the iteration that begins consists of, for the consumer's `now`."""
        self._cells[_NOW_EPOCH], self._cells[_NOW_START], self._cells[_NOW_GROUPS] = epoch, start, groups

    def _name_iteration(self) -> int:
        """Return a number that all workers of this iteration compute alike.

        DataLoader draws a seed for each set of workers; they count their iterations themselves. A user who seeds torch
        anew gets the same seed again: so each worker leaves a mark that its successor finds.
        """
        info = get_worker_info()
        if info.id >= MOST_WORKERS:  # type: ignore[union-attr]
            raise ValueError(f"a DataLoader over batches may have {MOST_WORKERS} workers at most")
        workers = (info.seed - info.id, info.num_workers)  # type: ignore[union-attr]
        if self._begun is None:
            mark = _digest(workers)
            own = self._cells[_HEADER + 2 * (_REMEMBERED + info.id) :][:2]  # type: ignore[union-attr]
            own[1] = own[1] + 1 if int(own[0]) == mark else 0
            own[0] = mark
            self._begun = (int(own[1]), 0)
        else:
            self._begun = (self._begun[0], self._begun[1] + 1)
        return _digest((*workers, int(self._cells[_CALLS]), *self._begun))


def _digest(numbers: tuple[int, ...]) -> int:
    """Return a positive 63-bit number that differs for different numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1 or 1
