"""What the tests of conversion share: small pictures, the picture pipeline done by hand, digests, running commands."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from h5cache import H5TensorDataset
from h5cache.convert.api import convert_dataset
from h5cache.convert.result import ConvertResult
from h5cache.deal import plan_order

#: Short side and crop of the small pictures of these tests.
RESIZE, SIZE = 36, 32
CLASSES = ("cat", "dog", "emu")


def make_pictures(root: Path, count: int, seed: int = 0) -> list[str]:
    """Write class folders of small pictures, JPEG and PNG, each of its own size; return the keys, sorted."""
    rng = np.random.default_rng(seed)
    keys = []
    for number in range(count):
        key = f"{CLASSES[number % len(CLASSES)]}/{number:04d}.{'jpg' if number % 2 else 'png'}"
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        cv2.imwrite(str(path), cv2.resize(coarse, (40 + number % 9, 44 + number % 5), interpolation=cv2.INTER_CUBIC))
        keys.append(key)
    return sorted(keys)


def picture_by_hand(path: Path, resize: int = RESIZE, size: int = SIZE) -> npt.NDArray[np.uint8]:
    """The documented default, in plain cv2: short side, centre crop, RGB, CHW."""
    image = cv2.imread(str(path))
    height, width = image.shape[:2]
    short = min(height, width)
    target = tuple(resize if side == short else round(side * resize / short) for side in (width, height))
    image = cv2.resize(image, target, interpolation=cv2.INTER_AREA if short > resize else cv2.INTER_CUBIC)
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return np.ascontiguousarray(image[top : top + size, left : left + size, ::-1].transpose(2, 0, 1))


def check_pixels(out: Path, source: Path, resize: int = RESIZE, size: int = SIZE) -> list[str]:
    """Compare every sample with the pipeline done by hand, and its label with its folder; return the keys in order."""
    with H5TensorDataset(out) as dataset:
        images, labels = dataset[:]
        keys = dataset.index["key"].tolist()
        for key, image, label in zip(keys, images.numpy(), labels.tolist(), strict=True):
            np.testing.assert_array_equal(image, picture_by_hand(source / key, resize, size), err_msg=key)
            assert dataset.classes[label] == key.split("/")[0]
    return keys


def small(source: Path, out: Path, **options: object) -> ConvertResult:
    """Convert with small pictures and small parts."""
    defaults: dict[str, object] = {"resize": RESIZE, "size": SIZE, "workers": 0}
    parts = {"part_samples": 16} if out.suffix == ".h5" else {"shard_size": 16}
    return convert_dataset(source, out, **{**defaults, **parts, **options})  # type: ignore[arg-type]


def digest(path: Path) -> str:
    """The digest of a file, or of a folder with the names of its files."""
    found = hashlib.sha256()
    for one in sorted(path.iterdir()) if path.is_dir() else [path]:
        if path.is_dir():
            found.update(one.name.encode())
        found.update(one.read_bytes())
    return found.hexdigest()


def command(*arguments: object, small_parts: bool = True) -> list[str]:
    """Return the command line of a small conversion."""
    usual = ["--resize", RESIZE, "--size", SIZE, "--part-samples", 16] if small_parts else []
    return [sys.executable, "-m", "h5cache.convert", *map(str, [*arguments, *usual])]


def run_command(*arguments: object, small_parts: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, small_parts=small_parts),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def key_at(keys: list[str], place: int, seed: int = 0) -> str:
    """Return the key of the sample that is stored at a place."""
    return keys[int(plan_order(len(keys), seed, True)[place])]


def spoil(source: Path, key: str) -> None:
    """Make a file unreadable; its time stays, so that only the bytes tell."""
    path = source / key
    times = path.stat()
    path.write_bytes(b"this is not a picture")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def leftovers(out: Path) -> list[str]:
    """Return what lies beside an output, apart from itself."""
    return sorted(name for name in os.listdir(out.parent) if name.startswith(out.name) and name != out.name)
