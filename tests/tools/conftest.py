"""Small datasets to look at, and the doors as a shell runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5cache import Field, Writer

NUM_SAMPLES = 100
CLASSES = ("cat", "dog", "owl")
SHAPE = (3, 96, 96)


def pictures(count: int) -> np.ndarray[Any, Any]:
    """Smooth uint8 pictures with a little noise, all different."""
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(SHAPE[1]), np.arange(SHAPE[2])) + rng.integers(0, 60, (count, SHAPE[0], 1, 1))
    return (ramp + rng.integers(0, 4, (count, *SHAPE))).astype(np.uint8)


def labels(count: int) -> np.ndarray[Any, Any]:
    """Half cats, 30 % dogs, the rest owls."""
    return np.repeat([0, 1, 2], [count // 2, count * 3 // 10, count - count // 2 - count * 3 // 10]).astype(np.int64)


def keys(count: int) -> list[str]:
    return [f"{CLASSES[label]}/{number:04d}.jpg" for number, label in enumerate(labels(count).tolist())]


def write(path: Path, image: np.ndarray[Any, Any], **options: Any) -> Path:
    count = len(image)
    fields = {"image": Field(image.dtype.name, SHAPE, chunk_samples=16), "label": Field("int64")}
    with Writer(path, fields, classes=CLASSES, **options) as writer:
        writer.append(image=image, label=labels(count), key=keys(count))
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "train.h5", pictures(NUM_SAMPLES), provenance={"transform": "none"})


@pytest.fixture
def normalised(tmp_path: Path) -> Path:
    return write(tmp_path / "normalised.h5", pictures(NUM_SAMPLES) / np.float32(255))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "train", pictures(NUM_SAMPLES), shard_samples=32)


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    import h5py

    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        image = pictures(NUM_SAMPLES)
        file.create_dataset("x", data=image, chunks=(8, *SHAPE), compression="gzip", shuffle=True)
        file.create_dataset("y", data=labels(NUM_SAMPLES))
    return path


Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run `python -m MODULE ...` in an empty folder, so that nothing but the installed package is found."""

    def run(module: str, *argv: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(module, argv),
            cwd=tmp_path,
            env=environment(env),
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )

    return run


def command(module: str, argv: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", module, *map(str, argv)]


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return {**kept, "PYTHONPATH": root, "PYTHONUTF8": "1", "TERM": "xterm", **(more or {})}
