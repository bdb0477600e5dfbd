"""One `.pt` file per sample, by `torch.save` and `torch.load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from contest import Contestant, Epoch, Setting, Source, worker_loader


class FileDataset:
    def __init__(self, folder: Path) -> None:
        self.files = sorted(str(path) for path in folder.glob("*.pt"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.load(self.files[index])


def build(source: Source, folder: Path) -> None:
    import torch

    images = source.images
    for index in range(len(images)):
        torch.save((torch.from_numpy(images[index].copy()), index), folder / f"{index:08d}.pt")


def open_shuffled(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    return worker_loader(FileDataset(folder), setting)


PEERS = [Contestant(".pt files", "pt-files", build, open_shuffled, ())]
