"""A whole conversion: right pixels, the same bytes from any number of workers, light workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from convert_samples import RESIZE, SIZE, check_pixels, digest, key_at, leftovers, small

from h5cache import H5TensorDataset
from h5cache.errors import SchemaError
from h5cache.limits import cgroup_cores, usable_cores


@pytest.mark.parametrize("name", ["out.h5", "out"])
def test_every_sample_equals_the_pipeline_done_by_hand(
    pictures: Path, keys: list[str], tmp_path: Path, name: str
) -> None:
    result = small(pictures, tmp_path / name, workers=2)
    found = check_pixels(tmp_path / name, pictures)
    assert sorted(found) == keys
    assert found[0] == key_at(keys, 0)
    assert result.num_samples == result.num_converted == 100
    assert leftovers(tmp_path / name) == []


def test_samples_keep_their_order_without_shuffle(pictures: Path, keys: list[str], tmp_path: Path) -> None:
    small(pictures, tmp_path / "out.h5", shuffle=False)
    assert check_pixels(tmp_path / "out.h5", pictures) == keys


@pytest.mark.parametrize("name", ["out.h5", "out"])
def test_bytes_do_not_depend_on_workers_or_place(pictures: Path, tmp_path: Path, name: str) -> None:
    digests = set()
    for workers in (0, 1, 2, 3):
        place = tmp_path / f"{workers}" / "deeper"
        place.mkdir(parents=True)
        small(pictures, place / name, workers=workers)
        digests.add(digest(place / name))
    assert len(digests) == 1


def test_bytes_do_not_depend_on_where_the_source_is(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "moved")  # keeps the times
    for number, source in enumerate((pictures, tmp_path / "moved")):
        small(source, tmp_path / f"{number}.h5")
    assert digest(tmp_path / "0.h5") == digest(tmp_path / "1.h5")


def test_bytes_do_not_depend_on_the_size_of_parts(pictures: Path, tmp_path: Path) -> None:
    for number, part_samples in enumerate((1024, 2048)):
        small(pictures, tmp_path / f"{number}.h5", part_samples=part_samples)
    assert digest(tmp_path / "0.h5") == digest(tmp_path / "1.h5")


def test_executor_of_the_users_serves_too(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "a.h5")
    with ThreadPoolExecutor(2) as executor:
        small(pictures, tmp_path / "b.h5", executor=executor)
        assert executor.submit(int, 3).result() == 3  # it stays open
    assert digest(tmp_path / "a.h5") == digest(tmp_path / "b.h5")


def to_float(sample: dict[str, Any]) -> Any:
    return (sample["image"].astype(np.float32) / 255 - 0.5) / 0.25


def test_normalised_floats_are_stored_as_exact_codes(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "codes.h5", transform=to_float, workers=2)
    small(pictures, tmp_path / "bytes.h5")
    codes, plain = H5TensorDataset(tmp_path / "codes.h5"), H5TensorDataset(tmp_path / "bytes.h5")
    expected = (plain[:][0].numpy().astype(np.float32) / 255 - 0.5) / 0.25
    np.testing.assert_array_equal(codes[:][0].numpy(), expected)
    with h5py.File(tmp_path / "codes.h5") as file:
        assert file["image"].dtype == np.uint8


def sometimes_finer(sample: dict[str, Any]) -> Any:
    """Values on the grid of 8 bits, but for a few pictures."""
    image = sample["image"].astype(np.float32) / 255
    return image + np.float32(0.001) * (int(sample["image"].sum()) % 10 == 0)


def unlike_each_other(sample: dict[str, Any]) -> Any:
    """Each picture has 256 values at most, and another 256 than the rest, too near to tell by rounding."""
    return sample["image"].astype(np.float32) / 255 + np.float32(1e-5) * (int(sample["image"].sum()) % 50 == 0)


@pytest.mark.parametrize("function", [sometimes_finer, unlike_each_other])
def test_field_whose_codes_do_not_hold_is_stored_as_floats_everywhere(
    pictures: Path, tmp_path: Path, function: Any
) -> None:
    digests = set()
    for workers in (0, 2):
        out = tmp_path / f"{workers}.h5"
        small(pictures, out, transform=function, workers=workers)
        digests.add(digest(out))
    small(pictures, tmp_path / "plain.h5")
    plain, found = H5TensorDataset(tmp_path / "plain.h5"), H5TensorDataset(tmp_path / "0.h5")
    for (image, label), (value, same) in zip(plain, found, strict=True):
        np.testing.assert_array_equal(value.numpy(), function({"image": image.numpy()}))
        assert label == same
    with h5py.File(tmp_path / "0.h5") as file:
        assert file["image"].dtype == np.float32
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["raw.h5", "raw"])
def test_uncompressed_fields_lie_in_one_piece(pictures: Path, tmp_path: Path, name: str) -> None:
    small(pictures, tmp_path / name, codec="none", workers=2)
    check_pixels(tmp_path / name, pictures)
    files = [tmp_path / name] if name.endswith(".h5") else sorted((tmp_path / name).glob("shard-*"))
    for path in files:
        with h5py.File(path) as file:
            assert file["image"].chunks is None


def batch_mean(batch: dict[str, Any]) -> dict[str, Any]:
    return {"mean": batch["image"].reshape(len(batch["image"]), -1).mean(axis=1), "label": batch["label"]}


def test_batch_transform_gets_whole_batches(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "out.h5", batch_transform=batch_mean, batch_size=5, workers=2)
    small(pictures, tmp_path / "plain.h5")
    means, _ = H5TensorDataset(tmp_path / "out.h5")[:]
    images, _ = H5TensorDataset(tmp_path / "plain.h5")[:]
    np.testing.assert_array_equal(means.numpy(), images.numpy().reshape(100, -1).mean(axis=1))


def test_torch_dataset_and_cell_functions_are_converted_in_workers(tmp_path: Path) -> None:
    from h5cache import convert_dataset

    data = torch.utils.data.TensorDataset(torch.arange(60.0).reshape(20, 3), torch.arange(20))
    convert_dataset(
        data, tmp_path / "out.h5", transform=lambda sample: {"x": sample["x"] * 2}, fields=("x", "y"), workers=1
    )
    (x,) = H5TensorDataset(tmp_path / "out.h5", fields=["x"])[:]
    assert sorted(x[:, 0].tolist()) == [6.0 * i for i in range(20)]


@pytest.mark.parametrize("name", ["out.h5", "out"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_iterable_is_converted_as_it_comes(tmp_path: Path, name: str, shuffle: bool) -> None:
    from h5cache import convert_dataset

    samples = ({"x": np.full((3, 8, 8), number % 250, np.uint8), "label": number} for number in range(5000))
    result = convert_dataset(samples, tmp_path / name, shuffle=shuffle)
    dataset = H5TensorDataset(tmp_path / name)
    x, label = dataset[:]
    assert result.num_samples == len(dataset) == 5000
    assert (x[:, 0, 0, 0] == label % 250).all()
    assert dataset.index["key"].tolist() == [str(number) for number in label.tolist()]
    assert (label.tolist() == list(range(5000))) == (not shuffle)
    assert sorted(label.tolist()) == list(range(5000))
    assert leftovers(tmp_path / name) == []


def test_progress_counts_every_sample(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(pictures, tmp_path / "out.h5", progress=True)
    shown = capsys.readouterr().err
    assert "converting" in shown
    assert "/100" in shown


def loaded_modules(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "torch": int("torch" in sys.modules), "worker": os.getpid()}


def test_workers_are_processes_without_torch_unless_it_is_needed(pictures: Path, tmp_path: Path) -> None:
    script = tmp_path / "light.py"
    script.write_text(
        "import os, sys\n"
        "def look(sample):\n"
        "    import cv2\n"
        "    return {'torch': int('torch' in sys.modules), 'pid': os.getpid(), 'threads': cv2.getNumThreads()}\n"
        "from h5cache import convert_dataset\n"
        f"convert_dataset({str(pictures)!r}, {str(tmp_path / 'out.h5')!r}, resize={RESIZE}, size={SIZE},"
        " transform=look, workers=2, part_samples=16)\n"
    )
    # A plain script, without a `__main__` guard.
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    with h5py.File(tmp_path / "out.h5") as file:
        assert not file["torch"][()].any()
        assert (file["threads"][()] <= 1).all()
        assert os.getpid() not in file["pid"][()]


def test_script_from_stdin_is_converted_in_workers(pictures: Path, tmp_path: Path) -> None:
    script = (
        "from h5cache import convert_dataset\n"
        "def half(sample): return sample['image'] // 2\n"
        f"done = convert_dataset({str(pictures)!r}, {str(tmp_path / 'out.h5')!r}, transform=half, workers=2)\n"
        "print(done.num_samples)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "100", "")


def test_output_inside_the_source_is_refused(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "source")
    with pytest.raises(SchemaError, match="lies in the source"):
        small(tmp_path / "source", tmp_path / "source" / "out.h5")


def test_provenance_says_what_was_done_and_nothing_of_the_machine(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "out.h5", transform=to_float, seed=3)
    from h5cache.format.open import open_dataset

    provenance = open_dataset(tmp_path / "out.h5").provenance
    assert provenance["options"]["seed"] == 3
    assert provenance["transform"]["name"].endswith("to_float")
    assert "numpy" in provenance["versions"]
    assert str(tmp_path) not in str(provenance)
    assert str(pictures) not in str(provenance)


def test_index_keeps_size_and_time_of_the_files(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "out.h5")
    row = H5TensorDataset(tmp_path / "out.h5").index[17]
    stat = (pictures / row["key"]).stat()
    assert (row["source_nbytes"], row["source_mtime_ns"]) == (stat.st_size, stat.st_mtime_ns)


def test_workers_default_to_the_cores_of_this_process() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/job\n", {"job/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/job\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, None),
        ("4:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_quota_of_a_cgroup_is_honoured(tmp_path: Path, own: str, files: dict[str, str], cores: float | None) -> None:
    (tmp_path / "self").write_text(own)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cgroup_cores(str(tmp_path / "fs"), str(tmp_path / "self")) == cores
