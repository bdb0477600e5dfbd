"""The limits of the machine: the codec, preadv and memory alone, with no loader around them.

Threads share the samples; nothing is handed over, so that no loader can be faster.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contestant, Epoch, Setting, Source
from own import build_compressed, build_uncompressed

__all__ = ["CODEC", "LIMITS", "MEMORY", "PREADV", "open_codec"]

CODEC, PREADV, MEMORY = "limit of the codec", "limit of preadv", "limit of memory"

Work = Callable[[int], None]


def run_in_threads(work: Work, threads: int, num_samples: int) -> Iterator[int]:
    """Run `work(thread)` in each thread; yield the number of samples when all are done."""
    errors: list[BaseException] = []

    def guarded(thread: int) -> None:
        try:
            work(thread)
        except BaseException as exc:
            errors.append(exc)

    running = [threading.Thread(target=guarded, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    yield num_samples


def open_codec(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    """Decode whole chunks that are in memory already, each thread into one chunk's memory."""
    from h5cache.codecs.blosc2_frame import read_frame
    from h5cache.codecs.blosc2_library import LibraryDecompressor, _Context, decompressor
    from h5cache.format.open import open_dataset

    path = folder / "data.h5"
    storage = open_dataset(path).storage["image"]
    library = decompressor()
    assert isinstance(library, LibraryDecompressor), "the limit is measured through the C library"
    stored = np.fromfile(path, np.uint8)
    spans = []
    for offset, nbytes in zip(storage.chunk_offsets.tolist(), storage.chunk_nbytes.tolist(), strict=True):
        frame = read_frame(stored[offset : offset + nbytes])
        spans.append((stored.ctypes.data + offset + frame.chunk_start, frame.chunk_nbytes))
    chunk_nbytes = storage.layout.chunk_nbytes
    num_samples = open_dataset(path).num_samples

    def work(thread: int) -> None:
        out = np.empty(chunk_nbytes, np.uint8)
        context = _Context(library._library)
        for address, nbytes in spans[thread :: setting.threads]:
            got = library._decompress(context.pointer, address, nbytes, out.ctypes.data, chunk_nbytes)
            assert got == chunk_nbytes, got
        assert stored is not None  # keeps the memory behind the addresses

    return lambda: run_in_threads(work, setting.threads, num_samples)


def _batches(setting: Setting, num_samples: int, seed: int) -> list[np.ndarray[Any, Any]]:
    order = np.random.default_rng(seed).permutation(num_samples)
    return np.split(order, range(setting.batch_size, num_samples, setting.batch_size))


def _memory(setting: Setting, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Return one batch per thread, its pages already there."""
    return [np.ones((setting.batch_size, *shape), np.uint8) for _ in range(setting.threads)]


def open_preadv(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    """Read samples in random order, each by one preadv, into the rows of a batch."""
    images = Source(folder).images
    base, num_samples, nbytes = images.offset, len(images), images[0].nbytes
    batches, targets = _batches(setting, num_samples, 0), _memory(setting, (nbytes,))
    descriptor = os.open(folder / "images.npy", os.O_RDONLY)

    def work(thread: int) -> None:
        rows = [memoryview(row) for row in targets[thread]]
        for batch in batches[thread :: setting.threads]:
            for row, sample in zip(rows, batch.tolist(), strict=False):
                assert os.preadv(descriptor, (row,), base + sample * nbytes) == nbytes

    return lambda: run_in_threads(work, setting.threads, num_samples)


def open_memory(folder: Path, setting: Setting) -> Callable[[], Epoch]:
    """Copy samples in random order out of mapped pages into the rows of a batch."""
    images = Source(folder).images
    batches, targets = _batches(setting, len(images), 0), _memory(setting, images.shape[1:])

    def work(thread: int) -> None:
        for batch in batches[thread :: setting.threads]:
            np.take(images, batch, axis=0, out=targets[thread][: len(batch)], mode="clip")

    return lambda: run_in_threads(work, setting.threads, len(images))


LIMITS = [
    Contestant(CODEC, "h5cache", build_compressed, open_codec, ("h5cache", "blosc2"), reads_files=False),
    Contestant(PREADV, "none", build_uncompressed, open_preadv, reads_source=True),
    Contestant(MEMORY, "none", build_uncompressed, open_memory, reads_source=True),
]
