"""The same samples make the same bytes: whatever the run, directory, batches, parts or process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from format_samples import MIXED, mixed_keys, mixed_samples, write_mixed

from h5cache import Field, Writer
from h5cache.format import writer as writer_module

HERE = Path(__file__).parent


def bytes_of(path):
    """The bytes of a file, or of each file of a folder by name."""
    if path.is_file():
        return path.read_bytes()
    return {found.name: found.read_bytes() for found in sorted(path.iterdir())}


def write_batches(path, count, batch, **options):
    samples, keys = mixed_samples(count), mixed_keys(count)
    with Writer(path, MIXED, classes=("a", "b", "c", "d", "e"), **options) as writer:
        for start in range(0, count, batch):
            rows = slice(start, start + batch)
            writer.append(**{name: array[rows] for name, array in samples.items()}, key=keys[rows])


@pytest.mark.parametrize("name, options", [("x.h5", {}), ("x", {"shard_samples": 8})])
def test_second_run_in_another_directory_is_byte_identical(tmp_path, name, options):
    for folder in ("one", "another directory"):
        (tmp_path / folder).mkdir()
        write_mixed(tmp_path / folder / name, 20, **options)
    assert bytes_of(tmp_path / "one" / name) == bytes_of(tmp_path / "another directory" / name)


@pytest.mark.parametrize("batch", [1, 3, 8, 19])
@pytest.mark.parametrize("name, options", [("x.h5", {}), ("x", {"shard_samples": 8})])
def test_size_of_batches_changes_no_byte(tmp_path, name, options, batch):
    (tmp_path / "whole").mkdir()
    write_batches(tmp_path / "whole" / name, 20, 20, **options)
    write_batches(tmp_path / name, 20, batch, **options)
    assert bytes_of(tmp_path / name) == bytes_of(tmp_path / "whole" / name)


@pytest.mark.parametrize("part_samples", [1, 16, 24])
@pytest.mark.parametrize("count", [16, 20, 37])
def test_number_of_parts_changes_no_byte(tmp_path, monkeypatch, part_samples, count):
    write_batches(tmp_path / "whole.h5", count, 7)
    monkeypatch.setattr(writer_module, "PART_SAMPLES", part_samples)
    write_batches(tmp_path / "parts.h5", count, 7, resume=True)
    assert bytes_of(tmp_path / "parts.h5") == bytes_of(tmp_path / "whole.h5")


def test_automatic_codecs_and_parts_change_no_byte(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = (rng.integers(0, 3, (40, 3, 150, 150)).cumsum(-1) % 256).astype(np.uint8)
    fields = {"image": Field("uint8", (3, 150, 150), chunk_samples=8), "label": Field("int32")}
    for name, part_samples in (("few.h5", 1024), ("many.h5", 8)):
        monkeypatch.setattr(writer_module, "PART_SAMPLES", part_samples)
        with Writer(tmp_path / name, fields, resume=True) as writer:
            writer.append(image=images, label=np.arange(40, dtype=np.int32))
    assert bytes_of(tmp_path / "few.h5") == bytes_of(tmp_path / "many.h5")


def test_another_process_writes_the_same_bytes(tmp_path):
    write_mixed(tmp_path / "here.h5", 20)
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import format_samples, pathlib; " + (
        "format_samples.write_mixed(pathlib.Path('there.h5'), 20)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment, timeout=60)
    assert bytes_of(tmp_path / "there.h5") == bytes_of(tmp_path / "here.h5")


def test_file_holds_nothing_of_its_time_place_or_machine(tmp_path):
    path = tmp_path / "somewhere-special.h5"
    write_mixed(path, 20)
    data = path.read_bytes()
    words = [
        b"somewhere-special",
        os.fsencode(tmp_path),
        socket.gethostname().encode(),
        time.strftime("%Y-%m-%d").encode(),
    ]
    assert [word for word in words if len(word) > 3 and word in data] == []
