"""Bytes flipped anywhere in a file, metadata included: right data or an error of ours, never another, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("fuzz_reader.py")


def run_fuzz(path, seed, count):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(path), str(seed), "0", str(count)],
        check=False, capture_output=True, text=True, timeout=100 + count, env=environment,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:] or ["nothing"]
    assert done.returncode == 0, f"seed {seed}, {last[0]}: ended with {done.returncode}\n{done.stderr[-3000:]}"


def test_flipped_bytes_never_give_wrong_data_nor_a_strange_error(mixed):
    run_fuzz(mixed[0], 0, 300)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_flipped_bytes_never_give_wrong_data_nor_a_strange_error(mixed, seed):
    run_fuzz(mixed[0], seed, 2000)
