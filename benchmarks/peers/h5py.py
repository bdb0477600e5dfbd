"""The usual recipe: chunks of 16 samples, a file handle per worker, one sample at a time through libhdf5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contest import Contestant, Epoch, Setting, Source, worker_loader

CHUNK_SAMPLES = 16
RECIPE = "h5py, Blosc2"


class H5Dataset:
    """What most tutorials show."""

    def __init__(self, path: Path, num_samples: int) -> None:
        self.path = path
        self.num_samples = num_samples
        self.file: Any = None

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            import h5py
            import hdf5plugin  # noqa: F401  registers the filter
            import torch

            self.file = h5py.File(self.path, "r")
            self.to_tensor = torch.from_numpy
        return self.to_tensor(self.file["image"][index]), int(self.file["label"][index])


def build(source: Source, folder: Path, blosc2: bool) -> None:
    import h5py
    import hdf5plugin

    images = source.images
    options = (
        {"compression": hdf5plugin.Blosc2("zstd", 1, hdf5plugin.Blosc2.BITSHUFFLE)}
        if blosc2
        else {"compression": "gzip"}
    )
    chunks = (min(CHUNK_SAMPLES, len(images)), *images.shape[1:])
    with h5py.File(folder / "data.h5", "w") as file:
        stored = file.create_dataset("image", images.shape, "u1", chunks=chunks, **options)
        for start in range(0, len(images), CHUNK_SAMPLES):
            stored[start : start + CHUNK_SAMPLES] = images[start : start + CHUNK_SAMPLES]
        file["label"] = source.labels


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    import h5py

    with h5py.File(folder / "data.h5", "r") as file:
        num_samples = len(file["label"])
    return worker_loader(H5Dataset(folder / "data.h5", num_samples), setting)


PEERS = [
    Contestant(RECIPE, "h5py-blosc2", lambda s, f: build(s, f, blosc2=True), open_shuffled, ("h5py", "hdf5plugin")),
    Contestant(
        "h5py, gzip", "h5py-gzip", lambda s, f: build(s, f, blosc2=False), open_shuffled, ("h5py", "hdf5plugin")
    ),
]
