"""The demonstration: make pictures, convert them, compare sizes and speed with `.pt` files, train for a moment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from h5cache.convert.api import convert_dataset
from h5cache.convert.pictures import PictureOptions
from h5cache.convert.sources.class_folders import ClassFolders
from h5cache.limits import usable_cores
from h5cache.load.dataset import H5TensorDataset
from h5cache.load.loader import PREFETCH
from h5cache.terminal import Console
from h5cache.tools.demo_files import PtFolders, ZippedSamples, save_tensors
from h5cache.tools.measure import Feed, describe_load, measure_warm
from h5cache.tools.pictures import write_class_folders
from h5cache.tools.present import PREFETCH_FACTOR, PtSamples, SourceSamples, make_dataloader
from h5cache.tools.training import Trainer, Training, make_network, num_turns, train_in_turn

__all__ = ["DemoOptions", "DemoResult", "Form", "run_demo"]

SIZE, RESIZE = 128, 146
NORMALIZE = "imagenet"


@dataclass(frozen=True)
class DemoOptions:
    """How large the demonstration is. The defaults take about 25 s on two cores."""

    num_samples: int = 600
    seconds_train: float = 3.0
    #: Of each of two measurements of delivery.
    seconds_read: float = 0.4
    batch_size: int = 64
    seed: int = 0

    @property
    def fitting_batch_size(self) -> int:
        """An epoch has at least four batches, however few samples are asked for."""
        return max(1, min(self.batch_size, self.num_samples // 4))


@dataclass(frozen=True)
class Form:
    """One form in which the samples lie on disk, and how fast they come back as batches."""

    name: str
    nbytes: int
    samples_per_s: float


@dataclass(frozen=True)
class DemoResult:
    """All that the demonstration shows. The last form and the last training are h5cache's."""

    num_samples: int
    classes: tuple[str, ...]
    size: int
    cores: int
    convert_s: float
    forms: tuple[Form, ...]
    #: Whether the loader delivers exactly the tensors that the float32 `.pt` files hold.
    is_exact: bool
    num_parameters: int
    seconds_train: float
    #: From the float32 `.pt` files, and from h5cache.
    trainings: tuple[Training, Training]
    #: What to know of the machine; empty: nothing.
    note: str = ""


def run_demo(folder: str, options: DemoOptions, console: Console) -> DemoResult:
    """Do all of it in `folder`, which must be there; progress goes to the console's terminal."""
    cores = usable_cores()
    note = describe_load(cores)
    pictures, out = os.path.join(folder, "pictures"), os.path.join(folder, "demo.h5")
    with console.progress(options.num_samples, "making pictures", "picture") as bar:
        classes = write_class_folders(pictures, options.num_samples, options.seed, bar.update, cores)
    began = time.perf_counter()
    convert_dataset(
        pictures, out, resize=RESIZE, size=SIZE, workers=cores, progress=console.err.isatty(), overwrite=True
    )
    convert_s = time.perf_counter() - began
    floats = PictureOptions(RESIZE, SIZE, dtype="float32", normalize=NORMALIZE)
    with console.progress(options.num_samples, "saving .pt files", "sample") as bar:
        files = save_tensors(pictures, folder, floats, bar.update, cores)
    with H5TensorDataset(out) as dataset:
        is_exact = _holds_the_same(dataset, files, options)
        forms = _measure_forms(dataset, files, pictures, floats, options, console, cores)
        network_size = sum(part.numel() for part in make_network(len(classes)).parameters())
        trainings = _train(dataset, files, len(classes), options, console, cores)
    return DemoResult(
        num_samples=options.num_samples,
        classes=classes,
        size=SIZE,
        cores=cores,
        convert_s=convert_s,
        forms=tuple(forms),
        is_exact=is_exact,
        num_parameters=network_size,
        seconds_train=options.seconds_train,
        trainings=trainings,
        note=note,
    )


def _holds_the_same(dataset: H5TensorDataset, files: PtFolders, options: DemoOptions) -> bool:
    """Compare every sample, bit for bit, with its `.pt` file."""
    place = dict(zip(files.keys, files.float32, strict=True))
    keys = iter(dataset.index["key"].tolist())
    with dataset.loader(options.fitting_batch_size, normalize=NORMALIZE) as loader:
        for pictures, _ in loader:
            for picture in pictures:
                saved = torch.load(place[next(keys)], weights_only=True)
                if not torch.equal(picture.view(torch.int32), saved.view(torch.int32)):
                    return False
    return next(keys, None) is None


def _measure_forms(
    dataset: H5TensorDataset,
    files: PtFolders,
    pictures: str,
    floats: PictureOptions,
    options: DemoOptions,
    console: Console,
    cores: int,
) -> list[Form]:
    """Measure size and delivery of every form: float32 batches from all but the uint8 `.pt` files."""
    source = ClassFolders(pictures, floats)
    jpegs = [source.file_list.path(number) for number in range(len(source))]
    ways: list[tuple[str, Sequence[str], Any]] = [
        ("JPEG", jpegs, SourceSamples(source)),
        (".pt float32", files.float32, PtSamples(files.float32, files.labels)),
        (".pt float32, zipped", files.float32_zip, ZippedSamples(files.float32_zip, files.labels)),
        (".pt uint8", files.uint8, PtSamples(files.uint8, files.labels)),
        ("h5cache", [dataset.path], None),
    ]
    forms = []
    with console.progress(len(ways), "reading", "way") as bar:
        for name, paths, samples in ways:
            if samples is None:
                feed = _our_feed(dataset, options)
            else:
                feed = _their_feed(samples, options, cores)
            try:
                measure_warm(feed, options.seconds_read / 2)
                found = measure_warm(feed, options.seconds_read)
            finally:
                feed.close()
            forms.append(Form(name, sum(os.path.getsize(path) for path in paths), found.samples_per_s))
            bar.update(1)
    return forms


def _train(
    dataset: H5TensorDataset, files: PtFolders, num_classes: int, options: DemoOptions, console: Console, cores: int
) -> tuple[Training, Training]:
    feeds = [
        _their_feed(PtSamples(files.float32, files.labels), options, cores),
        _our_feed(dataset, options),
    ]
    trainers = [Trainer(make_network(num_classes, options.seed), feed) for feed in feeds]
    try:
        with console.progress(2 * num_turns(options.seconds_train), "training", "turn") as bar:
            theirs, ours = train_in_turn(trainers, options.seconds_train, max(1, cores // 2), bar.update)
    finally:
        for feed in feeds:
            feed.close()
    return theirs, ours


def _our_feed(dataset: H5TensorDataset, options: DemoOptions) -> Feed:
    """Stored as uint8; normalised on the fly, in the threads that decode."""
    size = options.fitting_batch_size
    return Feed(lambda: dataset.loader(size, shuffle=True, normalize=NORMALIZE, seed=options.seed), ahead=PREFETCH)


def _their_feed(samples: Any, options: DemoOptions, cores: int) -> Feed:
    size = options.fitting_batch_size
    return Feed(lambda: make_dataloader(samples, size, cores), ahead=PREFETCH_FACTOR * cores, keep=True)
