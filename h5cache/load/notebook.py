"""What notebooks show of datasets and loaders, in HTML. A strip of pictures is read, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from h5cache.errors import H5CacheError
from h5cache.load.order import Order
from h5cache.load.recipe import BatchRecipe
from h5cache.load.show import Shown, find_picture_field, label_words, make_preview
from h5cache.load.stats import LoaderStats
from h5cache.markup import Bar, Series, bars, escape, figure, histogram_chart, in_notebook, table
from h5cache.schema import Field
from h5cache.terminal import describe_error, format_count, format_nbytes, format_ratio

__all__ = ["class_bars", "dataset_html", "loader_html"]

#: Classes that have a bar each; more are drawn as one curve.
SHOWN_CLASSES = 20
#: Pictures in the strip.
STRIP = 10


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
