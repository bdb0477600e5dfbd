"""LitData: chunks of 64 MB, its own streaming dataset and loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contest import Contestant, Epoch, Setting, Source


def build(source: Source, folder: Path) -> None:
    import torch
    from litdata.streaming.writer import BinaryWriter

    images = source.images
    writer = BinaryWriter(str(folder), chunk_bytes="64MB")
    for index in range(len(images)):
        writer.add_item(index, (torch.from_numpy(images[index].copy()), index))
    writer.done()
    writer.merge()


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder), shuffle=True)
    loader: Any = StreamingDataLoader(
        dataset, batch_size=setting.batch_size, num_workers=setting.threads, persistent_workers=True
    )
    return lambda: loader


PEERS = [Contestant("LitData", "litdata", build, open_shuffled, ("litdata",))]
