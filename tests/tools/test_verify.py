"""What `h5cache verify` says of whole, damaged, changed and foreign datasets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from h5cache.errors import FormatError, MissingDatasetError
from h5cache.format.open import open_dataset
from h5cache.tools.verify import format_verification, plan_nbytes, to_json, verify_dataset
from h5cache.verify import main

from .conftest import NUM_SAMPLES, Shell

KEYS = {"path", "status", "num_samples", "num_damaged_samples", "checked_nbytes", "damaged", "rewritten"}
DAMAGE_KEYS = {"path", "field", "chunk", "start", "stop", "keys", "reason"}


def flip_bit(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def damage_sample(dataset: Path, sample: int) -> str:
    """Flip a bit of a sample's picture; return the name of its file."""
    info = open_dataset(dataset)
    storage = info.storage["image"]
    shard = int(np.searchsorted(info.starts, sample, side="right")) - 1
    row = sample - int(info.starts[shard])
    chunk = int(storage.chunk_starts[shard]) + row // storage.layout.chunk_samples
    block = int(storage.block_starts[shard]) + row
    offset = int(storage.chunk_offsets[chunk]) + int(storage.block_offsets[block])
    path = Path(info.shards[shard].path)
    flip_bit(path, offset + int(storage.block_nbytes[block]) // 2)
    return path.name


@pytest.mark.parametrize("name", ["dataset", "normalised", "folder"])
def test_whole_dataset_is_good(name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    path = request.getfixturevalue(name)
    assert main([str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"good: all {NUM_SAMPLES} samples of {path}")
    assert captured.err == ""


@pytest.mark.parametrize("name", ["dataset", "folder"])
def test_damaged_sample_is_named_with_field_chunk_key_and_shard(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    file = damage_sample(path, 37)
    found = verify_dataset(path)
    assert found.status == "damaged"
    assert found.num_damaged_samples == 1
    (damage,) = found.damaged
    assert (damage.field, damage.samples, damage.keys) == ("image", range(37, 38), ("cat/0037.jpg",))
    assert damage.chunk == (2 if name == "dataset" else 0)
    assert Path(damage.path).name == file
    text = format_verification(found)
    assert "cat/0037.jpg" in text
    assert f"restore {file}" in text
    assert "1 of 100 samples" in text.splitlines()[-1]


def test_dataset_that_does_not_open_any_more_is_still_checked(dataset: Path) -> None:
    damage_sample(dataset, 3)
    flip_bit(dataset, int(open_dataset(dataset).storage["label"].chunk_offsets[0]))
    found = verify_dataset(dataset)
    assert found.num_samples is None
    assert {damage.field for damage in found.damaged} == {"image", "label"}
    assert plan_nbytes(dataset) == dataset.stat().st_size
    assert "damaged" in format_verification(found)


def test_missing_shard_is_damage_that_names_its_samples(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = Path(open_dataset(folder).shards[1].path)
    shard.unlink()
    assert main([str(folder)]) == 1
    text = capsys.readouterr().out
    assert shard.name in text
    assert "32 to 63" in text
    assert "cat/0032.jpg and 31 more" in text


def test_changed_chunk_is_told_but_is_not_damage(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import h5py
    import hdf5plugin  # noqa: F401  writes the chunk again

    with h5py.File(dataset, "r+") as file:
        file["image"][5] = 7
    assert main([str(dataset)]) == 0
    text = capsys.readouterr().out
    assert "changed: nothing is damaged" in text
    assert "16 of 100 samples" in text
    assert verify_dataset(dataset).status == "changed"


def test_foreign_file_is_read_through(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(foreign)]) == 0
    assert "no checksums" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["dataset", "folder", "foreign"])
def test_progress_adds_up_to_the_plan(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    steps: list[int] = []
    assert verify_dataset(path, steps.append).checked_nbytes == sum(steps) == plan_nbytes(path)
    assert len(steps) > 1


def test_progress_bar_is_drawn_where_it_is_asked_for(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--progress"]) == 0
    assert "verifying" in capsys.readouterr().err
    assert main([str(dataset), "--no-progress"]) == 0
    assert capsys.readouterr().err == ""


def test_long_list_is_cut_for_people_and_whole_in_json(dataset: Path) -> None:
    for sample in range(25):
        damage_sample(dataset, sample)
    found = verify_dataset(dataset)
    assert found.num_damaged_samples == 25
    assert "and 5 more (--json lists all)" in format_verification(found)
    assert len(to_json(found)["damaged"]) == 25


def test_json_has_the_same_keys_good_or_bad(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--json"]) == 0
    good = json.loads(capsys.readouterr().out)
    assert set(good) == KEYS
    assert (good["status"], good["damaged"]) == ("good", [])
    damage_sample(dataset, 99)
    assert main([str(dataset), "--json"]) == 1
    bad = json.loads(capsys.readouterr().out)
    assert set(bad) == KEYS
    (damage,) = bad["damaged"]
    assert set(damage) == DAMAGE_KEYS
    assert (damage["start"], damage["stop"], damage["keys"]) == (99, 100, ["owl/0099.jpg"])


def test_what_is_no_dataset_is_refused_rather_than_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(FormatError, match="not an HDF5 file"):
        verify_dataset(tmp_path / "text.h5")
    with pytest.raises(MissingDatasetError):
        verify_dataset(tmp_path / "nothing.h5")
    with pytest.raises(MissingDatasetError, match="manifest"):
        verify_dataset(tmp_path)


def test_truncated_file_is_damage(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(dataset, "r+b") as file:
        file.truncate(dataset.stat().st_size // 2)
    assert main([str(dataset)]) == 1
    assert "truncated" in capsys.readouterr().out


def test_repair_is_not_promised_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "repair" not in capsys.readouterr().out


def test_door_exits_1_with_the_key_and_2_in_one_line(dataset: Path, shell: Shell) -> None:
    damage_sample(dataset, 60)
    done = shell("h5cache.verify", dataset)
    assert (done.returncode, done.stderr) == (1, "")
    assert "dog/0060.jpg" in done.stdout
    assert "\x1b" not in done.stdout
    missing = shell("h5cache.verify", "nothing.h5")
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
    assert missing.stdout == ""
