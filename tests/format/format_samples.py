"""Small picture-like data, made by arithmetic, and datasets of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from h5cache import Blosc2, Field, H5TensorDataset, Writer
from h5cache.schema import STORED_AS


def make_samples(count: int, shape: tuple[int, ...], dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    """Return smooth, slightly noisy samples in the stored dtype: they compress, and no two are the same."""
    rng = np.random.default_rng((seed, count, *shape))
    size = int(np.prod(shape))
    ramp = np.linspace(0, 90, size)[None] + np.arange(count)[:, None] * 3.0 + rng.integers(0, 3, (count, size))
    stored = np.dtype(STORED_AS[dtype])
    if stored.kind == "b":
        values = ramp % 7 < 3
    elif stored.kind == "f":
        values = ramp / 16 - 3
    else:
        values = ramp.astype(np.int64) % np.iinfo(stored).max
    return values.astype(stored).reshape(count, *shape)


def make_normalised(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return float32 pictures as `ToTensor` and `Normalize` make them: 256 values per channel."""
    codes = make_samples(count, shape, "uint8", seed)
    return ((codes.astype(np.float32) / np.float32(255) - np.float32(0.485)) / np.float32(0.229)).astype(np.float32)


#: Every kind of storage there is: coded, all zeros, raw in chunks, exact codes, several samples per block, small.
MIXED = {
    "image": Field("uint8", (3, 75, 75), codec=Blosc2(), chunk_samples=4),
    "depth": Field("uint16", (6, 5), codec="blosc2", chunk_samples=8),
    "raw": Field("float32", (10,), codec="none", chunk_samples=8),
    "norm": Field("float32", (3, 8, 8), codec="blosc2", chunk_samples=8, exact="codes"),
    "packed": Field("int32", (50,), codec="zstd", chunk_samples=4),
    "old": Field("int16", (3, 20, 20), codec="blosc", chunk_samples=4),
    "label": Field("int64"),
}


def mixed_samples(count: int) -> dict[str, np.ndarray]:
    """Return samples of the fields `MIXED`. Images 4 to 7, a chunk of their own, are zeros."""
    made = {
        name: make_samples(count, field.shape, field.dtype, seed) for seed, (name, field) in enumerate(MIXED.items())
    }
    made["norm"] = make_normalised(count, MIXED["norm"].shape)
    made["image"][4:8] = 0
    made["label"] = np.arange(count) * 7 % 5
    return made


def mixed_keys(count: int) -> list[str]:
    return [f"class{i % 5}/picture-{i:03d}.jpg" for i in range(count)]


def write_mixed(path: Path, count: int = 18, **options: object) -> dict[str, np.ndarray]:
    """Write `count` samples of every kind of storage, with an edge chunk, and return them."""
    samples = mixed_samples(count)
    with Writer(path, MIXED, classes=("a", "b", "c", "d", "e"), **options) as writer:
        writer.append(**samples, key=mixed_keys(count))
    return samples


def assert_reads(path: Path, samples: dict[str, np.ndarray], verify: str = "first") -> None:
    """Every sample, one by one and shuffled, comes back bit for bit."""
    count = len(next(iter(samples.values())))
    order = np.random.default_rng(1).permutation(count)
    with H5TensorDataset(path, as_dict=True, verify=verify) as dataset:
        assert len(dataset) == count
        batch = dataset[order]
        for name, expected in samples.items():
            np.testing.assert_array_equal(batch[name].numpy(), expected[order], err_msg=name)
        last = dataset[count - 1]
        for name, expected in samples.items():
            np.testing.assert_array_equal(last[name].numpy(), expected[-1], err_msg=name)


def needs_tool(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed (Debian: hdf5-tools)")
