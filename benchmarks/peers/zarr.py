"""zarr v3 with Blosc, chunks of 16 samples: whole batches in order, and one sample at a time shuffled."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, worker_loader

CHUNK_SAMPLES = 16


class ZarrDataset:
    """Items are slices of the array: a sample, or a batch where `batch_size` is given."""

    def __init__(self, folder: Path, batch_size: int | None) -> None:
        self.folder = folder
        self.batch_size = batch_size
        self.num_samples = int(np.load(folder / "count.npy"))
        self.array: Any = None

    def __len__(self) -> int:
        return math.ceil(self.num_samples / (self.batch_size or 1))

    def __getitem__(self, index: int) -> Any:
        if self.array is None:
            import zarr

            self.array = zarr.open_array(str(self.folder / "image.zarr"), mode="r")
        import torch

        if self.batch_size is None:
            return torch.from_numpy(self.array[index]), index
        start = index * self.batch_size
        rows = torch.from_numpy(self.array[start : start + self.batch_size])
        return rows, torch.arange(start, start + len(rows))


def build(source: Source, folder: Path) -> None:
    import zarr

    images = source.images
    array = zarr.create_array(
        str(folder / "image.zarr"),
        shape=images.shape,
        chunks=(min(CHUNK_SAMPLES, len(images)), *images.shape[1:]),
        dtype="uint8",
        compressors=zarr.codecs.BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle"),
    )
    for start in range(0, len(images), CHUNK_SAMPLES):
        array[start : start + CHUNK_SAMPLES] = images[start : start + CHUNK_SAMPLES]
    np.save(folder / "count.npy", len(images))


def _fresh_workers(setting: Setting) -> dict[str, Any]:
    # zarr's event loop runs in a thread, which a fork would not carry over.
    return {"multiprocessing_context": "spawn"} if setting.threads else {}


def open_in_order(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    dataset = ZarrDataset(folder, setting.batch_size)
    return worker_loader(dataset, setting, batch_size=None, shuffle=False, **_fresh_workers(setting))


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    return worker_loader(ZarrDataset(folder, None), setting, **_fresh_workers(setting))


PEERS = [
    Contestant("zarr v3, in order", "zarr", build, open_in_order, ("zarr",)),
    Contestant("zarr v3, shuffled", "zarr", build, open_shuffled, ("zarr",)),
]
