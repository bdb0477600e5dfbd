"""A dataset to look at: pictures scaled for the eye, a grid with labels, what notebooks show of datasets and loaders.

Reads few samples. Nothing here needs matplotlib: OpenCV encodes the pictures, HTML lays them out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import H5CacheError
from h5cache.format.open import read_dataset_index
from h5cache.format.storage import DatasetInfo
from h5cache.load.order import Order
from h5cache.load.read import SampleReader
from h5cache.load.recipe import BatchRecipe
from h5cache.load.stats import LoaderStats
from h5cache.markup import Bar, Series, bars, data_uri, escape, figure, histogram_chart, in_notebook, table
from h5cache.schema import Field
from h5cache.terminal import describe_error, format_count, format_nbytes, format_ratio

__all__ = [
    "Preview",
    "Shown",
    "Tile",
    "as_numbers",
    "class_bars",
    "dataset_html",
    "display_span",
    "find_label_field",
    "find_picture_field",
    "loader_html",
    "make_preview",
    "make_tiles",
    "picture_axes",
    "read_rows",
    "to_display",
]

#: Longest side of a picture in a grid: twice what is shown, for screens of high density.
THUMB_SIDE = 160
#: Pictures up to this side are shown pixel by pixel.
PIXEL_SIDE = 64
#: Photographs in a page: no visible loss at this size, a third of the bytes of PNG.
JPEG_QUALITY = 85
#: A sample of two dimensions is taken for a grey picture from this side up, and to this ratio of its sides.
GREY_SIDE, GREY_ASPECT = 8, 4
#: Classes that have a bar each; more are drawn as one curve.
SHOWN_CLASSES = 20
#: Pictures in the strip of a notebook's output.
STRIP = 10

Samples = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]
#: Of each channel, the value that is black and the value that is full bright.
Span = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Shown:
    """What is looked at: some samples of a dataset, by their numbers in it (`selected` None: all)."""

    reader: SampleReader
    fields: tuple[str, ...]
    selected: Samples | None = None

    @property
    def info(self) -> DatasetInfo:
        return self.reader.info

    @property
    def num_samples(self) -> int:
        return self.info.num_samples if self.selected is None else len(self.selected)

    def numbers(self, places: Samples) -> Samples:
        """Return the numbers in the dataset of samples that are counted in the view."""
        return places if self.selected is None else self.selected[places]

    def labels(self) -> npt.NDArray[Any] | None:
        """Return the label of every sample shown; None where there are none."""
        name = find_label_field(self.info.schema)
        if name is None:
            return None
        resident = self.info.resident.get(name)
        if resident is not None:
            return resident if self.selected is None else resident[self.selected]
        labels = np.empty(self.num_samples, self.info.schema[name].stored_dtype)
        self.reader.read(name, self.numbers(np.arange(self.num_samples)), labels)
        return labels


@dataclass(frozen=True, eq=False)
class Tile:
    """One picture for the eye: uint8, (height, width, 1 or 3), RGB, and its words."""

    sample: int
    pixels: Pixels
    caption: str
    #: Said of the picture where it cannot be seen, and when one points at it.
    alt: str

    def to_html(self, tag: str = "li", caption: bool = True) -> str:
        height, width = self.pixels.shape[:2]
        small = max(height, width) <= PIXEL_SIDE
        kind = "png" if small else "jpeg"
        source = data_uri(encode_picture(self.pixels, kind), kind)
        words = f"<span>{escape(self.caption)}</span>" if caption else ""
        pixels = ' class="h5c-pixels"' if small else ""
        return (
            f'<{tag} class="h5c-tile"><img{pixels} src="{source}" width="{width}" height="{height}" '
            f'alt="{escape(self.alt)}" title="{escape(self.alt)}">{words}</{tag}>'
        )


@dataclass(frozen=True, eq=False)
class Preview:
    """A grid of pictures with their labels. Notebooks show it; `save` writes it as a picture or a page."""

    tiles: tuple[Tile, ...]
    columns: int
    title: str = ""

    def _repr_html_(self) -> str:
        width = min(self.columns * 128, 1100)
        items = "".join(tile.to_html() for tile in self.tiles)
        return in_notebook(
            f'<p class="h5c-muted">{escape(self.title)}</p>'
            f'<ul class="h5c-grid" style="grid-template-columns:repeat({self.columns},minmax(0,1fr));'
            f'max-width:{width}px">{items}</ul>'
        )

    def __repr__(self) -> str:
        return f"Preview({len(self.tiles)} pictures in {self.columns} columns; .save(path) writes them)"

    def to_array(self) -> Pixels:
        """Return the grid as one RGB picture, (height, width, 3) uint8, with captions drawn."""
        import cv2

        gap, words = 8, 18
        side_y = max(tile.pixels.shape[0] for tile in self.tiles)
        side_x = max(tile.pixels.shape[1] for tile in self.tiles)
        scale = max(1, math.ceil(96 / max(side_x, side_y)))
        side_y, side_x = side_y * scale, side_x * scale
        rows = math.ceil(len(self.tiles) / self.columns)
        page = np.full(
            (rows * (side_y + words + gap) + gap, self.columns * (side_x + gap) + gap, 3), 255, dtype=np.uint8
        )
        for place, tile in enumerate(self.tiles):
            y = gap + place // self.columns * (side_y + words + gap)
            x = gap + place % self.columns * (side_x + gap)
            pixels = np.broadcast_to(tile.pixels, (*tile.pixels.shape[:2], 3)).repeat(scale, 0).repeat(scale, 1)
            page[y : y + pixels.shape[0], x : x + pixels.shape[1]] = pixels
            # OpenCV's letters are ASCII; what it lacks would come out as a row of question marks.
            text = tile.caption.encode("ascii", "replace").decode()[: max(4, side_x // 7)]
            where = (x, y + side_y + 13)
            cv2.putText(page, text, where, cv2.FONT_HERSHEY_SIMPLEX, 0.4, (70, 70, 70), 1, cv2.LINE_AA)
        return page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the grid: `.png` or `.jpg` as a picture, `.html` as a page that needs nothing else."""
        name = os.fspath(path)
        kind = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".html": "html"}.get(os.path.splitext(name)[1].lower())
        if kind is None:
            raise ValueError(f"cannot tell a kind of picture from the name {name!r}; end it in .png, .jpg or .html")
        if kind == "html":
            page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>h5cache</title>{self._repr_html_()}'
            data = page.encode()
        else:
            data = encode_picture(self.to_array(), kind)
        partial = name + ".partial"
        with open(partial, "wb") as stream:
            stream.write(data)
        os.replace(partial, name)


