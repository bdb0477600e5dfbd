"""Files written once with format version 1, never regenerated: they must read for ever."""

from __future__ import annotations

import subprocess
import sys

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy as np
import pytest
import torch
from make_golden import CLASSES, COUNT, FIELDS, GOLDEN, golden_keys, golden_sample
from mini_reader import MiniReader

from h5cache import H5TensorDataset
from h5cache.format.verify import iter_damage

FILES = {"v1.h5": list(FIELDS), "v1-shards": ["image", "norm", "raw", "label"]}


def bits(array):
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "f" else array


@pytest.mark.parametrize("name", FILES)
def test_golden_dataset_reads_bit_for_bit(name):
    dataset = H5TensorDataset(GOLDEN / name, as_dict=True)
    order = np.random.default_rng(0).permutation(COUNT)
    batch = dataset[order]
    assert list(batch) == FILES[name]
    for field, tensor in batch.items():
        expected = golden_sample(field)[order]
        if field == "brain":
            assert tensor.dtype == torch.bfloat16
            tensor = tensor.view(torch.uint16)
        if field == "hwc":
            expected = expected.transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(bits(np.ascontiguousarray(tensor.numpy())), bits(np.ascontiguousarray(expected)))
    assert dataset.classes == CLASSES
    assert dataset.index["key"].tolist() == golden_keys()


@pytest.mark.parametrize("name", FILES)
def test_golden_dataset_is_whole(name):
    assert list(iter_damage(GOLDEN / name)) == []


def test_golden_file_holds_every_way_of_storing():
    info = H5TensorDataset(GOLDEN / "v1.h5")._reader.info
    assert {storage.layout.codec.name for storage in info.storage.values()} == {"none", "blosc2", "blosc", "zstd"}
    sizes = info.storage["image"].block_nbytes
    assert (sizes == 0).any()
    assert (sizes > 0).any()
    assert info.storage["norm"].table is not None
    assert info.storage["own"].layout.block_samples == 1


def test_golden_file_reads_through_h5py():
    with h5py.File(GOLDEN / "v1.h5") as file:
        for name in FIELDS:
            if name != "norm":
                np.testing.assert_array_equal(file[name][()], golden_sample(name), err_msg=name)


def test_reader_written_from_the_format_page_reads_every_sample():
    reader = MiniReader(GOLDEN / "v1.h5")
    assert list(reader.fields) == list(FIELDS)
    assert [key.decode() for key in reader.index["key"]] == golden_keys()
    for name in FIELDS:
        expected = golden_sample(name)
        for i in range(COUNT):
            np.testing.assert_array_equal(bits(reader.sample(name, i)), bits(expected[i]), err_msg=f"{name} {i}")


def test_golden_files_are_never_made_again():
    done = subprocess.run(
        [sys.executable, GOLDEN.with_name("make_golden.py")], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "never again" in done.stderr
