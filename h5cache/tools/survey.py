"""Look at some samples, and at the tables of all: value ranges, blank pictures, duplicates, shuffle quality, speed.

Collects values and judges nothing: `findings.py` does that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import ChecksumError
from h5cache.format.encode import checksum
from h5cache.format.storage import THROUGH_HDF5
from h5cache.load.dataset import H5TensorDataset
from h5cache.load.engine import default_threads
from h5cache.load.options import LoaderOptions
from h5cache.load.plan import plan_blocks
from h5cache.load.quality import ShuffleQuality, quality_by_window, shuffle_quality
from h5cache.load.read import SampleReader
from h5cache.load.show import as_numbers, picture_axes
from h5cache.schema import Field

__all__ = [
    "ChannelValues",
    "Duplicates",
    "FieldValues",
    "Rate",
    "ShuffleSurvey",
    "find_duplicates",
    "measure_rates",
    "stored_nbytes_of_samples",
    "survey_shuffle",
    "survey_values",
    "suspects_of",
    "window_nbytes",
]

BINS = 64
FLOATS = ("float16", "float32", "float64", "bfloat16")
#: Values of each channel that one sample gives to the histogram; minimum, maximum and mean are of all its values.
VALUES_PER_SAMPLE = 4096
#: Decoded bytes that are held at a time.
STEP_NBYTES = 16 * 2**20
#: Where there are no checksums of single samples, so many decoded bytes are read to find duplicates.
DUPLICATE_NBYTES = 256 * 2**20
#: Batches of the shuffle survey, where the dataset is large enough for several.
BATCH_SIZE = 256
#: Channels that have a histogram each; of more, all are drawn as one.
MOST_CHANNELS = 4
CHANNEL_NAMES = {1: ("grey",), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
#: Seconds that one combination of order and threads is measured.
RATE_SECONDS = 0.7

Samples = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ChannelValues:
    """Finite values of one channel; `counts` are bins along `FieldValues.axis`."""

    name: str
    low: float
    high: float
    mean: float
    std: float
    counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FieldValues:
    """Values of a field, from the samples looked at. Sample numbers are those of the dataset."""

    name: str
    dtype: str
    exact_codes: bool
    is_picture: bool
    num_looked_at: int
    channels: tuple[ChannelValues, ...]
    #: Where the histograms begin and end: all of 0 to 255 for 8-bit pictures, else least to largest value.
    axis: tuple[float, float]
    num_nan: int = 0
    num_inf: int = 0
    #: Samples with NaN or infinity, samples of one value only (not zero), samples of zeros, samples that do not decode.
    not_finite: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    zeros: tuple[int, ...] = ()
    damaged: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of samples whose field is the same byte for byte, largest group first."""

    field: str
    num_looked_at: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def num_surplus(self) -> int:
        return sum(len(group) - 1 for group in self.groups)


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


