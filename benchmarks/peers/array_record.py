"""ArrayRecord: records read in random order, a batch at a time by its threads in each worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source, worker_loader


class RecordDataset:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "data.array_record")
        self.shape = tuple(np.load(folder / "shape.npy").tolist())
        self.reader: Any = None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if self.reader is None:
            from array_record.python.array_record_module import ArrayRecordReader

            self.reader = ArrayRecordReader(self.path, options="readahead_buffer_size:0")
        import torch

        records = self.reader.read(list(indices))
        return [
            (torch.frombuffer(bytearray(record), dtype=torch.uint8).view(self.shape[1:]), index)
            for record, index in zip(records, indices, strict=True)
        ]


def build(source: Source, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    images = source.images
    writer = ArrayRecordWriter(str(folder / "data.array_record"), "group_size:1,uncompressed")
    for index in range(len(images)):
        writer.write(images[index].tobytes())
    writer.close()
    np.save(folder / "shape.npy", images.shape)


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    return worker_loader(RecordDataset(folder), setting)


PEERS = [Contestant("ArrayRecord", "array-record", build, open_shuffled, ("array_record",))]
