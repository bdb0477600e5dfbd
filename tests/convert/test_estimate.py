"""Estimates: near the truth, for each sensible choice; and a run that would not fit does not start."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from convert_samples import RESIZE, SIZE, small, spoil

from h5cache.convert.__main__ import main
from h5cache.convert.problems import NoRoomError

USUAL = ["--resize", str(RESIZE), "--size", str(SIZE), "--workers", "1"]


def test_estimate_is_near_the_truth_and_writes_nothing(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(pictures), str(tmp_path / "out.h5"), *USUAL, "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert os.listdir(tmp_path) == []
    result = small(pictures, tmp_path / "out.h5", part_samples=1024)
    chosen = next(choice for choice in found["choices"] if choice["chosen"])
    assert abs(chosen["nbytes"] / result.nbytes - 1) < 0.2
    assert found["fits"]
    assert found["needed_nbytes"] == 2 * chosen["nbytes"]


def test_estimate_shows_sizes_times_and_speeds_of_choices(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*USUAL, "--dtype", "float32", "--normalize", "imagenet"]
    assert main([str(pictures), str(tmp_path / "out"), *options, "--estimate"]) == 0
    text = capsys.readouterr().out
    for word in ("float16", "exact 8-bit codes", "none", "samples/s", "time", "disk: needs", "fits"):
        assert word in text


def test_estimate_names_bad_samples_it_met(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: list[str]
) -> None:
    shutil.copytree(pictures, tmp_path / "source")
    spoil(tmp_path / "source", keys[0])
    assert main([str(tmp_path / "source"), str(tmp_path / "out.h5"), *USUAL, "--estimate"]) == 0
    assert keys[0] in capsys.readouterr().err


def test_run_that_does_not_fit_refuses_to_start(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = small(pictures, tmp_path / "out.h5").nbytes
    (tmp_path / "out.h5").unlink()
    usage = shutil.disk_usage(tmp_path)._replace(free=int(1.4 * nbytes))
    monkeypatch.setattr("h5cache.convert.run.shutil.disk_usage", lambda _: usage)
    with pytest.raises(NoRoomError, match="force"):
        small(pictures, tmp_path / "out.h5")
    assert os.listdir(tmp_path) == []
    small(pictures, tmp_path / "out", progress=False)  # a folder needs it once
    small(pictures, tmp_path / "out.h5", force=True)
