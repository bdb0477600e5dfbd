"""Bad files never cost the run: reported, or skipped with holes filled from the tail. Always the same bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from convert_samples import check_pixels, digest, key_at, leftovers, make_pictures, run_command, small, spoil

from h5cache import H5TensorDataset, convert_dataset
from h5cache.convert.problems import BadInputsError
from h5cache.errors import H5CacheError
from h5cache.format.open import open_dataset

#: The first, one in the middle, two of one chunk, the last.
PLACES = (0, 37, 50, 51, 99)


@pytest.fixture
def spoilt(pictures: Path, keys: list[str], tmp_path: Path) -> Path:
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    for place in PLACES:
        spoil(source, key_at(keys, place))
    return source


@pytest.mark.parametrize("name", ["out.h5", "out"])
def test_report_lists_all_bad_files_and_publishes_nothing(
    spoilt: Path, keys: list[str], tmp_path: Path, name: str
) -> None:
    with pytest.raises(BadInputsError) as caught:
        small(spoilt, tmp_path / name, workers=2)
    assert [one.key for one in caught.value.bad] == [key_at(keys, place) for place in PLACES]
    assert all(one.reason for one in caught.value.bad)
    with pytest.raises(H5CacheError):
        open_dataset(tmp_path / name)


@pytest.mark.parametrize("name", ["out.h5", "out"])
def test_skip_fills_holes_from_the_tail(spoilt: Path, keys: list[str], tmp_path: Path, name: str) -> None:
    result = small(spoilt, tmp_path / name, on_error="skip", workers=2)
    bad = [key_at(keys, place) for place in PLACES]
    assert [one.key for one in result.skipped] == bad
    found = check_pixels(tmp_path / name, spoilt)
    assert sorted(found) == sorted(set(keys) - set(bad))
    expected = [key_at(keys, place) for place in range(95)]
    for hole, filler in ((0, 98), (37, 97), (50, 96), (51, 95)):
        expected[hole] = key_at(keys, filler)
    assert found == expected
    skipped = open_dataset(tmp_path / name).provenance["skipped"]
    assert [key for key, _ in skipped] == bad
    assert leftovers(tmp_path / name) == []


@pytest.mark.parametrize("name", ["out.h5", "out"])
def test_skip_after_a_report_converts_nothing_again_and_gives_the_same_bytes(
    spoilt: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "other").mkdir()
    small(spoilt, tmp_path / "other" / name, on_error="skip")
    with pytest.raises(BadInputsError):
        small(spoilt, tmp_path / name, workers=2)
    result = small(spoilt, tmp_path / name, on_error="skip")
    assert result.num_converted == 0
    assert result.num_samples == 95
    assert digest(tmp_path / name) == digest(tmp_path / "other" / name)


@pytest.mark.parametrize("name", ["out.h5", "out"])
def test_repaired_files_cost_only_their_parts(
    spoilt: Path, pictures: Path, keys: list[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "other").mkdir()
    small(pictures, tmp_path / "other" / name)
    with pytest.raises(BadInputsError):
        small(spoilt, tmp_path / name)
    for place in PLACES:
        shutil.copy2(pictures / key_at(keys, place), spoilt / key_at(keys, place))
    result = small(spoilt, tmp_path / name)
    assert 0 < result.num_converted < 100
    assert sorted(check_pixels(tmp_path / name, spoilt)) == keys
    assert digest(tmp_path / name) == digest(tmp_path / "other" / name)


def test_exact_codes_do_not_depend_on_holes(spoilt: Path, tmp_path: Path) -> None:
    small(spoilt, tmp_path / "out.h5", dtype="float32", normalize="imagenet", on_error="skip")
    small(spoilt, tmp_path / "plain.h5", on_error="skip")
    plain = H5TensorDataset(tmp_path / "plain.h5")[:][0].numpy().astype(np.float32) / 255
    mean, std = (np.array(v, np.float32).reshape(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    np.testing.assert_allclose(H5TensorDataset(tmp_path / "out.h5")[:][0].numpy(), (plain - mean) / std, atol=1e-5)


def test_uncompressed_datasets_have_their_holes_filled_too(spoilt: Path, tmp_path: Path) -> None:
    for name in ("out.h5", "out"):
        small(spoilt, tmp_path / name, codec="none", on_error="skip")
        assert len(check_pixels(tmp_path / name, spoilt)) == 95


def fails_sometimes(batch: dict[str, Any]) -> Any:
    if (batch["label"] == 1).any():
        raise ValueError("no dogs")
    return batch


def test_batch_transform_that_fails_costs_only_the_samples_at_fault(
    pictures: Path, keys: list[str], tmp_path: Path
) -> None:
    result = small(pictures, tmp_path / "out.h5", batch_transform=fails_sometimes, batch_size=4, on_error="skip")
    assert sorted(one.key for one in result.skipped) == [key for key in keys if key.startswith("dog")]
    assert "no dogs" in result.skipped[0].reason
    assert len(check_pixels(tmp_path / "out.h5", pictures)) == 100 - len(result.skipped)


def odd_shape(sample: dict[str, Any]) -> Any:
    return sample["image"][:, :16] if sample["label"] == 2 else sample["image"]


def test_samples_of_another_shape_are_bad(pictures: Path, keys: list[str], tmp_path: Path) -> None:
    result = small(pictures, tmp_path / "out.h5", transform=odd_shape, on_error="skip")
    shapes = {len(result.skipped), 100 - len(result.skipped)}
    assert shapes == {33, 67}  # the first sample of the order says which shape is right
    assert "shape" in result.skipped[0].reason


def test_source_without_one_good_sample_says_so_at_once(tmp_path: Path) -> None:
    for key in make_pictures(tmp_path / "source", 10):
        spoil(tmp_path / "source", key)
    with pytest.raises(H5CacheError, match="none of the first 10 samples could be converted; the first: "):
        small(tmp_path / "source", tmp_path / "out.h5", on_error="skip")
    assert leftovers(tmp_path / "out.h5") == []


def test_command_lists_bad_files_and_ends_with_1(spoilt: Path, keys: list[str], tmp_path: Path) -> None:
    done = run_command(spoilt, tmp_path / "out.h5", "--workers", 1)
    assert done.returncode == 1
    for place in PLACES:
        assert key_at(keys, place) in done.stderr
    assert "--on-error skip" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_command(spoilt, tmp_path / "out.h5", "--workers", 1, "--on-error", "skip")
    assert (done.returncode, done.stdout.split(":")[0]) == (0, str(tmp_path / "out.h5"))
    assert done.stderr.count("skipped ") == len(PLACES)


def test_special_files_among_the_pictures_are_bad_samples(pictures: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(pictures, source)
    os.mkfifo(source / "cat" / "pipe.jpg")
    (source / "dog" / "device.jpg").symlink_to("/dev/zero")
    (source / "dog" / "loop.jpg").symlink_to("loop.jpg")
    (source / "emu" / "dangling.png").symlink_to("nowhere.png")
    with pytest.raises(BadInputsError) as caught:
        small(source, tmp_path / "out.h5")
    told = {one.key: one.reason for one in caught.value.bad}
    assert sorted(told) == ["cat/pipe.jpg", "dog/device.jpg", "dog/loop.jpg", "emu/dangling.png"]
    assert "not a file but a pipe" in told["cat/pipe.jpg"]
    assert small(source, tmp_path / "out.h5", on_error="skip").num_samples == 100


@pytest.mark.parametrize("data", [b"junk", b"\x80", b".", b"", b"PK\x03\x04", b"\x80\x04\x95"])
def test_hostile_pt_files_are_bad_samples(tmp_path: Path, data: bytes, recwarn: pytest.WarningsRecorder) -> None:
    folder = tmp_path / "source" / "a"
    folder.mkdir(parents=True)
    for number in range(3):
        torch.save(torch.full((2, 3), number), folder / f"{number}.pt")
    (folder / "1b.pt").write_bytes(data)
    with pytest.raises(BadInputsError) as caught:
        convert_dataset(folder.parent, tmp_path / "out.h5", workers=0)
    assert [one.key for one in caught.value.bad] == ["a/1b.pt"]
    assert convert_dataset(folder.parent, tmp_path / "out.h5", workers=0, on_error="skip").num_samples == 3
    assert not recwarn.list
