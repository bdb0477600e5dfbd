"""Picture options are for picture files: where they would have no effect they are refused, not ignored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from convert_samples import make_pictures, small

from h5cache import Writer, convert_dataset, estimate_dataset
from h5cache.convert.__main__ import main
from h5cache.convert.sources.class_folders import ClassFolders
from h5cache.errors import SchemaError

IMAGES = np.zeros((4, 3, 8, 8), np.uint8)


def npy_file(home: Path) -> Path:
    np.save(home / "a.npy", IMAGES)
    return home / "a.npy"


def pt_file(home: Path) -> Path:
    torch.save(torch.from_numpy(IMAGES), home / "a.pt")
    return home / "a.pt"


def pt_files(home: Path) -> Path:
    (home / "samples").mkdir()
    for number, image in enumerate(IMAGES):
        torch.save(torch.from_numpy(image).clone(), home / "samples" / f"{number}.pt")
    return home / "samples"


def h5cache_dataset(home: Path) -> Path:
    with Writer(home / "a.h5") as writer:
        writer.append(image=IMAGES)
    return home / "a.h5"


WITHOUT_PICTURES: dict[str, Callable[[Path], Path]] = {
    "arrays": npy_file,
    "pt-file": pt_file,
    "pt-files": pt_files,
    "h5cache": h5cache_dataset,
}
#: Each as it is by default where it has a default: even so it was asked for.
OPTIONS: dict[str, Any] = {
    "resize": 256,
    "size": 224,
    "fit": "crop",
    "layout": "CHW",
    "color": "rgb",
    "dtype": "uint8",
    "normalize": "imagenet",
}


@pytest.mark.parametrize("kind", WITHOUT_PICTURES)
@pytest.mark.parametrize("name", OPTIONS)
def test_picture_option_for_a_source_without_pictures_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    source = WITHOUT_PICTURES[kind](tmp_path)
    before = sorted(os.listdir(tmp_path))
    for estimate in ([], ["--estimate"]):
        code = main([str(source), str(tmp_path / "out.h5"), f"--{name}", str(OPTIONS[name]), *estimate])
        lines = capsys.readouterr().err.strip().splitlines()
        assert (code, len(lines)) == (2, 1)
        assert f"--{name}" in lines[0]
        assert repr(kind) in lines[0]
    assert sorted(os.listdir(tmp_path)) == before


def test_all_options_without_effect_are_named_at_once(tmp_path: Path) -> None:
    for function in (convert_dataset, estimate_dataset):
        with pytest.raises(SchemaError, match=r"size=, dtype= \(--size, --dtype\) would have no effect.*'arrays'"):
            function({"x": IMAGES}, tmp_path / "out.h5", size=8, dtype="float32")


def test_picture_option_for_a_dataset_or_an_iterable_is_refused_before_a_sample_is_taken(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="'dataset'"):
        convert_dataset([IMAGES[0], IMAGES[1]], tmp_path / "out.h5", size=8)
    arriving = iter(IMAGES)
    with pytest.raises(SchemaError, match="'iterable'"):
        convert_dataset(arriving, tmp_path / "out.h5", size=8)
    assert len(list(arriving)) == len(IMAGES)


def test_picture_option_beside_a_source_made_beforehand_is_refused(tmp_path: Path) -> None:
    make_pictures(tmp_path / "source", 4)
    with pytest.raises(SchemaError, match=r"resize=.*class-folders.*has its own"):
        convert_dataset(ClassFolders(tmp_path / "source"), tmp_path / "out.h5", resize=36)


def test_options_that_ask_for_nothing_suit_every_source(tmp_path: Path) -> None:
    result = convert_dataset({"x": IMAGES}, tmp_path / "a.h5", resize=None, size=None, normalize=None, workers=0)
    assert result.num_samples == 4
    assert (
        main([str(npy_file(tmp_path)), str(tmp_path / "b.h5"), "--resize", "0", "--size", "0", "--workers", "0"]) == 0
    )


def test_picture_options_left_out_are_those_of_the_default(tmp_path: Path) -> None:
    make_pictures(tmp_path / "source", 4)
    convert_dataset(tmp_path / "source", tmp_path / "a.h5", workers=0)
    small(tmp_path / "source", tmp_path / "b.h5", resize=256, size=224, fit="crop", layout="CHW", part_samples=None)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
