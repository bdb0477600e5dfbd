"""h5cache's own rows: compressed and uncompressed, every order, every door, floats, augmentation."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contest import Array, Contestant, Epoch, Setting, Source, check_exact, worker_loader

__all__ = ["MEAN", "STD", "OWN", "build_compressed", "build_uncompressed", "own_name"]

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
COMPRESSED, UNCOMPRESSED, FLOATS = "compressed", "uncompressed", "float32"
#: Samples that a Writer is given at once.
STEP = 256

Open = Callable[[Path, Setting], Callable[[], Epoch]]


def write(path: Path, images: Array, codec: str, convert: Callable[[Array], Array] = np.asarray) -> None:
    from h5cache import Field, Writer

    first = convert(images[:1])
    fields = {"image": Field(first.dtype, first.shape[1:], codec), "label": Field("int64")}
    with Writer(path, fields) as writer:
        for start in range(0, len(images), STEP):
            rows = convert(images[start : start + STEP])
            writer.append(image=rows, label=np.arange(start, start + len(rows)))


def build_compressed(source: Source, folder: Path) -> None:
    write(folder / "data.h5", source.images, "blosc2")


def build_uncompressed(source: Source, folder: Path) -> None:
    write(folder / "data.h5", source.images, "none")


def build_floats(source: Source, folder: Path) -> None:
    write(folder / "data.h5", source.images, "auto", normalised)


def normalised(images: Array) -> Array:
    floats = (images / np.float32(255) - MEAN[:, None, None]) / STD[:, None, None]
    return floats.astype(np.float32)


def check_floats(images: Array, stored: Array) -> None:
    check_exact(images, normalised(np.asarray(stored)))


def open_dataset(folder: Path, **options: Any) -> Any:
    from h5cache import H5TensorDataset

    return H5TensorDataset(folder / "data.h5", **options)


def open_loader(folder: Path, setting: Setting, dataset: dict[str, Any] | None = None, **options: Any) -> Any:
    opened = open_dataset(folder, **(dataset or {}))
    loader = opened.loader(setting.batch_size, threads=setting.threads, **options)
    return lambda: loader


def open_dataloader(folder: Path, setting: Setting, shuffle: bool) -> Callable[[], Epoch]:
    return worker_loader(open_dataset(folder), setting, shuffle=shuffle)


def open_batches(folder: Path, setting: Setting, shuffle: bool | str) -> Callable[[], Epoch]:
    stream = open_dataset(folder).batches(setting.batch_size, shuffle)
    return worker_loader(stream, setting, batch_size=None)


def accepts_mmap() -> bool:
    """Whether this h5cache can map uncompressed fields."""
    try:
        from h5cache import H5TensorDataset
    except ImportError:
        return False
    return "mmap" in inspect.signature(H5TensorDataset.__init__).parameters


def own_name(store: str, door: str, shuffle: bool | str) -> str:
    return f"h5cache {store}, {door}, {shuffle or 'in order'}"


def _doors(store: str, build: Callable[[Source, Path], None], folder: str) -> list[Contestant]:
    rows = []
    for door, open_door, orders in (
        ("Loader", open_loader, (False, "chunk", "full")),
        ("DataLoader", open_dataloader, (False, "full")),  # a map-style dataset knows no chunk order
        ("batches", open_batches, (False, "chunk", "full")),
    ):
        for order in orders:
            shuffle = order == "full" if door == "DataLoader" else order
            opened: Open = functools.partial(open_door, shuffle=shuffle)
            rows.append(Contestant(own_name(store, door, order), folder, build, _quietly(opened), ("h5cache",)))
    return rows


def _quietly(opened: Open) -> Open:
    """A tiny dataset, or small windows asked for on purpose, make chunk order warn."""

    def open_quietly(folder: Path, setting: Setting) -> Callable[[], Epoch]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return opened(folder, setting)

    return open_quietly


def _open_augmented(folder: Path, setting: Setting, steps: Callable[[int], list[Any]]) -> Callable[[], Epoch]:
    size = open_dataset(folder).schema["image"].shape[-1]
    return open_loader(folder, setting, shuffle="full", augment=steps(size))


def crop_and_flip(size: int) -> list[Any]:
    """Crop what is as large as the picture out of a padded one: no fewer pixels than without, and mirror half."""
    from h5cache.load.augment import HorizontalFlip, RandomCrop

    return [RandomCrop(size, padding=size // 8), HorizontalFlip()]


def crop_smaller_and_flip(size: int) -> list[Any]:
    from h5cache.load.augment import HorizontalFlip, RandomCrop

    return [RandomCrop(size * 7 // 8), HorizontalFlip()]


def resized_crop(size: int) -> list[Any]:
    from h5cache.load.augment import HorizontalFlip, RandomResizedCrop

    return [RandomResizedCrop(size), HorizontalFlip()]


AUGMENTATIONS = {
    "crop, flip": crop_and_flip,
    "smaller crop, flip": crop_smaller_and_flip,
    "random resized crop, flip": resized_crop,
}


def _augmented() -> list[Contestant]:
    stores = {COMPRESSED: ("h5cache", build_compressed), UNCOMPRESSED: ("h5cache-uncompressed", build_uncompressed)}
    return [
        Contestant(
            f"h5cache {store}, Loader, full, {name}",
            folder,
            build,
            functools.partial(_open_augmented, steps=steps),
            ("h5cache",),
            check=None,
        )
        for name, steps in AUGMENTATIONS.items()
        for store, (folder, build) in stores.items()
    ]


def _mapped() -> list[Contestant]:
    if not accepts_mmap():
        return []
    return [
        Contestant(
            own_name(UNCOMPRESSED, "Loader mmap", order),
            "h5cache-uncompressed",
            build_uncompressed,
            functools.partial(open_loader, dataset={"mmap": True}, shuffle=order),
            ("h5cache",),
        )
        for order in (False, "full")
    ]


OWN = [
    *_doors(COMPRESSED, build_compressed, "h5cache"),
    *_doors(UNCOMPRESSED, build_uncompressed, "h5cache-uncompressed"),
    *_mapped(),
    Contestant(
        own_name(FLOATS, "Loader", "full"),
        "h5cache-float32",
        build_floats,
        functools.partial(open_loader, shuffle="full"),
        ("h5cache",),
        check=check_floats,
    ),
    *_augmented(),
]
