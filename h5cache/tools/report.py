"""All that the report tells of a dataset, as one value. `report_page.py` turns it into the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import ChecksumError
from h5cache.format.open import open_dataset, read_dataset_index
from h5cache.load.dataset import H5TensorDataset
from h5cache.load.picture import Span, display_span
from h5cache.load.read import SampleReader
from h5cache.load.show import Shown, Tile, find_label_field, find_picture_field, make_tiles, read_rows
from h5cache.schema import Field
from h5cache.tools.duplicates import find_duplicates
from h5cache.tools.findings import Finding, find_problems
from h5cache.tools.inspect import ClassFacts, Inspection, inspect_dataset
from h5cache.tools.mixing import Rate, ShuffleSurvey, load_per_core, measure_rates, survey_shuffle
from h5cache.tools.survey import FieldValues, stored_nbytes_of_samples, survey_values, suspects_of

__all__ = ["ClassPictures", "Report", "collect_report", "num_steps"]

#: Samples whose values are looked at: enough for two digits of mean and deviation.
DEFAULT_SAMPLES = 512
#: Classes with a row of pictures; of more, the largest.
SHOWN_CLASSES = 24
#: Pictures in a row: fills a page, and wraps to two rows of four on a telephone.
ROW = 8
#: Pictures of a dataset without classes.
UNLABELLED = 32
#: Pictures that fix the range of values which all are shown with.
SPAN_SAMPLES = 32
#: Scalars are so small that all are looked at, up to this many.
MOST_SCALARS = 1_000_000

Samples = npt.NDArray[np.int64]
Advance = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class ClassPictures:
    """A row of pictures; `name` is empty for a dataset without classes."""

    name: str
    count: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, eq=False)
class Report:
    """What the page shows."""

    inspection: Inspection
    picture_field: str | None
    rows: tuple[ClassPictures, ...]
    #: Those that take fewest and most bytes, with their sizes: what compresses least and most is often odd.
    simplest: tuple[tuple[Tile, int], ...]
    busiest: tuple[tuple[Tile, int], ...]
    values: tuple[FieldValues, ...]
    shuffle: ShuffleSurvey | None
    rates: tuple[Rate, ...]
    findings: tuple[tuple[Finding, tuple[Tile, ...]], ...]
    #: How busy the machine was before rates were measured; above 1 others were waiting for it too.
    load_per_core: float = 0.0


def num_steps(bench: bool) -> int:
    """Return how often `advance` is called, for a progress bar."""
    return 8 if bench else 5


def collect_report(
    path: str | os.PathLike[str],
    fields: Sequence[str] | None = None,
    *,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    bench: bool = False,
    advance: Advance = lambda _: None,
) -> Report:
    """Look at a dataset. `samples` of it are decoded for value ranges, a few more for pictures; `bench` takes seconds.

    A damaged sample is told of rather than raised.
    """
    inspection = inspect_dataset(path, fields)
    advance(1)
    info = open_dataset(path, fields)
    names = tuple(field.name for field in inspection.fields)
    schema = {name: info.schema[name] for name in names}
    reader = SampleReader(info)
    try:
        shown = Shown(reader, names)
        draw = _Drawing(shown, find_picture_field(schema))
        stored = None if draw.field is None else stored_nbytes_of_samples(reader, draw.field)
        values = _survey(shown, samples, seed, stored, draw)
        advance(1)
        main = draw.field or _largest_field(schema)
        duplicates = find_duplicates(reader, main) if main is not None and info.num_samples else None
        advance(1)
        classes = inspection.classes if draw.labels is not None else ()
        shuffle = survey_shuffle(reader, draw.labels if classes else None)
        findings = find_problems(inspection, values, duplicates, shuffle, draw.labels, draw.keys)
        advance(1)
        report = Report(
            inspection=inspection,
            picture_field=draw.field,
            rows=_rows(draw, classes, seed),
            simplest=_extremes(draw, stored, False),
            busiest=_extremes(draw, stored, True),
            values=values,
            shuffle=shuffle,
            rates=(),
            findings=tuple((one, draw.tiles(np.array(one.samples, np.int64))) for one in findings),
        )
        advance(1)
    finally:
        reader.close()
    if not bench or not info.num_samples:
        return report
    with H5TensorDataset(path, fields) as ds:
        return replace(report, load_per_core=load_per_core(), rates=measure_rates(ds, advance))


class _Drawing:
    """Makes pictures of samples; without a picture field it makes none."""

    def __init__(self, shown: Shown, field: str | None) -> None:
        self._shown = shown
        self.field = field
        self.labels = shown.labels()
        self.keys: npt.NDArray[Any] | None = None
        if not shown.info.is_foreign:
            self.keys = read_dataset_index(shown.info)["key"]
        self._span = self._find_span()

    @property
    def num_samples(self) -> int:
        return self._shown.num_samples

    def tiles(self, samples: Samples) -> tuple[Tile, ...]:
        """Return pictures of the samples that can be read."""
        if self.field is None or not len(samples):
            return ()
        try:
            return tuple(self._make(samples))
        except ChecksumError:
            pass
        found = []
        for place in range(len(samples)):
            try:
                found += self._make(samples[place : place + 1])
            except ChecksumError:
                continue  # told of among the findings
        return tuple(found)

    def _make(self, samples: Samples) -> list[Tile]:
        keys = None if self.keys is None else self.keys[samples]
        labels = None if self.labels is None else self.labels[samples]
        return make_tiles(self._shown, self.field or "", samples, keys, labels, self._span)

    def _find_span(self) -> Span | None:
        """Return one range of values for all pictures of the page; None where that is 0 to 255, or nothing is whole."""
        if self.field is None or not self.num_samples:
            return None
        field = self._shown.info.schema[self.field]
        if field.dtype in ("uint8", "bool"):
            return None
        some = np.unique(np.linspace(0, self.num_samples - 1, SPAN_SAMPLES).astype(np.int64))
        try:
            return display_span(read_rows(self._shown, self.field, some), field)
        except ChecksumError:
            return None


def _largest_field(schema: Mapping[str, Field]) -> str | None:
    """Return the field that tells samples apart where there are no pictures."""
    sizes = {name: field.sample_nbytes for name, field in schema.items() if field.shape}
    return max(sizes, key=lambda name: sizes[name]) if sizes else None


def _survey(
    shown: Shown, samples: int, seed: int, stored: npt.NDArray[np.int64] | None, draw: _Drawing
) -> tuple[FieldValues, ...]:
    total = shown.num_samples
    label = find_label_field(shown.info.schema)
    found = []
    for name in shown.fields:
        if name == label or not total:
            continue
        count = min(total, samples if shown.info.schema[name].shape else MOST_SCALARS)
        chosen = np.sort(np.random.default_rng(seed).choice(total, count, replace=False)).astype(np.int64)
        suspects = suspects_of(stored if name == draw.field else None, shown.info.schema[name].sample_nbytes)
        found.append(survey_values(shown.reader, name, chosen, suspects, seed))
    return tuple(found)


def _rows(draw: _Drawing, classes: Sequence[ClassFacts], seed: int) -> tuple[ClassPictures, ...]:
    if draw.field is None or not draw.num_samples:
        return ()
    rng = np.random.default_rng(seed)
    if not classes or draw.labels is None:
        count = min(UNLABELLED, draw.num_samples)
        chosen = np.sort(rng.choice(draw.num_samples, count, replace=False)).astype(np.int64)
        return (ClassPictures("", draw.num_samples, draw.tiles(chosen)),)
    largest = sorted((one for one in classes if one.count), key=lambda one: -one.count)[:SHOWN_CLASSES]
    rows = []
    for one in sorted(largest, key=lambda each: each.label):
        members = np.flatnonzero(draw.labels == one.label)
        chosen = np.sort(rng.choice(members, min(ROW, len(members)), replace=False))
        rows.append(ClassPictures(one.name or f"label {one.label}", one.count, draw.tiles(chosen)))
    return tuple(rows)


def _extremes(draw: _Drawing, stored: npt.NDArray[np.int64] | None, most: bool) -> tuple[tuple[Tile, int], ...]:
    if stored is None or draw.num_samples < 4 * ROW:
        return ()
    order = np.argsort(-stored if most else stored, kind="stable")[:ROW].astype(np.int64)
    return tuple((tile, int(stored[tile.sample])) for tile in draw.tiles(order))
