"""h5cache: preprocess a PyTorch dataset once, keep it as a standard HDF5 file, train from it at the speed of memory.

The names below are loaded on first use: `import h5cache` alone loads neither torch, cv2 nor h5py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h5cache.codecs import Blosc, Blosc2, Raw, Zstd
    from h5cache.convert.api import convert_dataset, estimate_dataset
    from h5cache.errors import H5CacheError
    from h5cache.format.writer import Writer
    from h5cache.load.augment import HorizontalFlip, RandomCrop, RandomResizedCrop
    from h5cache.load.dataset import H5TensorDataset
    from h5cache.load.loader import Loader
    from h5cache.schema import Field, Schema

__version__ = "0.1.0"

_HOMES = {
    "Blosc": "h5cache.codecs",
    "Blosc2": "h5cache.codecs",
    "Field": "h5cache.schema",
    "H5CacheError": "h5cache.errors",
    "H5TensorDataset": "h5cache.load.dataset",
    "HorizontalFlip": "h5cache.load.augment",
    "Loader": "h5cache.load.loader",
    "RandomCrop": "h5cache.load.augment",
    "RandomResizedCrop": "h5cache.load.augment",
    "Raw": "h5cache.codecs",
    "Schema": "h5cache.schema",
    "Writer": "h5cache.format.writer",
    "Zstd": "h5cache.codecs",
    "convert_dataset": "h5cache.convert.api",
    "estimate_dataset": "h5cache.convert.api",
}

__all__ = [
    "Blosc",
    "Blosc2",
    "Field",
    "H5CacheError",
    "H5TensorDataset",
    "HorizontalFlip",
    "Loader",
    "RandomCrop",
    "RandomResizedCrop",
    "Raw",
    "Schema",
    "Writer",
    "Zstd",
    "__version__",
    "convert_dataset",
    "estimate_dataset",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'h5cache' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
