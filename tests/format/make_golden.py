"""Make the golden files of format version 1. Made once; it refuses to make them again.

Files that users wrote years ago must read for ever, so these are never replaced: a new format version gets new ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from h5cache import Blosc, Blosc2, Field, Raw, Writer, Zstd

GOLDEN = Path(__file__).with_name("golden")
COUNT = 11
CLASSES = ("cat", "dog", "é")

FIELDS = {
    "image": Field("uint8", (3, 16, 16), Blosc2(), chunk_samples=4),
    "hwc": Field("uint8", (8, 8, 3), Blosc2(filter="shuffle+bytedelta"), chunk_samples=8),
    "own": Field("uint8", (1, 128, 128), Blosc2(cname="lz4"), chunk_samples=2),
    "bits": Field("int16", (40,), Blosc2(filter="bitshuffle"), chunk_samples=4),
    "old": Field("int32", (40,), Blosc(), chunk_samples=4),
    "packed": Field("float64", (20,), Zstd(), chunk_samples=4),
    "raw": Field("float16", (20,), Raw(), chunk_samples=4),
    "norm": Field("float32", (3, 8, 8), Blosc2(), chunk_samples=4, exact="codes"),
    "brain": Field("bfloat16", (6,), Raw(), chunk_samples=4),
    "mask": Field("bool", (30,), Zstd(), chunk_samples=8),
    "label": Field("int64"),
    "box": Field("float32", (4,)),
}


def golden_sample(name: str, count: int = COUNT) -> np.ndarray:
    """Make a field's samples by integer arithmetic alone, the same with any numpy, in the stored dtype."""
    field = FIELDS[name]
    size = int(np.prod(field.shape, dtype=np.int64))
    i, n = np.arange(count)[:, None], np.arange(size)[None]
    value = (n // 3 % 50 + n * n // 700 % 40 + i * 17 + n * i % 3).reshape(count, *field.shape)
    if name == "image":
        value[4:8] = 0  # a whole chunk of zeros
    if name == "own":
        value = (n // 128 + i * 5).reshape(value.shape)  # blocks of one sample, 16 KiB each: must compress well
    if name == "norm":
        # As ToTensor and Normalize do. Single operations of IEEE 754: the same bits everywhere.
        scaled = (value % 256).astype(np.float32) / np.float32(255)
        mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
        return (scaled - mean) / np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    if name == "mask":
        return value % 3 == 0
    if name == "label":
        return np.arange(count) % 3
    stored = field.stored_dtype
    return (value % 251).astype(stored) if stored.kind in "ui" else (value / 8).astype(stored)


def golden_keys(count: int = COUNT) -> list[str]:
    return [f"{CLASSES[i % 3]}/{i:04d}.png" for i in range(count)]


def write(path: Path, names: list[str], **options: object) -> None:
    with Writer(path, {name: FIELDS[name] for name in names}, classes=CLASSES, **options) as writer:
        writer.append(**{name: golden_sample(name) for name in names}, key=golden_keys())


def main() -> None:
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN} exists: golden files are made once and never again")
    GOLDEN.mkdir()
    write(GOLDEN / "v1.h5", list(FIELDS))
    write(GOLDEN / "v1-shards", ["image", "norm", "raw", "label"], shard_samples=8)


if __name__ == "__main__":
    main()
