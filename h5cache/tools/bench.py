"""How fast a dataset delivers, by order, threads and door, and the user's present way beside it, as one value.

`bench_text.py` turns the value into words for people, `bench_plot.py` into a picture; the value
itself is in `bench_result.py`.
"""

from __future__ import annotations

import os
import statistics
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader

from h5cache.convert.sources import BadSampleError, SourceError
from h5cache.format.open import open_dataset
from h5cache.limits import usable_cores, usable_memory_nbytes
from h5cache.load.dataset import H5TensorDataset
from h5cache.load.loader import PREFETCH
from h5cache.tools.bench_result import (
    ORDERS,
    OURS,
    THEIRS,
    BenchOptions,
    BenchResult,
    Measurement,
    OrderQuality,
    StepWait,
)
from h5cache.tools.measure import Delivery, Feed, describe_load, measure_cold, measure_waiting, measure_warm
from h5cache.tools.present import PREFETCH_FACTOR, Present, make_dataloader, open_present

__all__ = ["bench_dataset", "default_threads", "plan_samples"]

#: Measured at most: enough for steady figures, and all of it stays in the page cache while it is called warm.
MOST_SAMPLES = 20_000
MOST_NBYTES = 2_000_000_000
MEMORY_SHARE = 0.25
#: Below this many batches an epoch, figures tell as much of its beginning and end as of delivery.
FEW_BATCHES = 8


@dataclass(frozen=True, eq=False)
class _Way:
    """Something to be measured, and what it is called in the result."""

    row: Measurement
    feed: Feed
    paths: Sequence[str] = ()


Progress = Callable[[int, str], Any]


