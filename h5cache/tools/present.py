"""The way that users go today, to be measured beside h5cache: picture or `.pt` files, or a loader of their own."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from h5cache.convert.pictures import PictureOptions
from h5cache.convert.sources import IterableSource, Source, SourceError, make_source
from h5cache.convert.sources.picture_files import PictureFiles
from h5cache.convert.sources.pt_files import PtFiles
from h5cache.format.storage import DatasetInfo
from h5cache.tools.measure import Feed

__all__ = ["PREFETCH_FACTOR", "Present", "PtSamples", "make_dataloader", "open_present"]

#: What DataLoader takes by itself: batches ahead per worker.
PREFETCH_FACTOR = 2
#: Of a picture that is 224 px in the dataset 256 are kept before the crop, where provenance does not say.
RESIZE_OVER_SIZE = 256 / 224


@dataclass(frozen=True, eq=False)
class Present:
    """How the user's samples come today."""

    #: "JPEG files through cv2", ".pt files", "module:make_loader".
    name: str
    make: Callable[[], Iterable[Any]]
    workers: int
    #: Files that are read, for the page cache; empty where they are not known.
    paths: Sequence[str] = ()
    notes: tuple[str, ...] = ()

    def feed(self, device: str | None = None) -> Feed:
        ahead = PREFETCH_FACTOR * max(1, self.workers) if self.paths else 0
        return Feed(self.make, ahead=ahead, keep=True, device=device)


class SourceSamples(Dataset[Any]):
    """Samples of a converter's source, as a training script would read them."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, sample: int) -> tuple[Any, ...]:
        values = self._source.load(sample).values()
        return tuple(torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values)


class PtSamples(Dataset[Any]):
    """One `.pt` or `.npy` file per sample: nothing between the user and `torch.load`."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int] | None = None) -> None:
        # Arrays, not lists: lists are copied into every worker.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._labels = None if labels is None else np.asarray(labels, np.int64)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, sample: int) -> Any:
        path = os.fsdecode(self._paths[sample])
        held = np.load(path) if path.endswith(".npy") else torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(held, torch.Tensor | np.ndarray) and self._labels is not None:
            return held, int(self._labels[sample])
        return held


def make_dataloader(samples: Dataset[Any], batch_size: int, workers: int, *, shuffle: bool = True) -> DataLoader[Any]:
    """Return a DataLoader as a careful user sets it up: workers that stay, each with one thread."""
    return DataLoader(
        samples,
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=PREFETCH_FACTOR if workers else None,
        worker_init_fn=_calm_opencv if isinstance(samples, SourceSamples) else None,
    )


def open_present(spec: str, info: DatasetInfo, batch_size: int, workers: int, num_samples: int) -> Present:
    """Return the present way that `--against` names: a folder or file, or `module:function`.

    Of files, `num_samples` are taken, spread over all of them: as many as are measured of the dataset.
    """
    if not os.path.exists(spec) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", spec):
        return _own_loader(spec, batch_size)
    pictures, notes = plan_pictures(info)
    source = make_source(spec, pictures=pictures)
    if isinstance(source, IterableSource):
        raise SourceError(f"{spec}: give a folder of pictures or .pt files, or module:make_loader")
    if len(source) > num_samples:
        source = source.take(np.linspace(0, len(source) - 1, num_samples).astype(np.int64))
    if not isinstance(source, PictureFiles):
        notes = ()
    if isinstance(source, PtFiles | PictureFiles):
        listed = source.file_list
        paths = [listed.path(sample) for sample in range(len(listed))]
    else:
        paths = [] if os.path.isdir(spec) else [spec]
    samples: Dataset[Any] = SourceSamples(source)
    if isinstance(source, PtFiles):
        samples = PtSamples(paths, None if source.labels is None else source.labels.tolist())
    name = f"{_kind_of_files(paths)} through {'cv2' if isinstance(source, PictureFiles) else 'DataLoader'}"
    return Present(name, lambda: make_dataloader(samples, batch_size, workers), workers, paths, notes)


def plan_pictures(info: DatasetInfo) -> tuple[PictureOptions, tuple[str, ...]]:
    """Return how pictures are to be decoded so that they come out as in the dataset, and what remains different."""
    notes: list[str] = []
    source = info.provenance.get("source")
    transform = info.provenance.get("transform")
    if isinstance(transform, dict):
        notes.append(f"your files are read without the transform {transform.get('name')}: with it they are slower")
    if isinstance(source, dict) and isinstance(source.get("pictures"), dict):
        return PictureOptions.from_config(source["pictures"]), tuple(notes)
    for field in info.schema.values():
        if len(field.shape) == 3:
            layout = field.layout or "CHW"
            channels, size = (field.shape[0], field.shape[1]) if layout == "CHW" else (field.shape[2], field.shape[0])
            resize = round(size * RESIZE_OVER_SIZE)
            notes.append(f"the dataset does not say how its pictures were made: yours are resized to {resize}, cropped")
            return PictureOptions(resize, size, layout=layout, color="gray" if channels == 1 else "rgb"), tuple(notes)
    return PictureOptions(), tuple(notes)


def _own_loader(spec: str, batch_size: int) -> Present:
    module_name, _, attribute = spec.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as exc:
        raise SourceError(f"--against {spec}: {exc} (looked in the current folder and sys.path)") from exc
    if not callable(function):
        raise SourceError(f"--against {spec}: is a {type(function).__name__}, not a function that returns a loader")
    takes_size = "batch_size" in inspect.signature(function).parameters

    def make() -> Iterable[Any]:
        loader: Iterable[Any] = function(batch_size=batch_size) if takes_size else function()
        return loader

    notes = () if takes_size else (f"{attribute}() takes no batch_size: its batches have its own size",)
    return Present(spec, make, 0, (), notes)


def _kind_of_files(paths: Sequence[str]) -> str:
    endings = {os.path.splitext(path)[1].lower() for path in paths}
    words = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WebP", ".bmp": "BMP", ".tif": "TIFF"}
    names = sorted({words.get(ending, ending) for ending in endings})
    return f"{' and '.join(names)} files" if 0 < len(names) < 3 else "files"


def _calm_opencv(worker: int) -> None:
    """Workers are many already: OpenCV's own threads would only fight each other."""
    import cv2

    cv2.setNumThreads(0)
