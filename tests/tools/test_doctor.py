"""What `h5cache doctor` says of files made the way blog posts make them, and that following its command works."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from h5cache import H5TensorDataset
from h5cache.convert.__main__ import main as convert
from h5cache.doctor import main
from h5cache.tools.doctor import Diagnosis, diagnose, to_json
from h5cache.tools.doctor_findings import Finding
from h5cache.tools.doctor_text import format_diagnosis
from h5cache.tools.narrow import narrowest_dtype, union_dtype
from h5cache.tools.tensor_files import look_at_file

from .conftest import environment, pictures

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def tensors(count: int, size: int = 48) -> torch.Tensor:
    return torch.from_numpy(pictures(count)[:, :, :size, :size].copy())


def normalised(count: int, size: int = 96) -> torch.Tensor:
    return (tensors(count, size).float().div(255) - MEAN.view(3, 1, 1)) / STD.view(3, 1, 1)


def save_each(folder: Path, samples: Any, classes: int = 0) -> Path:
    for number, sample in enumerate(samples):
        home = folder / f"class{number % classes}" if classes else folder
        home.mkdir(parents=True, exist_ok=True)
        torch.save(sample, home / f"{number:04d}.pt")
    return folder


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def one(diagnosis: Diagnosis, kind: str) -> Finding:
    (found,) = [finding for finding in diagnosis.findings if finding.kind == kind]
    return found


def follow(diagnosis: Diagnosis) -> None:
    """Do what the commands say; in this process, for starting torch anew takes seconds."""
    for command in diagnosis.cure.commands:
        python, kind, *words = shlex.split(command)
        assert python == "python"
        if kind == "-c":
            exec(words[0], {})
        else:
            assert (kind, words[0]) == ("-m", "h5cache.convert")
            assert convert([*words[1:], "--workers", "0"]) == 0


def keys(dataset: H5TensorDataset) -> list[str]:
    return [os.fsdecode(key) for key in dataset.index["key"].tolist()]


def folder_nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# The blog post


@pytest.fixture(scope="module")
def blog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slices of batches saved without clone, normalised float32, in class folders."""
    batches = [batch.clone() for batch in normalised(64).split(16)]
    return save_each(
        tmp_path_factory.mktemp("doctor") / "blog", [image for batch in batches for image in batch], classes=2
    )


def test_slices_without_clone_are_named_with_their_waste_and_cure(blog: Path, tmp_path: Path) -> None:
    cloned = save_each(tmp_path / "cloned", [torch.load(path).clone() for path in sorted(blog.rglob("*.pt"))])
    found = diagnose(blog)
    assert kinds(found) == ["storage", "dtype"]
    storage = one(found, "storage")
    assert storage.waste_nbytes == pytest.approx(folder_nbytes(blog) - folder_nbytes(cloned), rel=0.1)
    assert "clone" in storage.cure
    assert storage.num_files == 64
    assert one(found, "dtype").waste_nbytes == pytest.approx(64 * 3 * 96 * 96 * 3, rel=0.1)
    assert found.cure.trial is not None
    assert found.cure.trial.pt_nbytes == pytest.approx(folder_nbytes(cloned), rel=0.02)


def test_waste_projected_from_some_files_is_within_ten_percent(blog: Path) -> None:
    every, some = diagnose(blog), diagnose(blog, num_sample=7)
    assert (some.num_opened, some.is_projected, every.is_projected) == (7, True, False)
    assert one(some, "storage").waste_nbytes == pytest.approx(one(every, "storage").waste_nbytes, rel=0.1)
    assert "~" in format_diagnosis(some)
    assert "7 of them" in format_diagnosis(some)


def test_following_the_command_gives_a_sixth_of_cloned_files_bit_for_bit(blog: Path) -> None:
    found = diagnose(blog)
    (command,) = found.cure.commands
    assert command.startswith("python -m")
    words = [sys.executable, *shlex.split(command)[1:], "--workers", "0"]  # each worker would import torch: seconds
    done = subprocess.run(words, env=environment(), capture_output=True, check=False, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    dataset = H5TensorDataset(blog.with_suffix(".h5"))
    assert len(dataset) == 64
    for number, key in enumerate(keys(dataset)):
        image, label = dataset[number]
        original = torch.load(blog / key, weights_only=True)
        assert torch.equal(image.view(torch.int32), original.contiguous().view(torch.int32))
        assert dataset.classes[label] == key.partition("/")[0]
    assert found.cure.trial is not None
    assert found.cure.trial.is_exact
    assert blog.with_suffix(".h5").stat().st_size <= found.cure.trial.pt_nbytes / 6
    assert blog.with_suffix(".h5").stat().st_size == pytest.approx(found.cure.trial.h5cache_nbytes, rel=0.5)


def test_text_names_cause_waste_and_cure_in_this_order_biggest_first(blog: Path) -> None:
    text = format_diagnosis(diagnose(blog))
    words = ("1. slices", "cause", "waste   ", "cure", "2. float32", "What h5cache makes", "Run")
    places = [text.index(word, text.index("1. slices")) for word in words]
    assert places == sorted(places)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if "/blog" not in line) <= 110


