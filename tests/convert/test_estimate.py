"""Estimates: near the truth, for each sensible choice; and a run that would not fit does not start."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from convert_samples import RESIZE, SIZE, small, spoil

import h5cache
from h5cache import convert_dataset, estimate_dataset
from h5cache.convert.__main__ import main
from h5cache.convert.problems import NoRoomError
from h5cache.errors import SchemaError

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


def test_estimate_takes_what_a_conversion_takes_but_for_its_run() -> None:
    ours, theirs = (inspect.signature(one).parameters for one in (estimate_dataset, convert_dataset))
    assert set(theirs) - set(ours) == {"executor", "on_error", "overwrite", "force", "progress", "check_stop"}
    assert [(name, one.default, one.kind) for name, one in ours.items()] == [
        (name, one.default, one.kind) for name, one in theirs.items() if name in ours
    ]
    assert "estimate_dataset" in h5cache.__all__


def test_estimate_and_conversion_of_the_same_options_agree(pictures: Path, tmp_path: Path) -> None:
    options = {
        "resize": RESIZE,
        "size": SIZE,
        "dtype": "float32",
        "normalize": "0.5,0.25",
        "batch_transform": lambda batch: {"image": batch["image"], "double": np.asarray(batch["label"]) * 2},
        "batch_size": 7,
        "codec": "zstd",
        "workers": 0,
        "split": None,
        "part_samples": 32,
    }
    found = estimate_dataset(pictures, tmp_path / "out.h5", **options)
    assert os.listdir(tmp_path) == []
    result = convert_dataset(pictures, tmp_path / "out.h5", **options)
    assert (found.field, found.num_samples) == ("image", 100)
    assert found.choices[0].codec == "zstd"
    assert abs(found.choices[0].nbytes / result.nbytes - 1) < 0.2
    estimate_dataset(pictures, tmp_path / "out.h5", **options)  # although it exists


def test_estimate_counts_small_parts(tmp_path: Path) -> None:
    rows = np.repeat(np.random.default_rng(0).random((64, 100), np.float32), 64, axis=0)
    sizes = [
        estimate_dataset({"x": rows}, tmp_path / "out.h5", codec="zstd", part_samples=part_samples).choices[0].nbytes
        for part_samples in (None, 1)
    ]
    assert sizes[0] != sizes[1]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"split": "train=0.5"}, "add up"), ({"shard_size": "12 parsecs"}, "parsecs"), ({"workers": -1}, "workers")],
)
def test_estimate_refuses_the_options_that_a_conversion_would_refuse(
    pictures: Path, tmp_path: Path, options: dict[str, object], word: str
) -> None:
    with pytest.raises(SchemaError, match=word):
        estimate_dataset(pictures, tmp_path / "out.h5", **options)  # type: ignore[arg-type]
