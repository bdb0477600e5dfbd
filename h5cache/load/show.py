"""Some samples of a dataset as pictures with words: tiles, and a grid of them that shows and saves itself."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.format.open import read_dataset_index
from h5cache.format.storage import DatasetInfo
from h5cache.load.picture import Pixels, Span, encode_picture, picture_axes, shrink, to_display
from h5cache.load.read import SampleReader
from h5cache.markup import data_uri, escape, in_notebook
from h5cache.schema import Field

__all__ = [
    "Preview",
    "Shown",
    "Tile",
    "find_label_field",
    "find_picture_field",
    "label_words",
    "make_preview",
    "make_tiles",
    "read_rows",
]

#: Pictures up to this side are shown pixel by pixel.
PIXEL_SIDE = 64

Samples = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


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
