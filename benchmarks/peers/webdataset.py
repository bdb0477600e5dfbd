"""WebDataset: tar files of 256 samples, shards and a buffer of 1,000 samples shuffled, batched in the workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, worker_loader

SHARD_SAMPLES = 256


def build(source: Source, folder: Path) -> None:
    import webdataset

    images = source.images
    np.save(folder / "shape.npy", images.shape)
    with webdataset.ShardWriter(str(folder / "%06d.tar"), maxcount=SHARD_SAMPLES, verbose=0) as writer:
        for index in range(len(images)):
            writer.write({"__key__": f"{index:08d}", "bin": images[index].tobytes(), "cls": index})


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    import torch
    import webdataset

    shape = tuple(np.load(folder / "shape.npy").tolist())[1:]

    def to_tensors(sample: Any) -> Any:
        return torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8).view(shape), int(sample["cls"])

    shards = sorted(str(path) for path in folder.glob("*.tar"))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None, empty_check=False)
        .shuffle(1000)
        .map(to_tensors)
        .batched(setting.batch_size, collation_fn=torch.utils.data.default_collate)
    )
    return worker_loader(dataset, setting, batch_size=None)


PEERS = [Contestant("WebDataset", "webdataset", build, open_shuffled, ("webdataset",))]
