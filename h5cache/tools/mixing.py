"""How well each order mixes a dataset, reckoned from the index, and how fast it is delivered, measured."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy.typing as npt

from h5cache.load.dataset import H5TensorDataset
from h5cache.load.engine import default_threads
from h5cache.load.options import LoaderOptions
from h5cache.load.quality import ShuffleQuality, quality_by_window, shuffle_quality
from h5cache.load.read import SampleReader

__all__ = ["Rate", "ShuffleSurvey", "load_per_core", "measure_rates", "survey_shuffle", "window_nbytes"]

#: Batches of the shuffle survey, where the dataset is large enough for several.
BATCH_SIZE = 256
#: Seconds that one combination of order and threads is measured.
RATE_SECONDS = 0.7

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ShuffleSurvey:
    """How well batches are mixed: as stored, by chunk order of growing windows, and by a full shuffle."""

    batch_size: int
    has_labels: bool
    lanes: int
    #: Decoded bytes of a chunk: a window of w chunks in each lane holds about w x lanes of them.
    chunk_nbytes: int
    #: The window that `shuffle="chunk"` takes by default.
    default_window: int
    stored: ShuffleQuality
    windows: tuple[tuple[int, ShuffleQuality], ...]
    full: ShuffleQuality

    @property
    def default(self) -> ShuffleQuality:
        return next(found for window, found in self.windows if window == self.default_window)


@dataclass(frozen=True)
class Rate:
    """Delivered samples per second."""

    shuffle: str
    threads: int
    samples_per_s: float


def survey_shuffle(reader: SampleReader, labels: Array | None) -> ShuffleSurvey | None:
    """Reckon how well each order mixes, from the index alone; None where there is less than two batches."""
    total = reader.info.num_samples
    batch_size = min(BATCH_SIZE, 2 ** int(math.log2(max(1, total // 8))))
    if total < 16:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the window may be small: the survey says so itself
        order = LoaderOptions(batch_size=batch_size, shuffle="chunk").plan_order(reader, None)
    num_chunks = order.population.num_stored_chunks
    largest = max(1, math.ceil(num_chunks / order.lanes))
    base = 2 if largest <= 32 else 4  # few enough to be told apart in a chart
    windows = sorted({base**power for power in range(6) if base**power < largest} | {min(order.window, largest)})
    ends = [replace(order, shuffle=kind, lanes=1, window=1) for kind in (False, "full")]
    chunk_nbytes = max(
        (
            storage.layout.sample_nbytes * order.population.chunk_samples
            for name, storage in reader.info.storage.items()
            if name not in reader.info.resident
        ),
        default=1,
    )
    return ShuffleSurvey(
        batch_size=batch_size,
        has_labels=labels is not None,
        lanes=order.lanes,
        chunk_nbytes=chunk_nbytes,
        default_window=min(order.window, largest),
        stored=shuffle_quality(ends[0].epoch(0), labels),
        windows=quality_by_window(order, labels, windows),
        full=shuffle_quality(ends[1].epoch(0), labels),
    )


def load_per_core() -> float:
    """Return how many programs want each core, over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] / default_threads() if hasattr(os, "getloadavg") else 0.0


def measure_rates(ds: H5TensorDataset, advance: Callable[[int], None] = lambda _: None) -> tuple[Rate, ...]:
    """Measure delivered samples per second by order and threads, warm: everything is read once before."""
    batch_size = max(1, min(BATCH_SIZE, len(ds)))
    cores = default_threads()
    counts = sorted({1, *(2**power for power in range(1, 6) if 2**power <= cores), cores})
    _measure(ds, batch_size, "full", cores)
    rates = []
    for shuffle in ("none", "chunk", "full"):
        for threads in counts:
            rates.append(Rate(shuffle, threads, _measure(ds, batch_size, shuffle, threads)))
        advance(1)
    return tuple(rates)


def _measure(ds: H5TensorDataset, batch_size: int, shuffle: str, threads: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = ds.loader(batch_size, False if shuffle == "none" else shuffle, threads=threads)
    delivered, began = 0, perf_counter()
    with loader:
        while True:
            for batch in loader:
                delivered += len(batch[next(iter(batch))] if isinstance(batch, dict) else batch[0])
                if perf_counter() - began > RATE_SECONDS:
                    return delivered / (perf_counter() - began)


def window_nbytes(survey: ShuffleSurvey, window: int) -> int:
    """Return the decoded bytes that a window holds, about."""
    return window * survey.lanes * survey.chunk_nbytes
