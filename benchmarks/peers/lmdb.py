"""LMDB: one record per sample, mapped, copied once by torch's collate."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, worker_loader

LMDB = "LMDB"


class LmdbDataset:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shape = tuple(np.load(folder / "shape.npy").tolist())
        self.transaction: Any = None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: int) -> Any:
        if self.transaction is None:
            import lmdb
            import torch

            # The tensor of a read-only buffer is only read: collate copies it.
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            self.environment = lmdb.open(str(self.folder / "data"), readonly=True, lock=False, readahead=False)
            self.transaction = self.environment.begin(buffers=True)
            self.frombuffer, self.uint8 = torch.frombuffer, torch.uint8
        record = self.transaction.get(index.to_bytes(8, "big"))
        return self.frombuffer(record, dtype=self.uint8).view(self.shape[1:]), index


def build(source: Source, folder: Path) -> None:
    import lmdb

    images = source.images
    with lmdb.open(str(folder / "data"), map_size=images.nbytes * 2 + 2**26) as environment:
        for start in range(0, len(images), 256):
            with environment.begin(write=True) as transaction:
                for index in range(start, min(start + 256, len(images))):
                    transaction.put(index.to_bytes(8, "big"), images[index].tobytes(), append=True)
    np.save(folder / "shape.npy", images.shape)


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    return worker_loader(LmdbDataset(folder), setting)


PEERS = [Contestant(LMDB, "lmdb", build, open_shuffled, ("lmdb",))]
