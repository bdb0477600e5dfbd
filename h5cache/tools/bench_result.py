"""What `h5cache bench` was asked and what it found, as values; the verdict in one line. Pure: nothing is measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

__all__ = [
    "DOORS",
    "ORDERS",
    "OURS",
    "THEIRS",
    "BenchOptions",
    "BenchResult",
    "Measurement",
    "OrderQuality",
    "StepWait",
    "make_verdict",
    "to_json",
]

#: What the command line calls them: what `shuffle=` takes.
ORDERS: dict[str, bool | str] = {"sequential": False, "chunk": "chunk", "full": "full"}
DOORS = ("loader", "dataloader", "batches")
OURS, THEIRS = "h5cache", "yours"


@dataclass(frozen=True)
class BenchOptions:
    """What to measure. Defaults take about half a minute on two cores."""

    batch_size: int = 256
    #: Empty: 1, half of the cores, all cores.
    threads: tuple[int, ...] = ()
    orders: tuple[str, ...] = tuple(ORDERS)
    doors: tuple[str, ...] = DOORS
    against: str | None = None
    #: A training step on a GPU, which leaves the cores alone; None: not asked.
    step_ms: float | None = None
    #: Of each measurement; all are taken `repetitions` times, in turn.
    seconds: float = 0.6
    repetitions: int = 3
    device: str | None = None

    def __post_init__(self) -> None:
        for name, values, known in (("orders", self.orders, tuple(ORDERS)), ("doors", self.doors, DOORS)):
            unknown = [value for value in values if value not in known]
            if unknown or not values:
                raise ValueError(f"{name} are some of {', '.join(known)}, got {', '.join(unknown) or 'none'}")
        if self.batch_size < 1 or self.repetitions < 1 or self.seconds <= 0 or any(t < 0 for t in self.threads):
            raise ValueError("batch size, repetitions and seconds must be positive, and threads 0 or more")
        if self.step_ms is not None and self.step_ms < 0:
            raise ValueError(f"step_ms must be 0 or more, got {self.step_ms}")


@dataclass(frozen=True)
class Measurement:
    """One way to get batches, measured some times."""

    #: "h5cache" or "yours".
    way: str
    door: str
    order: str
    #: Threads of a loader, workers of a DataLoader; None: as many as it finds good.
    threads: int | None
    cache: str
    samples_per_s: tuple[float, ...]
    #: Delivered, that is decoded, at the median rate.
    mb_per_s: float
    cpu_s_per_1000: float | None

    @property
    def best(self) -> float:
        return max(self.samples_per_s)

    @property
    def median(self) -> float:
        return statistics.median(self.samples_per_s)


@dataclass(frozen=True)
class OrderQuality:
    """How well batches of an order are mixed: 1 is a true shuffle. Labels are None where there are none."""

    order: str
    label_ratio: float | None
    chunk_ratio: float


@dataclass(frozen=True)
class StepWait:
    """How long a training step waits for its batch."""

    way: str
    step_ms: float
    wait_ms: float

    @property
    def share(self) -> float:
        """Of the whole time, the part in which the step has nothing to do."""
        total = self.step_ms + self.wait_ms
        return self.wait_ms / total if total else 0.0


@dataclass(frozen=True)
class BenchResult:
    """All that `h5cache bench` found."""

    dataset: str
    num_samples: int
    num_measured: int
    stored_nbytes: int
    options: BenchOptions
    measurements: tuple[Measurement, ...]
    quality: tuple[OrderQuality, ...]
    steps: tuple[StepWait, ...]
    #: What the present way is, in words.
    present: str | None
    notes: tuple[str, ...]

    def find(self, way: str, cache: str = "warm") -> Measurement | None:
        """Return the measurement of a way that counts: h5cache's loader in the last order with the most threads."""
        found = [one for one in self.measurements if one.way == way and one.cache == cache]
        if way == OURS and cache == "warm":
            order = self.options.orders[-1]
            first_door = found[0].door if found else ""
            found = [one for one in found if one.order == order and one.door == first_door]
        return max(found, key=lambda one: one.threads or 0, default=None)

    def speedup(self, cache: str = "warm") -> float | None:
        ours, theirs = self.find(OURS, cache), self.find(THEIRS, cache)
        return ours.median / theirs.median if ours and theirs and theirs.median else None


def make_verdict(result: BenchResult) -> str:
    """Return the result in one line."""
    ours, theirs = result.find(OURS), result.find(THEIRS)
    if ours is None:
        return "nothing was measured"
    if theirs is None:
        mixed = "true shuffle" if ours.order == "full" else f"{ours.order} order"
        return f"h5cache delivers {ours.median:,.0f} samples/s in {mixed} ({ours.mb_per_s:,.0f} MB/s)"
    ratio = ours.median / theirs.median if theirs.median else float("inf")
    name = "your loader" if result.present and ":" in result.present else "your files"
    if ratio >= 1:
        text = f"h5cache delivers {ours.median:,.0f} samples/s, {name} {theirs.median:,.0f}: {_times(ratio)} as fast"
    else:
        text = (
            f"{name} deliver {theirs.median:,.0f} samples/s, h5cache {ours.median:,.0f}: "
            f"your present way is {_times(1 / ratio)} as fast here"
        )
    cold = result.speedup("cold")
    text += f" ({_times(cold)} cold)" if cold is not None else ""
    waits = {wait.way: wait for wait in result.steps}
    if OURS in waits and THEIRS in waits:
        text += (
            f"; a step of {waits[OURS].step_ms:g} ms waits {waits[OURS].wait_ms:.1f} ms instead of "
            f"{waits[THEIRS].wait_ms:.1f}"
        )
    return text


def to_json(result: BenchResult) -> dict[str, Any]:
    """Return the result as JSON values."""
    options = result.options
    return {
        "dataset": result.dataset,
        "num_samples": result.num_samples,
        "num_measured": result.num_measured,
        "stored_nbytes": result.stored_nbytes,
        "batch_size": options.batch_size,
        "seconds": options.seconds,
        "repetitions": options.repetitions,
        "device": options.device or "cpu",
        "against": options.against,
        "measurements": [
            {
                "way": one.way,
                "door": one.door,
                "order": one.order,
                "threads": one.threads,
                "cache": one.cache,
                "samples_per_s": {"best": one.best, "median": one.median, "all": list(one.samples_per_s)},
                "mb_per_s": one.mb_per_s,
                "cpu_s_per_1000_samples": one.cpu_s_per_1000,
            }
            for one in result.measurements
        ],
        "shuffle_quality": [
            {"order": one.order, "label_ratio": one.label_ratio, "chunk_ratio": one.chunk_ratio}
            for one in result.quality
        ],
        "steps": [
            {"way": one.way, "step_ms": one.step_ms, "wait_ms": one.wait_ms, "wait_share": one.share}
            for one in result.steps
        ],
        "speedup": result.speedup(),
        "speedup_cold": result.speedup("cold"),
        "verdict": make_verdict(result),
        "notes": list(result.notes),
    }


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 99.5 else f"{ratio:.1f}x"
