"""What opening a large dataset costs, and how long Python holds the GIL for a sample."""

from __future__ import annotations

import ctypes
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

__all__ = ["measure_gil", "measure_opening"]

#: The smallest sample that has a block, and so a row in the tables, of its own: the dearest to open for its size.
OWN_BLOCK_SHAPE = (1, 128, 128)
TINY_SHAPE = (3, 4, 4)
STEP = 4096


def measure_opening(work: Path, num_samples: int, repeat: int) -> dict[str, dict[str, float]]:
    """Return, for tiny samples and for those with a block each, seconds to open and bytes when pickled."""
    return {
        "sharing blocks": _measure_opening(work / "opening-shared.h5", num_samples, TINY_SHAPE, repeat),
        "a block each": _measure_opening(work / "opening-own.h5", num_samples, OWN_BLOCK_SHAPE, repeat),
    }


def _measure_opening(path: Path, num_samples: int, shape: tuple[int, ...], repeat: int) -> dict[str, float]:
    import h5py

    from h5cache import H5TensorDataset

    if not path.exists():
        _write(path, num_samples, shape)

    def open_with_libhdf5() -> None:
        h5py.File(path, "r").close()

    own = min(_time(lambda: H5TensorDataset(path)) for _ in range(repeat))
    libhdf5 = min(_time(open_with_libhdf5) for _ in range(repeat))
    return {
        "samples": num_samples,
        "open_s": own,
        "libhdf5_open_s": libhdf5,
        "pickled_nbytes_per_sample": len(pickle.dumps(H5TensorDataset(path))) / num_samples,
    }


def _write(path: Path, num_samples: int, shape: tuple[int, ...]) -> None:
    from h5cache import Field, Writer

    # Stripes: quick to compress, but not zeros, which are not stored at all.
    nbytes = int(np.prod(shape))
    stripes = (np.arange(STEP * nbytes, dtype=np.uint32) // 64 % 251 + 1).astype(np.uint8).reshape(STEP, *shape)
    with Writer(path, {"image": Field("uint8", shape, "blosc2"), "label": Field("int64")}) as writer:
        for start in range(0, num_samples, STEP):
            count = min(STEP, num_samples - start)
            writer.append(image=stripes[:count], label=np.arange(start, start + count))


def _time(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_gil(folder: Path, batch_size: int, repeat: int) -> dict[str, float | None]:
    """Return microseconds of Python per sample of a compressed dataset, shuffled, by two methods.

    One thread, the consumer's, does everything. By the clock: the time of an epoch without that in pread and decode.
    By empty calls: the time of an epoch whose preadv returns at once and whose decoder is a C function that does
    nothing, called through ctypes like the true one; this also counts what those calls do under the GIL.
    """
    from h5cache import H5TensorDataset

    dataset = H5TensorDataset(folder / "data.h5")
    loader = dataset.loader(batch_size, "full", threads=0)
    _exhaust(loader)  # checksums are checked on the first read
    clock = []
    for _ in range(repeat):
        elapsed = _time(lambda: _exhaust(loader))
        stats = loader.stats()
        clock.append((elapsed - stats.read_s - stats.decode_s) / len(dataset))
    return {"by_clock_us": min(clock) * 1e6, "by_empty_calls_us": _time_empty_calls(dataset, loader, repeat)}


def _time_empty_calls(dataset: Any, loader: Any, repeat: int) -> float | None:
    from h5cache.codecs.blosc2_library import LibraryDecompressor, decompressor

    library = decompressor()
    if not isinstance(library, LibraryDecompressor):
        return None
    # labs() returns its first argument, which is the context: given the size of a sample, that is what decoding
    # a sample returns.
    empty = ctypes.CDLL(None).labs
    empty.argtypes, empty.restype = library._decompress.argtypes, ctypes.c_int
    context = SimpleNamespace(pointer=dataset.schema["image"].sample_nbytes)

    def preadv(_: int, buffers: Any, __: int) -> int:
        return int(buffers[0].nbytes)

    with (
        mock.patch.object(library, "_decompress", empty),
        mock.patch.object(library._contexts, "context", context),
        mock.patch.object(os, "preadv", preadv),
    ):
        best = min(_time(lambda: _exhaust(loader)) for _ in range(repeat))
    return best / len(dataset) * 1e6


def _exhaust(loader: Any) -> None:
    for _ in loader:
        pass