def survey_values(reader: SampleReader, name: str, samples: Samples, suspects: Samples, seed: int = 0) -> FieldValues:
    """Look at `samples` of a field; at `suspects` too, but only for whether they are blank or broken."""
    info, field = reader.info, reader.info.schema[name]
    drawn = np.random.default_rng(seed)
    tally = _Tally(field, drawn)
    damaged: list[tuple[int, str]] = []
    step = max(1, STEP_NBYTES // max(1, field.sample_nbytes))
    extra = np.setdiff1d(suspects, samples)
    for chosen, counted in ((samples, True), (extra, False)):
        for start in range(0, len(chosen), step):
            some = chosen[start : start + step]
            rows, read = _read_whole(reader, name, some, damaged)
            tally.add(rows, read, counted)
    return tally.finish(name, info.storage[name].layout.codes, len(samples), tuple(damaged))


def _read_whole(
    reader: SampleReader, name: str, samples: Samples, damaged: list[tuple[int, str]]
) -> tuple[Array, Samples]:
    """Read samples, leaving out those that are damaged."""
    field = reader.info.schema[name]
    rows = np.empty((len(samples), *field.shape), field.stored_dtype)
    try:
        reader.read(name, samples, rows)
        return rows, samples
    except ChecksumError:
        pass
    whole = np.zeros(len(samples), bool)
    for place, sample in enumerate(samples.tolist()):
        try:
            reader.read(name, samples[place : place + 1], rows[place : place + 1])
            whole[place] = True
        except ChecksumError as exc:
            damaged.append((sample, str(exc)))
    return rows[whole], samples[whole]


class _Tally:
    """Sums over samples that come a few at a time."""

    def __init__(self, field: Field, drawn: np.random.Generator) -> None:
        self._field = field
        self._drawn = drawn
        separate = field.layout is not None and field.channels <= MOST_CHANNELS
        self._channels = field.channels if separate else 1
        self._low = np.full(self._channels, np.inf)
        self._high = np.full(self._channels, -np.inf)
        self._sum = np.zeros(self._channels)
        self._squares = np.zeros(self._channels)
        self._count = np.zeros(self._channels, np.int64)
        self._some: list[list[Array]] = [[] for _ in range(self._channels)]
        self._nan = self._inf = 0
        self._not_finite: list[int] = []
        self._constant: list[int] = []
        self._zeros: list[int] = []

    def add(self, rows: Array, samples: Samples, counted: bool) -> None:
        if not len(rows):
            return
        values = self._by_channel(as_numbers(rows, self._field))
        finite = np.isfinite(values) if values.dtype.kind == "f" else None
        if finite is not None and not finite.all():
            self._not_finite += samples[~finite.all(axis=(0, 2))].tolist()
            if counted:
                self._nan += int(np.isnan(values).sum())
                self._inf += int(np.isinf(values).sum())
        if self._field.shape:
            self._note_blank(values, samples)
        if counted:
            for channel in range(self._channels):
                self._add_channel(channel, values[channel], None if finite is None else finite[channel])

    def _by_channel(self, values: Array) -> Array:
        """Return (channels, samples, values)."""
        axis = self._field.channel_axis
        if self._channels > 1 and axis is not None:
            values = np.moveaxis(values, 1 if axis == 0 else -1, 0)
            return values.reshape(self._channels, values.shape[1], -1)
        return values.reshape(1, len(values), -1)

    def _note_blank(self, values: Array, samples: Samples) -> None:
        if values.shape[2] < 2:
            return
        # Each channel of one value: a single colour is as blank as a single grey.
        blank = (values == values[:, :, :1]).all(axis=(0, 2))
        zeros = blank & (values[:, :, 0] == 0).all(axis=0)
        self._zeros += samples[zeros].tolist()
        self._constant += samples[blank & ~zeros].tolist()

    def _add_channel(self, channel: int, values: Array, finite: Array | None) -> None:
        known = values.reshape(-1) if finite is None else values[finite]
        if not known.size:
            return
        # float64 sums without a float64 copy; squares of what is left after the first sample's mean would be better
        # still, but display needs three digits.
        self._low[channel] = min(self._low[channel], float(known.min()))
        self._high[channel] = max(self._high[channel], float(known.max()))
        self._sum[channel] += float(known.sum(dtype=np.float64))
        self._squares[channel] += float(np.einsum("i,i->", known, known, dtype=np.float64))
        self._count[channel] += known.size
        most = VALUES_PER_SAMPLE * values.shape[0]
        if known.size > most:
            known = known[self._drawn.integers(0, known.size, most)]
        self._some[channel].append(known.astype(np.float64))

    def _smooth(self, values: Array) -> Array:
        """Spread the levels of a float field that has few (a normalised picture), each to half way to the next.

        Bins that happen to hold four levels would else stand beside bins of five: a comb that is not in the data.
        """
        if self._field.dtype not in FLOATS:
            return values
        levels = np.unique(values)
        if not 2 < len(levels) <= 256:
            return values
        gap = float(np.median(np.diff(levels)))
        spread = values + self._drawn.uniform(-gap / 2, gap / 2, len(values))
        return np.clip(spread, levels[0], levels[-1])

    def finish(
        self, name: str, exact_codes: bool, num_looked_at: int, damaged: tuple[tuple[int, str], ...]
    ) -> FieldValues:
        known = self._count > 0
        low = float(self._low[known].min()) if known.any() else 0.0
        high = float(self._high[known].max()) if known.any() else 0.0
        if self._field.dtype == "uint8" and picture_axes(self._field) is not None:
            low, high = 0.0, 255.0
        names = CHANNEL_NAMES.get(self._channels, ()) if self._field.layout is not None else ()
        if self._channels == 1 and self._field.channels != 1:
            names = ("all channels",)
        channels = []
        for channel in range(self._channels):
            if not known[channel]:
                continue
            mean = float(self._sum[channel] / self._count[channel])
            variance = float(self._squares[channel] / self._count[channel]) - mean**2
            channels.append(
                ChannelValues(
                    name=names[channel] if names else "values" if self._channels == 1 else f"channel {channel}",
                    low=float(self._low[channel]),
                    high=float(self._high[channel]),
                    mean=mean,
                    std=math.sqrt(max(0.0, variance)),
                    counts=_histogram(self._smooth(np.concatenate(self._some[channel])), low, high, self._field),
                )
            )
        return FieldValues(
            name=name,
            dtype=self._field.dtype,
            exact_codes=exact_codes,
            is_picture=picture_axes(self._field) is not None,
            num_looked_at=num_looked_at,
            channels=tuple(channels),
            axis=(low, high),
            num_nan=self._nan,
            num_inf=self._inf,
            not_finite=tuple(sorted(set(self._not_finite))),
            constant=tuple(sorted(set(self._constant))),
            zeros=tuple(sorted(set(self._zeros))),
            damaged=damaged,
        )


def _histogram(values: Array, low: float, high: float, field: Field) -> tuple[int, ...]:
    bins = BINS if values.size > 10_000 else max(8, min(BINS, round(2 * float(np.cbrt(values.size)))))
    if field.dtype not in FLOATS:
        # Whole numbers: as many of them in each bin, so that no bin sticks out by having one more.
        low, high = low - 0.5, high + 0.5
        levels = round(high - low)
        bins = levels if levels <= BINS else BINS
        if levels > BINS and levels % BINS:
            high = low + BINS * math.ceil(levels / BINS)
    elif high <= low:
        low, high = low - 0.5, low + 0.5
    return tuple(np.histogram(values, bins=bins, range=(low, high))[0].tolist())


def stored_nbytes_of_samples(reader: SampleReader, name: str) -> npt.NDArray[np.int64] | None:
    """Return the stored bytes of every sample; None where samples share blocks or tables do not hold any more.

    What compresses to next to nothing is often blank, what hardly compresses often noise.
    """
    storage = reader.info.storage[name]
    changed = bool((storage.chunk_offsets == THROUGH_HDF5).any())
    if storage.layout.block_samples != 1 or storage.layout.is_raw or changed or name in reader.info.resident:
        return None
    return plan_blocks(storage, reader.info.starts, np.arange(reader.info.num_samples)).nbytes


def find_duplicates(reader: SampleReader, name: str) -> Duplicates:
    """Find samples whose field is the same byte for byte.

    By the checksums of all, where each sample has its own; else by reading as many samples as `DUPLICATE_NBYTES`
    allows. Zeros are not counted: they are blank.
    """
    info = reader.info
    storage = info.storage[name]
    has_sums = len(storage.block_checksums) > 0 and storage.layout.block_samples == 1 and name not in info.resident
    if has_sums and not bool((storage.chunk_offsets == THROUGH_HDF5).any()):
        plan = plan_blocks(storage, info.starts, np.arange(info.num_samples))
        known = np.flatnonzero(plan.nbytes > 0)
        return Duplicates(name, info.num_samples, _groups(known, storage.block_checksums[plan.blocks[known]]))
    field = info.schema[name]
    count = min(info.num_samples, max(1, DUPLICATE_NBYTES // max(1, field.sample_nbytes)))
    step = max(1, STEP_NBYTES // max(1, field.sample_nbytes))
    sums = np.zeros(count, np.uint64)
    known = np.zeros(count, bool)
    for start in range(0, count, step):
        rows, read = _read_whole(reader, name, np.arange(start, min(count, start + step)), [])
        known[read] = rows.reshape(len(rows), -1).any(axis=1)
        sums[read] = [checksum(np.ascontiguousarray(row).reshape(-1).view(np.uint8)) for row in rows]
    chosen = np.flatnonzero(known)
    return Duplicates(name, count, _groups(chosen, sums[chosen]))


def _groups(samples: Samples, sums: npt.NDArray[np.uint64]) -> tuple[tuple[int, ...], ...]:
    order = np.argsort(sums, kind="stable")
    bounds = np.flatnonzero(np.diff(sums[order])) + 1
    groups = [group for group in np.split(samples[order], bounds) if len(group) > 1]
    return tuple(tuple(sorted(group.tolist())) for group in sorted(groups, key=lambda one: (-len(one), one.min())))


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
    windows = sorted({2**power for power in range(10) if 2**power < largest} | {min(order.window, largest)})
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


def suspects_of(stored: Sequence[int] | npt.NDArray[np.int64] | None, count: int = 48) -> Samples:
    """Return the samples with the fewest stored bytes: the blank ones are among them."""
    if stored is None:
        return np.zeros(0, np.int64)
    return np.argsort(np.asarray(stored), kind="stable")[:count].astype(np.int64)
