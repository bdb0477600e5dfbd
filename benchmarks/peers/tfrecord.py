"""TFRecord through the small `tfrecord` package: a file per worker, a buffer of 1,000 samples shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, worker_loader

NUM_FILES = 2
DESCRIPTION = {"image": "byte", "label": "int"}


class RecordStream:
    """Files dealt to workers; each file's samples through a shuffle buffer."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(str(path) for path in folder.glob("*.tfrecord"))
        self.shape = tuple(np.load(folder / "shape.npy").tolist())[1:]

    def __iter__(self) -> Iterator[Any]:
        import torch
        from tfrecord import iterator_utils, reader

        worker = torch.utils.data.get_worker_info()
        files = self.files if worker is None else self.files[worker.id :: worker.num_workers]
        for path in files:
            for record in iterator_utils.shuffle_iterator(reader.tfrecord_loader(path, None, DESCRIPTION), 1000):
                image = torch.frombuffer(bytearray(record["image"]), dtype=torch.uint8).view(self.shape)
                yield image, int(record["label"][0])


def build(source: Source, folder: Path) -> None:
    from tfrecord import TFRecordWriter

    images = source.images
    for part in range(NUM_FILES):
        writer = TFRecordWriter(str(folder / f"{part}.tfrecord"))
        for index in range(part, len(images), NUM_FILES):
            writer.write({"image": (images[index].tobytes(), "byte"), "label": (index, "int")})
        writer.close()
    np.save(folder / "shape.npy", images.shape)


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    from torch.utils.data import IterableDataset

    class Stream(RecordStream, IterableDataset):
        pass

    return worker_loader(Stream(folder), setting, shuffle=False)


PEERS = [Contestant("TFRecord", "tfrecord", build, open_shuffled, ("tfrecord",))]