def default_threads() -> tuple[int, ...]:
    cores = usable_cores()
    return tuple(sorted({1, max(1, cores // 2), cores}))


def bench_dataset(
    path: str | os.PathLike[str],
    options: BenchOptions | None = None,
    progress: Callable[[int], Progress] | None = None,
) -> BenchResult:
    """Measure a dataset on this machine. `progress(total)` returns a function that is told of each step taken."""
    options = options or BenchOptions()
    options = replace(options, threads=options.threads or default_threads())
    info = open_dataset(path)
    notes = [note for note in (describe_load(usable_cores()),) if note]
    with _noting(notes), H5TensorDataset(path) as dataset:
        count = plan_samples(len(dataset), sum(field.sample_nbytes for field in info.schema.values()))
        if count < len(dataset):
            dataset = dataset.select(slice(0, count))
            notes.append(f"measured on the first {count:,} of {info.num_samples:,} samples")
        if count < FEW_BATCHES * options.batch_size:
            notes.append(
                f"{count:,} samples are only {-(-count // options.batch_size)} batches an epoch: figures contain the "
                "start of epochs; a smaller --batch-size shows delivery alone"
            )
        present = _open_present(options, info, count)
        notes.extend(present.notes if present else ())
        paths = [shard.path for shard in info.shards]
        warm = [*_our_ways(dataset, options), *([_their_way(present, options, "warm")] if present else [])]
        cold = [_our_cold_way(dataset, options, paths)]
        if present is not None and present.paths:
            cold.append(_their_way(present, options, "cold"))
        elif present is not None:
            notes.append("cold: the files of your loader are not known, so only h5cache is measured cold")
        _read_once(dataset, options)
        measured, steps = _measure_all(warm, cold, options, progress or _silence, notes)
        quality = tuple(_quality(dataset, order, options) for order in options.orders)
    return BenchResult(
        dataset=info.path,
        num_samples=info.num_samples,
        num_measured=count,
        stored_nbytes=sum(storage.stored_nbytes for storage in info.storage.values()),
        options=options,
        measurements=tuple(measured),
        quality=quality,
        steps=tuple(steps),
        present=None if present is None else present.name,
        notes=tuple(dict.fromkeys(notes)),
    )


def plan_samples(num_samples: int, sample_nbytes: int) -> int:
    """Return how many samples are measured: so many that all stay in memory, and that reading them is quick."""
    room = min(MOST_NBYTES, int(MEMORY_SHARE * usable_memory_nbytes()))
    return max(1, min(num_samples, MOST_SAMPLES, room // max(1, sample_nbytes)))


def _our_ways(dataset: H5TensorDataset, options: BenchOptions) -> Iterator[_Way]:
    """Yield the loader in all orders with all threads; other doors with the most workers, in orders they have."""
    size, most = options.batch_size, max(options.threads)
    for order in options.orders if "loader" in options.doors else ():
        for threads in options.threads:
            yield _Way(_row("loader", order, threads), _loader_feed(dataset, order, threads, options))
    orders = options.orders[-1:] if "loader" in options.doors else options.orders
    for order in orders:
        shuffle = ORDERS[order]
        if "dataloader" in options.doors and order != "chunk":
            make = _with(make_dataloader, dataset, size, most, shuffle=bool(shuffle))
            yield _Way(_row("dataloader", order, most), _worker_feed(make, most, options))
        if "batches" in options.doors:
            stream = dataset.batches(size, shuffle=shuffle)
            make = _with(DataLoader, stream, batch_size=None, num_workers=most, persistent_workers=most > 0)
            yield _Way(_row("batches", order, most), _worker_feed(make, most, options))


def _our_cold_way(dataset: H5TensorDataset, options: BenchOptions, paths: Sequence[str]) -> _Way:
    order = options.orders[-1]
    return _Way(_row("loader", order, None, cache="cold"), _loader_feed(dataset, order, None, options), paths)


def _their_way(present: Present, options: BenchOptions, cache: str) -> _Way:
    order = "full" if present.paths else "own"
    threads = present.workers if present.paths else None
    return _Way(_row("files", order, threads, THEIRS, cache), present.feed(options.device), present.paths)


def _row(door: str, order: str, threads: int | None, way: str = OURS, cache: str = "warm") -> Measurement:
    return Measurement(way, door, order, threads, cache, (), 0.0, None)


def _with(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[[], Iterable[Any]]:
    return lambda: function(*args, **options)


def _loader_feed(dataset: H5TensorDataset, order: str, threads: int | None, options: BenchOptions) -> Feed:
    make = _with(dataset.loader, options.batch_size, ORDERS[order], threads=threads, device=options.device)
    return Feed(make, ahead=PREFETCH)


def _worker_feed(make: Callable[[], Iterable[Any]], workers: int, options: BenchOptions) -> Feed:
    return Feed(make, ahead=PREFETCH_FACTOR * workers, keep=True, device=options.device)


def _measure_all(
    warm: Sequence[_Way],
    cold: Sequence[_Way],
    options: BenchOptions,
    progress: Callable[[int], Progress],
    notes: list[str],
) -> tuple[list[Measurement], list[StepWait]]:
    """Measure everything in turn, again and again, so that a slow moment of the machine hits all ways alike."""
    asked = list(_headline(warm, options)) if options.step_ms is not None else []
    tell = progress(len(warm) + options.repetitions * (len(warm) + len(cold)) + len(asked))
    seen: dict[int, list[Delivery]] = {id(way): [] for way in (*warm, *cold)}
    waits = []
    try:
        for way in warm:
            tell(1, f"reading once: {_name(way)}")
            _warm_up(way, options)
        for _ in range(options.repetitions):
            for way in warm:
                tell(1, _name(way))
                with _naming_bad_samples():
                    seen[id(way)].append(measure_warm(way.feed, options.seconds))
                way.feed.rest()
        for way in asked:
            tell(1, f"steps: {_name(way)}")
            waits.append(_measure_step(way, options))
            way.feed.rest()
        for _ in range(options.repetitions):
            for way in cold:
                tell(1, _name(way))
                with _naming_bad_samples():
                    found = measure_cold(way.feed, way.paths, options.seconds * 2)
                way.feed.rest()
                if found is not None:
                    seen[id(way)].append(found)
    finally:
        for way in (*warm, *cold):
            way.feed.close()
    if any(not seen[id(way)] for way in cold):
        notes.append("cold: this system keeps files in its page cache (a tmpfs, say), so cold reads are not measured")
    return [_to_measurement(way.row, seen[id(way)]) for way in (*warm, *cold) if seen[id(way)]], waits


def _read_once(dataset: H5TensorDataset, options: BenchOptions) -> None:
    """Get all that is measured of the dataset into the page cache."""
    with dataset.loader(options.batch_size) as loader:
        for _ in loader:
            pass


def _silence(total: int) -> Progress:
    return lambda count, what: None


def _warm_up(way: _Way, options: BenchOptions) -> None:
    """Get files into the page cache and workers under way."""
    for path in way.paths:
        with open(path, "rb", buffering=0) as stream:
            while stream.read(1 << 22):
                pass
    with _naming_bad_samples():
        measure_warm(way.feed, min(options.seconds, 0.3))
    way.feed.rest()


def _headline(ways: Sequence[_Way], options: BenchOptions) -> Iterator[_Way]:
    """Yield h5cache's way that counts, and the user's."""
    ours = [way for way in ways if way.row.way == OURS and way.row.order == options.orders[-1]]
    ours = [way for way in ours if way.row.door == ours[0].row.door] or list(ways[:1])
    yield max(ours, key=lambda way: way.row.threads or 0)
    yield from (way for way in ways if way.row.way == THEIRS)


def _measure_step(way: _Way, options: BenchOptions) -> StepWait:
    step_s = (options.step_ms or 0.0) / 1000
    waited_s = measure_waiting(way.feed, 2 * options.seconds, step_s)
    return StepWait(way.row.way, 1000 * step_s, 1000 * waited_s)


def _to_measurement(row: Measurement, found: Sequence[Delivery]) -> Measurement:
    rates = tuple(one.samples_per_s for one in found)
    samples = sum(one.samples for one in found)
    cpu = [one.cpu_s for one in found if one.cpu_s is not None]
    sample_nbytes = sum(one.nbytes for one in found) / max(1, samples)
    return replace(
        row,
        samples_per_s=rates,
        mb_per_s=statistics.median(rates) * sample_nbytes / 1e6,
        cpu_s_per_1000=1000 * sum(cpu) / samples if len(cpu) == len(found) and samples else None,
    )


def _quality(dataset: H5TensorDataset, order: str, options: BenchOptions) -> OrderQuality:
    with dataset.loader(options.batch_size, ORDERS[order], threads=0) as loader:
        found = loader.shuffle_quality()
    return OrderQuality(order, found.label_ratio, found.chunk_ratio)


def _open_present(options: BenchOptions, info: Any, count: int) -> Present | None:
    if options.against is None:
        return None
    return open_present(options.against, info, options.batch_size, max(1, *options.threads), count)


def _name(way: _Way) -> str:
    row = way.row
    words = [row.cache, row.way] + ([row.door, row.order] if row.way == OURS else [])
    return " ".join(words) + (f" x{row.threads}" if row.threads is not None else "")


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    """Collect what libraries warn of, each once, instead of printing it between the figures."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            notes.extend(dict.fromkeys(str(one.message) for one in caught if issubclass(one.category, UserWarning)))


@contextmanager
def _naming_bad_samples() -> Iterator[None]:
    try:
        yield
    except BadSampleError as exc:
        # A worker's exception comes with its traceback as text; its last line is the reason.
        reason = str(exc).strip().splitlines()[-1].rpartition("BadSampleError: ")[2]
        # Its frames hold the DataLoader's iterator: left to the garbage collector, that waits 5 s for its workers.
        traceback.clear_frames(exc.__traceback__)
        raise SourceError(f"one of your files cannot be read: {reason}; h5cache convert lists all such files") from exc