# One problem each


def test_properly_saved_uint8_files_are_healthy(tmp_path: Path) -> None:
    found = diagnose(save_each(tmp_path / "good", [(image.clone(), 1) for image in tensors(8)]))
    assert found.findings == ()
    assert "healthy" in format_diagnosis(found)


def test_float64_and_int64_that_fewer_bits_hold_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    half = torch.from_numpy(rng.normal(size=(20, 3, 32, 32)).astype(np.float16)).double()
    small = torch.from_numpy(rng.integers(-500, 500, (20, 3, 32, 32)))
    torch.save({"a": half, "b": small}, tmp_path / "wide.pt")
    titles = [finding.title for finding in diagnose(tmp_path / "wide.pt").findings]
    assert titles == [
        "float64 where float16 holds every value exactly",
        "int64 where int16 holds every value exactly",
    ]


def test_floats_that_need_all_their_bits_are_left_alone(tmp_path: Path) -> None:
    torch.save(torch.rand(20, 3, 32, 32), tmp_path / "noise.pt")
    assert diagnose(tmp_path / "noise.pt").findings == ()


def test_uncompressed_zeros_are_named_and_counted_once(tmp_path: Path) -> None:
    masks = np.zeros((50, 64, 64), np.float32)
    masks[:, 20:30, 20:30] = np.random.default_rng(0).normal(size=(50, 10, 10))
    np.save(tmp_path / "masks.npy", masks)
    found = diagnose(tmp_path / "masks.npy")
    assert kinds(found) == ["zeros"]
    assert found.findings[0].waste_nbytes == pytest.approx(np.count_nonzero(masks == 0) * 4, rel=0.01)


def test_strides_and_mixed_memory_formats_are_named(tmp_path: Path) -> None:
    straight = list(tensors(6))
    turned = [image.permute(0, 2, 1) for image in tensors(6)]
    last = [image.permute(1, 2, 0).contiguous().permute(2, 0, 1) for image in tensors(6)]
    clones = [image.clone() for image in straight]
    mixed = diagnose(save_each(tmp_path / "mixed", [*clones, *(image.clone() for image in turned)]))
    assert one(mixed, "strides").title == "mixed memory formats"
    assert one(mixed, "strides").num_files == 6
    all_last = diagnose(save_each(tmp_path / "last", last))
    assert one(all_last, "strides").title == "tensors that are not contiguous"
    assert "channels_last" in one(all_last, "strides").cause
    assert all_last.cure.trial is not None
    assert all_last.cure.trial.is_exact


def test_thousands_of_small_files_are_named_quickly(tmp_path: Path) -> None:
    sample = save_each(tmp_path / "many", [tensors(1, 8)[0].clone()]) / "0000.pt"
    for number in range(1, 1500):
        os.link(sample, tmp_path / "many" / f"{number:04d}.pt")
    found = diagnose(tmp_path / "many", num_sample=50)
    assert (found.num_files, found.num_opened) == (1500, 50)
    assert "1,500 small files" in one(found, "small-files").title
    assert one(found, "small-files").waste_nbytes > 1500 * 1000


