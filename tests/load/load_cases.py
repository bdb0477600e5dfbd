"""The samples that the tests of loading share: every kind of field, known by number."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import torch

from h5cache import Field, H5TensorDataset, Writer

NUM = 75
FIELDS = {
    "big": Field("uint8", (3, 80, 72), chunk_samples=8),  # a block of its own
    "big_codes": Field("float32", (3, 80, 72), chunk_samples=8),
    "small": Field("uint8", (3, 12, 10), chunk_samples=16),  # several share a block
    "codes": Field("float32", (3, 12, 10), chunk_samples=4),
    "hwc": Field("uint8", (12, 10, 3), chunk_samples=16, codec="zstd"),
    "half": Field("bfloat16", (20,), chunk_samples=8),
    "raw": Field("uint8", (6, 7), codec="none", chunk_samples=16),
    "number": Field("int64"),
}


@functools.cache
def content() -> dict[str, torch.Tensor]:
    """What the datasets hold, pictures as (N, C, H, W)."""
    generator = torch.Generator().manual_seed(0)
    big = torch.randint(0, 256, (NUM, 3, 80, 72), generator=generator, dtype=torch.uint8)
    small = torch.randint(0, 256, (NUM, 3, 12, 10), generator=generator, dtype=torch.uint8)
    return {
        "big": big,
        "big_codes": (big.float() / 255 - 0.5) / 0.3,
        "small": small,
        "codes": (small.float() / 255 - 0.45) / 0.25,
        "hwc": small.flip(2),
        "half": torch.randn(NUM, 20, generator=generator).bfloat16(),
        "raw": small[:, 0, :6, :7].clone(),
        "number": torch.arange(NUM),
    }


def write(path: str) -> str:
    rows = content()
    with Writer(path, FIELDS, shard_samples=32) as w:
        w.append(**{**rows, "hwc": rows["hwc"].permute(0, 2, 3, 1)}, key=[f"k{number}" for number in range(NUM)])
    return path


def check(batch: dict[str, torch.Tensor]) -> list[int]:
    """Assert that a batch is its samples, bit for bit and contiguous; return their numbers."""
    numbers = batch["number"]
    for name, found in batch.items():
        expected = content()[name][numbers]
        assert found.dtype == expected.dtype, name
        assert torch.equal(found, expected), name
        kind = torch.channels_last if name == "hwc" else torch.contiguous_format
        assert found.is_contiguous(memory_format=kind), name
    return numbers.tolist()


def expected_batches(loader: Any, epoch: int) -> list[list[int]]:
    """Return the numbers of each batch as the order's arithmetic has them."""
    order = loader._order.epoch(epoch)
    return [order.batch(g).tolist() for g in range(order.num_batches)]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def numbers_of(batches: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in batches]


def open_numbers(path: str, **options: Any) -> H5TensorDataset:
    return H5TensorDataset(path, ["number"], as_dict=True, **options)


def run_script(text: str, *args: str, timeout_s: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(text), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **options)


def open_files() -> set[str]:
    """Return what this process's descriptors name."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return found