def find_label_field(schema: Mapping[str, Field]) -> str | None:
    """Return the field of class numbers: `label`, or else the only scalar field of whole numbers."""
    whole = [name for name, field in schema.items() if not field.shape and "int" in field.dtype]
    return "label" if "label" in whole else whole[0] if len(whole) == 1 else None


def find_picture_field(schema: Mapping[str, Field]) -> str | None:
    """Return the first field that can be looked at."""
    return next((name for name, field in schema.items() if picture_axes(field) is not None), None)


def picture_axes(field: Field) -> str | None:
    """Return how a sample is a picture: "CHW", "HWC", "HW" (two dimensions, grey), or None.

    >>> picture_axes(Field("uint8", (28, 28))), picture_axes(Field("float32", (512,)))
    ('HW', None)
    """
    if field.layout is not None:
        return field.layout
    if len(field.shape) == 2:
        short, long = sorted(field.shape)
        return "HW" if short >= GREY_SIDE and long <= GREY_ASPECT * short else None
    return None


def as_numbers(rows: Array, field: Field) -> Array:
    """Return stored values as numbers one can reckon with: bfloat16 bits become float32, truth values 0 and 1."""
    if field.dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.uint8) if field.dtype == "bool" else rows


def to_display(rows: Array, field: Field, span: Span | None = None) -> list[Pixels]:
    """Return samples as pictures for the eye: uint8, (height, width, 1 or 3). NaN is shown black.

    8-bit pixels stay as they are; others are stretched over `span`, by default the `display_span` of these samples.
    """
    values = _channels_last(rows, field)
    if values.dtype != np.uint8:
        low, high = display_span(rows, field) if span is None else span
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values.astype(np.float32) - low) * np.where(high > low, 255 / np.maximum(high - low, 1e-30), 0)
        values = np.clip(np.nan_to_num(scaled, nan=0, posinf=255, neginf=0), 0, 255).round().astype(np.uint8)
    elif field.dtype == "bool":
        values = values * np.uint8(255)
    return [np.ascontiguousarray(one) for one in values]


