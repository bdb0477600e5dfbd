"""Look at the values of some samples: ranges, histograms, NaN, blank and damaged samples. Judges nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import ChecksumError
from h5cache.format.storage import THROUGH_HDF5
from h5cache.load.picture import as_numbers, picture_axes
from h5cache.load.plan import plan_blocks
from h5cache.load.read import SampleReader
from h5cache.schema import Field

__all__ = [
    "ChannelValues",
    "FieldValues",
    "read_whole",
    "stored_nbytes_of_samples",
    "survey_values",
    "suspects_of",
]

BINS = 64
FLOATS = ("float16", "float32", "float64", "bfloat16")
#: Values of each channel that one sample gives to the histogram; minimum, maximum and mean are of all its values.
VALUES_PER_SAMPLE = 4096
#: Decoded bytes that are held at a time.
STEP_NBYTES = 16 * 2**20
#: Channels that have a histogram each; of more, all are drawn as one.
MOST_CHANNELS = 4
CHANNEL_NAMES = {1: ("grey",), 3: ("red", "green", "blue"), 4: ("red", "green", "blue", "alpha")}
#: A sample that takes less than this share of its raw bytes may be blank (one colour: 0.3 %). So many are decoded.
BLANK_SHARE = 0.01
LEAST_SUSPECTS, MOST_SUSPECTS = 48, 2000

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
            rows, read = read_whole(reader, name, some, damaged)
            tally.add(rows, read, counted)
    return tally.finish(name, info.storage[name].layout.codes, len(samples), tuple(damaged))


def read_whole(
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


def suspects_of(stored: npt.NDArray[np.int64] | None, sample_nbytes: int) -> Samples:
    """Return the samples with the fewest stored bytes: the blank ones are among them."""
    if stored is None:
        return np.zeros(0, np.int64)
    tiny = int(np.count_nonzero(stored < sample_nbytes * BLANK_SHARE))
    count = min(MOST_SUSPECTS, max(LEAST_SUSPECTS, tiny))
    return np.argsort(stored, kind="stable")[:count].astype(np.int64)
