"""MosaicML Streaming: MDS shards of 64 MB, read locally."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contest import Contestant, Epoch, Setting, Source, worker_loader


def build(source: Source, folder: Path) -> None:
    from streaming import MDSWriter

    images = source.images
    shape = ",".join(str(side) for side in images.shape[1:])
    columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
    with MDSWriter(out=str(folder), columns=columns, size_limit="64mb") as writer:
        for index in range(len(images)):
            writer.write({"image": images[index].copy(), "label": index})


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    import torch
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()

    class Pictures(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return torch.from_numpy(sample["image"].copy()), sample["label"]

    dataset = Pictures(local=str(folder), shuffle=True, batch_size=setting.batch_size)
    return worker_loader(dataset, setting, shuffle=False)


PEERS = [Contestant("MosaicML Streaming", "streaming", build, open_shuffled, ("streaming",))]
