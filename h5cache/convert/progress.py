"""How far each part is: a few bytes per part in a file that workers write and the parent reads. No pipe per sample."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Counter", "CounterFile", "ProgressBar"]

_ENTRY = struct.Struct("<qq")


@dataclass(frozen=True)
class Counter:
    """One part's entry: samples done and bytes stored. Picklable; a write is one system call of 16 bytes."""

    path: str
    number: int

    def open(self) -> OpenCounter:
        return OpenCounter(os.open(self.path, os.O_WRONLY | os.O_CLOEXEC), self.number * _ENTRY.size)


class OpenCounter:
    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def set(self, num_samples: int, stored_nbytes: int) -> None:
        os.pwrite(self._descriptor, _ENTRY.pack(num_samples, stored_nbytes), self._offset)

    def __enter__(self) -> OpenCounter:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class CounterFile:
    """The entries of all parts of one run."""

    path: str

    @classmethod
    def create(cls, path: str, num_parts: int) -> CounterFile:
        with open(path, "wb") as stream:
            stream.write(bytes(_ENTRY.size * num_parts))
        return cls(path)

    def counter(self, number: int) -> Counter:
        return Counter(self.path, number)

    def total(self) -> tuple[int, int]:
        """Return samples and bytes of all parts together. An entry that is being written is whole: 16 bytes."""
        with open(self.path, "rb") as stream:
            entries = np.frombuffer(stream.read(), "<i8").reshape(-1, 2)
        return int(entries[:, 0].sum()), int(entries[:, 1].sum())


class ProgressBar:
    """Show samples done, rate, time left and the ratio so far. `show` None: on terminals and in notebooks only.

    On a terminal the bar goes when it is done, as the command says what came of it; in a notebook it stays.
    """

    def __init__(self, total: int | None, done: int, sample_nbytes: int, show: bool | None) -> None:
        from tqdm.auto import tqdm

        in_notebook = any(kind.__module__ == "tqdm.notebook" for kind in tqdm.__mro__)
        if show is None and in_notebook:
            show = True  # a notebook is no terminal, but has a bar of its own
        # tqdm's own None: quiet when not a terminal.
        disable = None if show is None else not show
        self._bar: Any = tqdm(
            total=total,
            initial=done,
            desc="converting",
            unit=" samples",
            disable=disable,
            dynamic_ncols=True,
            leave=in_notebook,
        )
        self._sample_nbytes = sample_nbytes

    def set(self, num_samples: int, stored_nbytes: int) -> None:
        if self._bar.disable:
            return
        if stored_nbytes:
            self._bar.set_postfix(ratio=f"{num_samples * self._sample_nbytes / stored_nbytes:.2f}", refresh=False)
        self._bar.update(num_samples - self._bar.n)

    def finish(self) -> None:
        """Close the bar of samples that are all converted; where it stays, it shows the rate of the whole."""
        self._bar.set_description("converted", refresh=False)
        self._bar.close()

    def drop(self) -> None:
        """Close the bar and leave no trace of it: another one takes its place."""
        self._bar.leave = False
        # tqdm takes a bar below its total for one that failed, and keeps it in red.
        self._bar.total = None
        self._bar.close()

    def close(self) -> None:
        """Close the bar where it stands, unless that was done."""
        self._bar.close()
