"""Small samples, 3x32x32: the codec's limit, h5cache from disk, and torch's own dataset in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from contest import Contestant, Epoch, Setting, Source, worker_loader
from limits import open_codec
from own import build_compressed, open_loader

__all__ = ["SMALL", "SMALL_CHUNK", "SMALL_CODEC", "SMALL_FROM_DISK", "SMALL_IN_MEMORY", "SMALL_SOURCE"]

SMALL_SOURCE = "small-source"
SMALL_CODEC = "32 px: limit of the codec"
SMALL_CHUNK = "32 px: h5cache, Loader, chunk"
SMALL_FROM_DISK = "32 px: h5cache, Loader, full from disk, 1 thread"
SMALL_IN_MEMORY = "32 px: TensorDataset in memory, DataLoader, {} workers"
#: Too little for the decoded data: blocks are decoded again for every sample.
SMALL_WINDOW_NBYTES = 2**20


def open_from_disk(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    return open_loader(folder, replace(setting, threads=1), shuffle="full", window_nbytes=SMALL_WINDOW_NBYTES)


def open_tensors(folder: Path, setting: Setting, workers: bool) -> Callable[[], Epoch]:
    import torch
    from torch.utils.data import TensorDataset

    source = Source(folder)
    dataset = TensorDataset(torch.from_numpy(np.array(source.images)), torch.from_numpy(source.labels))
    if workers:
        return worker_loader(dataset, setting)
    return worker_loader(dataset, setting, num_workers=0, persistent_workers=False)


SMALL = [
    Contestant(
        SMALL_CODEC,
        "small",
        build_compressed,
        open_codec,
        ("h5cache", "blosc2"),
        reads_files=False,
        source=SMALL_SOURCE,
    ),
    *(
        Contestant(
            f"32 px: h5cache, Loader, {order or 'in order'}",
            "small",
            build_compressed,
            functools.partial(open_loader, shuffle=order),
            ("h5cache",),
            source=SMALL_SOURCE,
        )
        for order in (False, "chunk", "full")
    ),
    Contestant(SMALL_FROM_DISK, "small", build_compressed, open_from_disk, ("h5cache",), source=SMALL_SOURCE),
    *(
        Contestant(
            SMALL_IN_MEMORY.format(2 if workers else 0),
            "small",
            build_compressed,
            functools.partial(open_tensors, workers=workers),
            reads_files=False,
            source=SMALL_SOURCE,
            reads_source=True,
        )
        for workers in (False, True)
    ),
]
