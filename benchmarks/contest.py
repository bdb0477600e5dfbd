"""What takes part in the loading benchmark, and how each is timed: the same samples, batches and checks for all.

A sample's label is its number, so that every batch can be compared with what was stored.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from page_cache import drop_cached, fill_cache

__all__ = ["Contestant", "Measurement", "Setting", "Source", "check_exact", "check_similar", "measure", "worker_loader"]

Array = np.ndarray[Any, Any]
#: One epoch of (images, labels), or of numbers of samples where nothing is handed over (the limits).
Epoch = Iterable[Any]
Check = Callable[[Array, Array], None]

#: Rows of a batch that are compared with the source, in the first epoch.
ROWS_CHECKED = 3
#: Share of the pages of a store that may be left in memory by a drop that counts as one.
LEFT_IN_MEMORY = 0.05


@dataclass(frozen=True)
class Source:
    """The samples: `images.npy`, (n, 3, size, size) uint8, and the photographs they were made of, if any."""

    folder: Path

    @property
    def images(self) -> Array:
        return np.load(self.folder / "images.npy", mmap_mode="r")

    @property
    def labels(self) -> Array:
        return np.arange(len(self.images))

    @property
    def photographs(self) -> list[str]:
        listed = self.folder / "photographs.txt"
        return listed.read_text().splitlines() if listed.exists() else []


@dataclass(frozen=True)
class Setting:
    """What is the same for everyone."""

    threads: int
    batch_size: int
    #: Time at least so many seconds of epochs.
    least_s: float
    #: Leave an epoch that takes longer; its rate up to there counts.
    most_s: float


def check_exact(images: Array, stored: Array) -> None:
    assert images.dtype == stored.dtype
    assert np.array_equal(images, stored)


def check_similar(images: Array, stored: Array) -> None:
    """For JPEG: the same pictures, not the same bytes."""
    assert images.shape == stored.shape
    assert np.abs(images.astype(np.int16) - stored).mean() < 12


@dataclass(frozen=True)
class Contestant:
    """One way to load. `build` writes a store once; `open` returns a function that begins an epoch."""

    name: str
    #: Folder of what is stored; contestants of one name share it.
    store: str
    build: Callable[[Source, Path], None]
    open: Callable[[Path, Setting], Callable[[], Epoch]]
    requires: tuple[str, ...] = ()
    check: Check | None = check_exact
    #: Most loaders are opened anew before the cold epoch: workers may have pages mapped, which cannot be dropped then.
    #: Not one without workers that would compile its code again.
    reopen_when_cold: bool = True
    #: False for what is in memory anyway.
    reads_files: bool = True
    #: Which samples: a folder beside the stores.
    source: str = "source"
    #: Reads the source itself; there is no store.
    reads_source: bool = False


@dataclass
class Measurement:
    """What one run of one contestant gave."""

    samples_per_s: float = 0.0
    cpu_s_per_1000: float = 0.0
    cold_samples_per_s: float | None = None
    stored_nbytes: int = 0
    notes: list[str] = field(default_factory=list)


def missing_packages(contestant: Contestant) -> list[str]:
    return [name for name in contestant.requires if importlib.util.find_spec(name) is None]


def measure(contestant: Contestant, work: Path, setting: Setting, *, cold: bool) -> Measurement:
    """Build the store if need be, check one epoch, then time: warm, and cold if asked."""
    source, folder = Source(work / contestant.source), work / "stores" / contestant.store
    if contestant.reads_source:
        folder = source.folder
    else:
        _build(contestant, source, folder)
    result = Measurement(stored_nbytes=sum(path.stat().st_size for path in _files(folder)))
    if contestant.reads_files:
        fill_cache(_files(folder))
    begin = contestant.open(folder, setting)
    # This also starts workers and compiles.
    if not _check_epoch(begin(), contestant, source, setting):
        begin = contestant.open(folder, setting)  # workers of an epoch that was left would first finish their batches
    samples, elapsed, cpu = 0, 0.0, 0.0
    while not samples or elapsed < setting.least_s:
        count, wall, used = _time_epoch(begin, setting)
        samples, elapsed, cpu = samples + count, elapsed + wall, cpu + used
        if wall > setting.most_s:
            result.notes.append(f"left after {wall:.0f} s: its workers' CPU time counts too much")
    result.samples_per_s = samples / elapsed
    result.cpu_s_per_1000 = cpu / samples * 1000
    if cold and contestant.reads_files:
        if contestant.reopen_when_cold:
            del begin
            gc.collect()
        left = drop_cached(_files(folder))
        if left > LEFT_IN_MEMORY:
            result.notes.append(f"no cold run: {left:.0%} stayed in memory")
            return result
        if contestant.reopen_when_cold:
            begin = contestant.open(folder, setting)
        count, wall, _ = _time_epoch(begin, setting)
        result.cold_samples_per_s = count / wall
    return result


def _build(contestant: Contestant, source: Source, folder: Path) -> None:
    done = folder.with_name(folder.name + ".done")
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    contestant.build(source, folder)
    for path in _files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # pages that are not written yet cannot be dropped
        os.close(descriptor)
    done.touch()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _check_epoch(epoch: Epoch, contestant: Contestant, source: Source, setting: Setting) -> bool:
    """Go through an epoch: every sample once, the bytes as stored. Return False where it was left for its length."""
    images, seen, began = source.images, np.zeros(len(source.images), np.int64), time.perf_counter()
    for batch in epoch:
        if isinstance(batch, int):
            seen[:batch] += 1
            continue
        values, labels = (np.asarray(part) for part in batch)
        labels = labels.reshape(-1)
        np.add.at(seen, labels, 1)
        if contestant.check is not None:
            for row in range(0, len(labels), max(1, len(labels) // ROWS_CHECKED)):
                contestant.check(values[row], images[labels[row]])
        if time.perf_counter() - began > setting.most_s:
            return False
    if seen.max() > 1 or not seen.all():
        raise SystemExit(f"{contestant.name}: {np.sum(seen == 0)} samples missing, {np.sum(seen > 1)} more than once")
    return True


def _time_epoch(begin: Callable[[], Epoch], setting: Setting) -> tuple[int, float, float]:
    """Return samples, seconds and seconds of CPU of one epoch, or of the part of it that fits into `most_s`."""
    cpu, start, count, touched = cpu_seconds(), time.perf_counter(), 0, 0
    for batch in begin():
        if isinstance(batch, int):
            count += batch
        else:
            images, labels = batch
            count += len(labels)
            # Of every sample one byte; by index, since flattening would copy a batch with channels last.
            touched += int(images[:, 0, 0, 0].sum()) + int(labels.sum())
            del images, labels
        del batch
        if time.perf_counter() - start > setting.most_s:
            break
    elapsed = time.perf_counter() - start
    return count, elapsed, cpu_seconds() - cpu


def cpu_seconds() -> float:
    """Return CPU time of this process, of its children that ended, and of those that live (by /proc)."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in _descendants(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # ended meanwhile
        total += sum(int(value) for value in fields[11:15]) / ticks
    return total


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield child
        yield from _descendants(child)


def worker_loader(dataset: Any, setting: Setting, **options: Any) -> Callable[[], Epoch]:
    """Return epochs of a DataLoader whose workers stay: shuffled, with torch's own collate, unless said otherwise."""
    from torch.utils.data import DataLoader

    chosen = {"batch_size": setting.batch_size, "num_workers": setting.threads, "persistent_workers": True}
    if "shuffle" not in options and options.get("batch_size", 0) is not None:
        chosen["shuffle"] = True
    loader = DataLoader(dataset, **(chosen | options))
    return lambda: loader
