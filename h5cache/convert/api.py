"""`convert_dataset`: a source becomes a dataset, in one call. The command line says the same in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from h5cache.codecs import Codec
from h5cache.convert.estimate import Estimate, estimate_conversion
from h5cache.convert.options import ConvertOptions
from h5cache.convert.pictures import PictureOptions, parse_normalize
from h5cache.convert.recipe import Recipe
from h5cache.convert.result import ConvertResult
from h5cache.convert.run import check_outputs, convert_source
from h5cache.convert.sources import IterableSource, Source, make_source
from h5cache.convert.split import parse_split
from h5cache.convert.stream import convert_iterable
from h5cache.convert.transform import Transform, load_transform
from h5cache.errors import SchemaError
from h5cache.format.publish import check_parent
from h5cache.limits import usable_cores

__all__ = ["ConvertResult", "convert_dataset", "estimate_dataset", "make_recipe", "open_source"]

Function = Callable[[dict[str, Any]], Any]


def convert_dataset(
    source: Any,
    out: str | os.PathLike[str],
    *,
    kind: str | None = None,
    resize: int | None = 256,
    size: int | None = 224,
    fit: str = "crop",
    layout: str = "CHW",
    color: str = "rgb",
    dtype: str = "uint8",
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
    transform: Function | Transform | str | None = None,
    batch_transform: Function | Transform | str | None = None,
    batch_size: int = 256,
    fields: Sequence[str] | None = None,
    codec: str | Codec | Mapping[str, str | Codec] = "auto",
    workers: int | None = None,
    executor: Executor | None = None,
    seed: int = 0,
    shuffle: bool = True,
    split: str | Mapping[str, float] | None = None,
    shard_size: int | str | None = None,
    part_samples: int | None = None,
    on_error: str = "report",
    overwrite: bool = False,
    force: bool = False,
    progress: bool | None = None,
    check_stop: Callable[[], None] | None = None,
) -> ConvertResult:
    """Convert a source to a dataset: a `.h5` file, or a folder of shards where `out` does not end in `.h5`.

    Running the same call again after it was killed, interrupted or failed goes on with the parts that are finished.
    Same source and options give the same bytes, whatever the workers, interruptions or the place.

    Args:
        source: a folder of pictures (one sub-folder per class, or flat), a CSV list, `.npy`/`.npz`/`.pt` files, an
            h5cache dataset, a torch Dataset or sequence, or an iterable of samples or batches.
        out: the dataset to be.
        kind: what `source` is, where it is not recognised (`--source`).
        resize, size, fit, layout, color, dtype, normalize: for pictures: short side, crop, "crop", "pad" or "stretch",
            "CHW" or "HWC", "rgb" or "gray", "uint8", "float16" or "float32", "imagenet" or (mean, std).
        transform: called with each sample, a dict; any callable, also from a notebook's cell, or "module:function".
        batch_transform: likewise with `batch_size` samples at a time, stacked.
        fields: names of the fields, where samples are tuples.
        codec: "auto", "none", "blosc2", "blosc", "zstd", a codec object, or a dict of these by field.
        workers: processes; None: the cores this process may use; 0: this process.
        executor: any `concurrent.futures.Executor` instead, a Dask client's `get_executor()` for one. Its workers must
            see the same files.
        seed, shuffle: samples are stored in a random order by the seed, unless `shuffle=False`.
        split: "train=0.9,val=0.1" or a dict: one dataset each, stratified by class.
        shard_size: samples of a shard, or bytes ("512MB"), where `out` is a folder.
        part_samples: samples of a part, where `out` is a file: what a kill loses at most.
        on_error: "report" converts all the rest, then raises BadInputsError and publishes nothing; "skip" publishes
            without the bad samples and records them.
        overwrite: replace a dataset of that name, at the very end; also starts anew where parts of another run lie.
        force: go on although the disk seems too small.
        progress: True, False, or None: on terminals and in notebooks.
        check_stop: called some times a second; a KeyboardInterrupt that it raises ends the run as Ctrl-C does.
    """
    options = ConvertOptions(
        codec=codec,
        seed=seed,
        shuffle=shuffle,
        split=parse_split(split) if isinstance(split, str) else split,
        shard_size=shard_size,
        part_samples=part_samples,
        on_error=on_error,
        overwrite=overwrite,
        force=force,
        progress=progress,
    )
    if workers is not None and workers < 0:
        raise SchemaError(f"workers must be 0 (this process) or more, got {workers}")
    recipe = make_recipe(transform, batch_transform, batch_size, fields)
    pictures = PictureOptions(
        resize, size, fit, layout, color, dtype, parse_normalize(normalize) if isinstance(normalize, str) else normalize
    )
    check_places(source, os.fspath(out))
    check_outputs(os.fspath(out), options)
    opened = open_source(source, kind, pictures, fields, batch_size)
    if isinstance(opened, IterableSource):
        return convert_iterable(opened, os.fspath(out), recipe, options)
    count = usable_cores() if workers is None else workers
    return convert_source(opened, os.fspath(out), recipe, options, count, executor, check_stop)


def estimate_dataset(
    source: Any,
    out: str | os.PathLike[str],
    *,
    kind: str | None = None,
    pictures: PictureOptions | None = None,
    recipe: Recipe | None = None,
    fields: Sequence[str] | None = None,
    options: ConvertOptions | None = None,
    workers: int | None = None,
) -> Estimate:
    """Convert 64 samples, spread over the source, and say what all of it would come to. Writes nothing."""
    opened = open_source(source, kind, pictures or PictureOptions(), fields, 256)
    if isinstance(opened, IterableSource):
        raise SchemaError("an iterable cannot be estimated: taking samples from it would lose them")
    check_parent(os.path.abspath(os.fspath(out)))
    cores = usable_cores()
    return estimate_conversion(
        opened,
        os.fspath(out),
        recipe or Recipe(),
        options or ConvertOptions(),
        cores if workers is None else workers,
        cores,
    )


def open_source(
    source: Any, kind: str | None, pictures: PictureOptions, fields: Sequence[str] | None, batch_size: int
) -> Source | IterableSource:
    if isinstance(source, Source | IterableSource):
        return source
    return make_source(source, kind, pictures=pictures, fields=fields, batch_size=batch_size)


def make_recipe(
    transform: Function | Transform | str | None,
    batch_transform: Function | Transform | str | None,
    batch_size: int,
    fields: Sequence[str] | None,
) -> Recipe:
    if transform is not None and batch_transform is not None:
        raise SchemaError("give a transform per sample or one per batch, not both")
    if batch_size < 1:
        raise SchemaError(f"batch_size must be at least 1, got {batch_size}")
    per, given = ("sample", transform) if batch_transform is None else ("batch", batch_transform)
    if given is None:
        return Recipe(None, batch_size)
    names = None if fields is None else tuple(fields)
    if isinstance(given, str):
        return Recipe(load_transform(given, per), batch_size)
    return Recipe(given if isinstance(given, Transform) else Transform(given, per, names), batch_size)


def check_places(source: Any, out: str) -> None:
    """Refuse to write into the folder that is read: the next run would find other files there."""
    if not isinstance(source, str | os.PathLike) or not os.path.isdir(source):
        return
    inside, root = os.path.realpath(out), os.path.realpath(source)
    if inside == root or inside.startswith(root + os.sep):
        raise SchemaError(f"{out}: the output lies in the source {os.fspath(source)!s}; choose another place")