def test_objects_damage_and_shapes_are_named_and_the_command_skips_them(tmp_path: Path) -> None:
    folder = save_each(tmp_path / "bad", [image.clone() for image in tensors(8)])
    whole = (folder / "0000.pt").read_bytes()
    torch.save(datetime.timedelta(3), folder / "object.pt")
    torch.save({"x": np.zeros(3)}, folder / "numpy.pt")
    torch.save(tensors(1, 20)[0].clone(), folder / "small.pt")
    (folder / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.pt").write_bytes(b"")
    (folder / "text.pt").write_bytes(b"hello world, this is text")
    (folder / "junk.npy").write_bytes(os.urandom(500))
    found = diagnose(folder)
    assert kinds(found) == ["damaged", "objects", "shapes"]
    assert one(found, "damaged").num_files == 4
    assert one(found, "objects").num_files == 2
    assert "datetime.timedelta" in one(found, "objects").cause
    follow(found)
    assert len(H5TensorDataset(tmp_path / "bad.h5")) == 8


def test_flipped_bytes_that_torch_does_not_notice_are_named(tmp_path: Path) -> None:
    folder = save_each(tmp_path / "flipped", [image.clone() for image in tensors(4)])
    content = bytearray((folder / "0002.pt").read_bytes())
    content[len(content) // 2] ^= 255
    (folder / "0002.pt").write_bytes(content)
    torch.load(folder / "0002.pt", weights_only=True)
    found = diagnose(folder)
    assert one(found, "damaged").examples == ("0002.pt",)


def test_no_file_is_ever_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    (tmp_path / "bombs").mkdir()
    torch.save(Bomb(), tmp_path / "bombs" / "a.pt")
    np.save(tmp_path / "bombs" / "b.npy", np.array([Bomb()], object), allow_pickle=True)
    np.savez(tmp_path / "bombs" / "c.npz", x=np.array([Bomb()], object))
    found = diagnose(tmp_path / "bombs")
    assert one(found, "objects").num_files == 3
    assert not (tmp_path / "exploded").exists()
    assert found.cure.commands == ()


# Commands for every shape of source


def test_one_big_file_is_converted_by_the_command(tmp_path: Path) -> None:
    torch.save({"image": normalised(20, 32), "label": torch.arange(20)}, tmp_path / "big.pt")
    found = diagnose(tmp_path / "big.pt")
    assert kinds(found) == ["dtype"]
    follow(found)
    dataset = H5TensorDataset(tmp_path / "big.h5")
    order = dataset.targets
    assert torch.equal(dataset[:][0], normalised(20, 32)[order])


def test_folder_of_npz_files_is_converted_by_the_line(tmp_path: Path) -> None:
    (tmp_path / "it's").mkdir()
    for number, image in enumerate(normalised(6, 32).numpy()):
        np.savez(tmp_path / "it's" / f"{number}.npz", image=image, label=np.int64(number))
    found = diagnose(tmp_path / "it's")
    follow(found)
    dataset = H5TensorDataset(tmp_path / "it's.h5")
    assert torch.equal(dataset[:][0], normalised(6, 32)[dataset.targets])


def test_files_of_batches_are_taken_apart_by_the_line(tmp_path: Path) -> None:
    whole = normalised(24, 32)
    save_each(tmp_path / "batches", [(part.clone(), torch.arange(8)) for part in whole.split(8)])
    found = diagnose(tmp_path / "batches")
    assert kinds(found) == ["dtype"]
    follow(found)
    dataset = H5TensorDataset(tmp_path / "batches.h5")
    assert torch.equal(dataset[:][0], whole[[int(key) for key in keys(dataset)]])


def test_folders_that_are_splits_get_a_command_each(tmp_path: Path) -> None:
    for split in ("train", "val"):
        save_each(tmp_path / "data" / split, [(image.clone(), number % 3) for number, image in enumerate(tensors(9))])
    found = diagnose(tmp_path / "data")
    assert len(found.cure.commands) == 2
    follow(found)
    for split in ("train", "val"):
        assert sorted(H5TensorDataset(tmp_path / f"data-{split}.h5").targets.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_model_weights_are_told_from_samples(tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(4, 8)).state_dict(), tmp_path / "model.pth")
    found = diagnose(tmp_path / "model.pth")
    assert (found.findings, found.cure.commands) == ((), ())
    assert "weights of a model" in format_diagnosis(found)


# The door


def test_door_prints_json_and_exits_by_what_it_found(
    blog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(blog), "--json", "--sample", "5"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["num_files"], document["num_opened"], document["is_projected"]) == (64, 5, True)
    assert document["findings"][0]["kind"] == "storage"
    assert document["cure"]["commands"][0].startswith("python -m h5cache.convert")
    good = save_each(tmp_path / "good", [image.clone() for image in tensors(3)])
    assert main([str(good)]) == 0
    assert set(document) == set(to_json(diagnose(good)))


@pytest.mark.parametrize("argv", [["nowhere"], ["."], ["--sample", "0", "."], []])
def test_door_exits_two_where_there_is_nothing_to_look_at(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "(2, " not in said


# Parts


@pytest.mark.parametrize(
    ("values", "narrow"),
    [
        (np.array([0, 1]), "bool"),
        (np.array([0, 255]), "uint8"),
        (np.array([-1, 255]), "int16"),
        (np.array([0, 40_000], np.int64), "uint16"),
        (np.array([2**40]), "int64"),
        (np.array([1.0, 3.0], np.float32), "uint8"),
        (np.array([0.5], np.float32), "float16"),
        (np.array([0.1], np.float32).astype(np.float64), "float32"),
        (np.array([-0.0], np.float32), "float16"),
        (np.array([np.nan, 1], np.float64), "float16"),
        (np.array([1e300]), "float64"),
        (np.zeros(0, np.float64), "float64"),
    ],
)
def test_narrowest_dtype_holds_every_bit(values: np.ndarray[Any, Any], narrow: str) -> None:
    assert narrowest_dtype(values) == narrow
    if values.size:
        assert values.astype(narrow).astype(values.dtype).tobytes() == values.tobytes()


def test_union_of_dtypes_holds_both() -> None:
    assert union_dtype("int8", "uint16") == "int32"
    assert union_dtype("int16", "float16") == "float32"


def test_only_what_no_view_shows_is_waste(tmp_path: Path) -> None:
    whole = torch.rand(100, 100)
    torch.save({"left": whole[:50], "right": whole[50:]}, tmp_path / "halves.pt")
    look, _ = look_at_file(str(tmp_path / "halves.pt"))
    assert look.wasted_nbytes == 0
    torch.save(whole[:1].expand(100, 100), tmp_path / "expanded.pt")
    look, _ = look_at_file(str(tmp_path / "expanded.pt"))
    assert look.wasted_nbytes == 99 * 100 * 4
