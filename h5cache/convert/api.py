"""`convert_dataset`: a source becomes a dataset, in one call. The command line says the same in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from h5cache.codecs import Codec
from h5cache.convert.estimate import Estimate, estimate_conversion
from h5cache.convert.options import DEFAULT, ConvertOptions, Default
from h5cache.convert.pictures import PictureOptions, parse_normalize
from h5cache.convert.recipe import Recipe
from h5cache.convert.result import ConvertResult
from h5cache.convert.run import check_outputs, convert_source
from h5cache.convert.sources import IterableSource, Source, make_source
from h5cache.convert.sources.recognise import SOURCES, choose_kind
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
    resize: int | Default | None = DEFAULT,
    size: int | Default | None = DEFAULT,
    fit: str | Default = DEFAULT,
    layout: str | Default = DEFAULT,
    color: str | Default = DEFAULT,
    dtype: str | Default = DEFAULT,
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
        resize, size, fit, layout, color, dtype, normalize: for picture files, the default first: short side (256; None:
            as it is), crop (224; None: whole), "crop", "pad" or "stretch", "CHW" or "HWC", "rgb" or "gray", "uint8",
            "float16" or "float32", None, "imagenet" or (mean, std). SchemaError where the source holds none.
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
    num_workers = check_workers(workers)
    recipe = make_recipe(transform, batch_transform, batch_size, fields)
    check_places(source, os.fspath(out))
    check_outputs(os.fspath(out), options)
    pictures = given_options(
        resize=resize, size=size, fit=fit, layout=layout, color=color, dtype=dtype, normalize=normalize
    )
    opened = open_source(source, kind, pictures, fields, batch_size)
    if isinstance(opened, IterableSource):
        return convert_iterable(opened, os.fspath(out), recipe, options)
    return convert_source(opened, os.fspath(out), recipe, options, num_workers, executor, check_stop)


def estimate_dataset(
    source: Any,
    out: str | os.PathLike[str],
    *,
    kind: str | None = None,
    resize: int | Default | None = DEFAULT,
    size: int | Default | None = DEFAULT,
    fit: str | Default = DEFAULT,
    layout: str | Default = DEFAULT,
    color: str | Default = DEFAULT,
    dtype: str | Default = DEFAULT,
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
    transform: Function | Transform | str | None = None,
    batch_transform: Function | Transform | str | None = None,
    batch_size: int = 256,
    fields: Sequence[str] | None = None,
    codec: str | Codec | Mapping[str, str | Codec] = "auto",
    workers: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    split: str | Mapping[str, float] | None = None,
    shard_size: int | str | None = None,
    part_samples: int | None = None,
) -> Estimate:
    """Convert 64 samples, spread over the source, and say what all of it would come to. Writes nothing.

    Takes and checks what `convert_dataset` is told of the dataset to be, and not what concerns its run alone:
    `executor`, `on_error`, `overwrite`, `force`, `progress`, `check_stop`. `out` may exist: only its disk counts.
    """
    options = ConvertOptions(
        codec=codec,
        seed=seed,
        shuffle=shuffle,
        split=parse_split(split) if isinstance(split, str) else split,
        shard_size=shard_size,
        part_samples=part_samples,
    )
    num_workers = check_workers(workers)
    recipe = make_recipe(transform, batch_transform, batch_size, fields)
    check_places(source, os.fspath(out))
    check_parent(os.path.abspath(os.fspath(out)))
    pictures = given_options(
        resize=resize, size=size, fit=fit, layout=layout, color=color, dtype=dtype, normalize=normalize
    )
    opened = open_source(source, kind, pictures, fields, batch_size)
    if isinstance(opened, IterableSource):
        raise SchemaError("an iterable cannot be estimated: taking samples from it would lose them")
    return estimate_conversion(opened, os.fspath(out), recipe, options, num_workers, usable_cores())


def check_workers(workers: int | None) -> int:
    """Return how many processes convert."""
    if workers is not None and workers < 0:
        raise SchemaError(f"workers must be 0 (this process) or more, got {workers}")
    return usable_cores() if workers is None else workers


def given_options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not DEFAULT}


def open_source(
    source: Any, kind: str | None, pictures: Mapping[str, Any], fields: Sequence[str] | None, batch_size: int
) -> Source | IterableSource:
    """Return the source that `source` is; `pictures` are the picture options that were given."""
    if isinstance(source, Source | IterableSource):
        check_unused(pictures, f"a source made beforehand ({source.kind}), which has its own")
        return source
    kind = choose_kind(source, kind)
    row = SOURCES[kind]
    if not row.holds_pictures:
        check_unused(pictures, f"source {kind!r}, which holds no picture files: it is {row.text}")
        return make_source(source, kind, fields=fields, batch_size=batch_size)
    return make_source(source, kind, pictures=make_pictures(pictures), fields=fields, batch_size=batch_size)


def check_unused(pictures: Mapping[str, Any], where: str) -> None:
    """Refuse picture options that would have no effect; None asks for nothing, and is granted."""
    asked = [name for name, value in pictures.items() if value is not None]
    if asked:
        flags, words = ", ".join(f"--{name}" for name in asked), ", ".join(f"{name}=" for name in asked)
        raise SchemaError(f"{words} ({flags}) would have no effect on {where}")


def make_pictures(given: Mapping[str, Any]) -> PictureOptions:
    normalize = given.get("normalize")
    if isinstance(normalize, str):
        given = {**given, "normalize": parse_normalize(normalize)}
    return PictureOptions(**given)


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