def display_span(rows: Array, field: Field) -> Span:
    """Return which values of each channel are black and full bright.

    Floats of 0..1 are taken for what they are. Anything else spans its least to its largest value but for 0.1 % at
    either end, each channel by itself: for normalised pictures that undoes the normalisation.
    """
    values = _channels_last(rows, field).astype(np.float32)
    low, high = np.zeros(values.shape[-1], np.float32), np.ones(values.shape[-1], np.float32)
    spans = []
    for channel in range(values.shape[-1]):
        known = values[..., channel]
        known = known[np.isfinite(known)]
        spans.append(
            np.percentile(known[:: max(1, known.size // 200_000)], (0, 0.1, 99.9, 100)) if known.size else None
        )
    floats = field.dtype in ("float16", "float32", "float64", "bfloat16")
    if floats and all(span is None or (span[0] >= 0 and span[3] <= 1) for span in spans):
        return low, high
    for channel, span in enumerate(spans):
        if span is not None:
            low[channel], high[channel] = span[1:3]
    return low, high


def _channels_last(rows: Array, field: Field) -> Array:
    """Return (samples, height, width, 1 or 3) numbers; of four channels the first three."""
    axes, values = picture_axes(field), as_numbers(rows, field)
    if axes == "CHW":
        values = values.transpose(0, 2, 3, 1)
    elif axes == "HW":
        values = values[..., np.newaxis]
    return values[..., :3] if values.shape[-1] >= 3 else values[..., :1]


def shrink(pixels: Pixels, side: int = THUMB_SIDE) -> Pixels:
    """Return a picture whose longest side is at most `side`; a smaller one as it is."""
    import cv2

    height, width, channels = pixels.shape
    if max(height, width) <= side:
        return pixels
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8).reshape(
        size[1], size[0], channels
    )


def encode_picture(pixels: Pixels, kind: str) -> bytes:
    """Return a picture (RGB or grey) as the bytes of a PNG or JPEG file."""
    import cv2

    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY] if kind == "jpeg" else []
    coded, data = cv2.imencode(f".{kind}", pixels[..., ::-1] if pixels.shape[-1] == 3 else pixels, options)
    if not coded:
        raise ValueError(f"OpenCV could not encode a picture of {pixels.shape} as {kind}")
    return bytes(data)


def read_rows(shown: Shown, name: str, samples: Samples) -> Array:
    """Return samples (numbers in the dataset) as they are stored."""
    field = shown.info.schema[name]
    rows = np.empty((len(samples), *field.shape), field.stored_dtype)
    shown.reader.read(name, np.asarray(samples, np.int64), rows)
    return rows


def make_tiles(
    shown: Shown,
    name: str,
    samples: Samples,
    keys: Array | None = None,
    labels: Array | None = None,
    span: Span | None = None,
) -> list[Tile]:
    """Read samples (numbers in the dataset) and return them for the eye. `keys` and `labels`: of these samples."""
    field = shown.info.schema[name]
    rows = read_rows(shown, name, samples)
    if _is_bgr(shown.info) and field.channels == 3:
        rows = np.flip(rows, field.channel_axis if field.layout == "HWC" else 1)
    tiles = []
    for place, (sample, pixels) in enumerate(zip(samples.tolist(), to_display(rows, field, span), strict=True)):
        label = None if labels is None else label_words(int(labels[place]), shown.info.classes)
        key = "" if keys is None else str(keys[place])
        caption = label or os.path.basename(key) or f"sample {sample:,}"
        alt = ", ".join(part for part in (label, key, f"sample {sample:,}") if part)
        tiles.append(Tile(sample, shrink(pixels), caption, alt))
    return tiles


def _is_bgr(info: DatasetInfo) -> bool:
    source = info.provenance.get("source")
    pictures = source.get("pictures") if isinstance(source, Mapping) else None
    return isinstance(pictures, Mapping) and str(pictures.get("color")).lower() == "bgr"


def label_words(label: int, classes: Sequence[str]) -> str:
    return classes[label] if 0 <= label < len(classes) else f"label {label}"


def make_preview(shown: Shown, n: int, columns: int | None, seed: int | None, field: str | None) -> Preview:
    """Return a grid of `n` samples drawn by `seed` (None: the first ones)."""
    schema = shown.info.schema
    name = find_picture_field({each: schema[each] for each in shown.fields}) if field is None else field
    if name is None or name not in schema or picture_axes(schema[name]) is None:
        what = "no field has pictures" if field is None else f"field {field!r} has no pictures"
        raise ValueError(f"{what}; the fields are {', '.join(f'{k} {list(v.shape)}' for k, v in schema.items())}")
    if n < 1 or (columns is not None and columns < 1):
        raise ValueError(f"n and columns must be at least 1, got n={n}, columns={columns}")
    count = min(n, shown.num_samples)
    if count == 0:
        raise ValueError("the dataset has no samples to show")
    places = _choose(shown.num_samples, count, seed)
    labels = shown.labels()
    samples = shown.numbers(places)
    tiles = make_tiles(shown, name, samples, _keys(shown, samples), None if labels is None else labels[places])
    of = "" if count == shown.num_samples else f" of {shown.num_samples:,}"
    title = f"{os.path.basename(shown.info.path)}: {name}, {count:,}{of} samples"
    return Preview(tuple(tiles), columns or min(8, count), title)


def _choose(total: int, count: int, seed: int | None) -> Samples:
    if seed is None or count == total:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(total, count, replace=False))


def _keys(shown: Shown, samples: Samples) -> Array | None:
    return None if shown.info.is_foreign else read_dataset_index(shown.info)["key"][samples]


def class_bars(counts: Sequence[tuple[str, int]], shown: int = SHOWN_CLASSES) -> str:
    """Return the histogram of classes: a bar each, or, of many, the largest and a curve of all."""
    if len(counts) <= shown:
        return bars([Bar(name, count, f"{count:,}") for name, count in counts])
    ranked = sorted(counts, key=lambda one: -one[1])
    top = ranked[: shown // 2]
    rest = sum(count for _, count in ranked[len(top) :])
    most = ranked[0][1]
    listed = bars([Bar(name, count, f"{count:,}") for name, count in top], most)
    note = f"and {len(ranked) - len(top):,} smaller ones with {rest:,} samples"
    chart = histogram_chart(
        [Series("samples", _thin([count for _, count in ranked]))],
        [
            (0, f"largest: {most:,}"),
            (0.5, f"middle: {ranked[len(ranked) // 2][1]:,}"),
            (1, f"least: {ranked[-1][1]:,}"),
        ],
        f"Samples of each of {len(ranked):,} classes, largest first",
        cut_spikes=False,
    )
    return f'{listed}<p class="h5c-muted">{note}</p>' + figure(chart, f"all {len(ranked):,} classes, largest first")


def _thin(values: Sequence[int], most: int = 200) -> list[float]:
    """Return at most `most` values, each the mean of its neighbours: more columns than pixels draw nothing."""
    parts = np.array_split(np.asarray(values, np.float64), min(most, len(values)))
    return [float(part.mean()) for part in parts]


def dataset_html(shown: Shown) -> str:
    """Return what a notebook shows of a dataset: fields, sizes, ratio, a strip of pictures, classes."""
    info = shown.info
    raw = sum(field.sample_nbytes for field in info.schema.values()) * info.num_samples
    disk = sum({file.path: file.identity.nbytes for file in (*info.shards, info.index_file) if file}.values())
    words = [f"{shown.num_samples:,} of {info.num_samples:,} samples"] if shown.selected is not None else []
    words = words or [format_count(info.num_samples, "sample")]
    words.append(f"{format_nbytes(disk)} on disk")
    if info.num_samples and disk and raw >= disk:
        words.append(f"{format_ratio(raw / disk)} smaller than the tensors ({format_nbytes(raw)})")
    if len(info.shards) > 1:
        words.append(f"{len(info.shards):,} shards")
    if info.is_foreign:
        words.append("an HDF5 file that h5cache did not write: read through libhdf5")
    rows = []
    for name in shown.fields:
        storage = info.storage[name]
        field, layout = storage.layout.field, storage.layout
        raw_nbytes = info.num_samples * field.sample_nbytes
        ratio = format_ratio(raw_nbytes / storage.stored_nbytes) if storage.stored_nbytes else "-"
        how = "through libhdf5" if info.is_foreign else layout.codec.name
        how = f"exact 8-bit codes, {how}" if layout.codes else how
        rows.append((name, field.dtype, shape_words(field), format_nbytes(storage.stored_nbytes), ratio, how))
    parts = [
        f"<h4>{escape(os.path.basename(info.path))}</h4>",
        f'<p class="h5c-muted">{escape(" · ".join(words))}</p>',
        table(("field", "dtype", "shape", "stored", "ratio", "stored as"), rows, numeric=(3, 4)),
    ]
    try:
        parts += [_strip_html(shown), _classes_html(shown)]
    except (H5CacheError, OSError) as exc:  # a notebook must still say what the object is
        parts.append(f'<p class="h5c-muted">its samples cannot be read: {escape(describe_error(exc))}</p>')
    return in_notebook("".join(parts))


def shape_words(field: Field) -> str:
    """Return "3x224x224 CHW", "scalar"."""
    words = "x".join(map(str, field.shape)) or "scalar"
    return f"{words} {field.layout}" if field.layout else words


def _strip_html(shown: Shown) -> str:
    schema = shown.info.schema
    if not shown.num_samples or find_picture_field({name: schema[name] for name in shown.fields}) is None:
        return ""
    preview = make_preview(shown, STRIP, None, 0, None)
    return f'<ul class="h5c-strip">{"".join(tile.to_html() for tile in preview.tiles)}</ul>'


def _classes_html(shown: Shown) -> str:
    labels, classes = shown.labels(), shown.info.classes
    if labels is None or not len(labels):
        return ""
    values, counts = np.unique(labels, return_counts=True)
    if not classes and len(values) > max(1, len(labels) // 2):
        return ""  # numbers, not classes
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    numbers = [*range(len(classes)), *(value for value in found if not 0 <= value < len(classes))]
    named = [(label_words(number, classes), found.get(number, 0)) for number in numbers]
    return f'<p class="h5c-muted">{format_count(len(named), "class", "classes")}</p>{class_bars(named)}'


def loader_html(path: str, order: Order, recipe: BatchRecipe, num_batches: int, stats: LoaderStats) -> str:
    """Return what a notebook shows of a loader: batches, what is delivered, the order, and how the last epoch went."""
    shuffles: dict[Any, str] = {
        False: "in the order stored",
        "full": f"full shuffle, seed {order.seed}",
        "chunk": f"chunk shuffle in {order.lanes} lanes, windows of {format_count(order.window, 'chunk')}, "
        f"seed {order.seed}",
    }
    words = [
        f"{order.population.num_samples:,} samples in {format_count(num_batches, 'batch', 'batches')} "
        f"of {order.batch_size:,}",
        shuffles[order.shuffle],
        format_count(stats.threads, "thread"),
    ]
    if order.world_size > 1:
        words.append(f"rank {order.rank} of {order.world_size}")
    rows = []
    for name, plan in recipe.deliveries.items():
        dtype = plan.dtype if plan.cast is None else plan.cast
        shape = (plan.shape[2], plan.shape[0], plan.shape[1]) if plan.channels_last else plan.shape
        memory = "channels_last" if plan.channels_last else "contiguous"
        more = [type(step).__name__ for step in plan.augment] + (["normalised"] if plan.normalize else [])
        if plan.table is not None and plan.field.dtype != str(dtype).removeprefix("torch."):
            more.append(f"{plan.field.dtype} by table")
        delivered = f"({', '.join(map(str, ('N', *shape)))}{'' if shape else ','})"
        rows.append((name, str(dtype), delivered, memory, ", ".join(more) or "-"))
    parts = [
        f"<h4>Loader of {escape(os.path.basename(path))}</h4>",
        f'<p class="h5c-muted">{escape(" · ".join(words))}</p>',
        table(("field", "delivered as", "shape", "memory", "on the way"), rows),
    ]
    if stats.batches:
        parts.append(f'<p class="h5c-muted">last epoch: {escape(stats)}</p>')
        parts.append(
            bars(
                [
                    Bar("the loop waited", stats.waited_share, f"{stats.waited_share:.0%} of its time"),
                    Bar("threads read", stats.read_share, f"{stats.read_share:.0%}", quiet=True),
                    Bar("threads decoded", stats.decode_share, f"{stats.decode_share:.0%}", quiet=True),
                ],
                most=1.0,
            )
        )
    return in_notebook("".join(parts))
