"""What others write reads equal through h5cache: any filter, any layout, any path inside the file."""

from __future__ import annotations

import h5py
import hdf5plugin
import numpy as np
import pytest
from format_samples import make_samples

from h5cache import H5TensorDataset
from h5cache.errors import FormatError, SchemaError

COUNT, SHAPE = 11, (3, 9, 7)
WAYS = {
    "contiguous": {},
    "chunked": {"chunks": (4, 3, 9, 7)},
    "chunks across samples": {"chunks": (2, 2, 4, 7)},
    "gzip": {"chunks": (4, 3, 9, 7), "compression": "gzip"},
    "gzip, shuffle, fletcher32": {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunks": (4, 3, 9, 7), "compression": "lzf"},
    "blosc": {"chunks": (4, 3, 9, 7), **hdf5plugin.Blosc(cname="zstd")},
    "blosc2, n-D frames": {"chunks": (4, 3, 9, 7), **hdf5plugin.Blosc2(cname="zstd")},
    "zstd": {"chunks": (4, 3, 9, 7), **hdf5plugin.Zstd()},
    "bitshuffle": {"chunks": (4, 3, 9, 7), **hdf5plugin.Bitshuffle()},
}


@pytest.fixture
def labels():
    return np.arange(COUNT) % 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_dataset_of_h5py_reads_equal_in_any_order(way, dtype, labels, tmp_path):
    samples = make_samples(COUNT, SHAPE, dtype)
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=samples, **WAYS[way])
        file["y"] = labels
    dataset = H5TensorDataset(path, fields=["x", "y"])
    order = [7, 0, 10, 3, 3, -1, 4]
    x, y = dataset[order]
    np.testing.assert_array_equal(x.numpy(), samples[order])
    np.testing.assert_array_equal(y.numpy(), labels[order])
    np.testing.assert_array_equal(dataset[5][0].numpy(), samples[5])
    np.testing.assert_array_equal(dataset[:][0].numpy(), samples)


@pytest.mark.parametrize("dtype", [">i4", ">u2", ">f4", ">f8"])
def test_big_endian_dataset_reads_equal(dtype, tmp_path):
    samples = (np.arange(24).reshape(6, 4) * 1001 % 65521).astype(dtype)
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"] = samples
    np.testing.assert_array_equal(H5TensorDataset(path, fields=["x"])[[5, 0, 2]][0].numpy(), samples[[5, 0, 2]])


def test_bool_dataset_reads_equal(tmp_path):
    samples = make_samples(6, (5,), "bool")
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"] = samples
    np.testing.assert_array_equal(H5TensorDataset(path)[:][0].numpy(), samples)


def test_nested_path_is_a_field(tmp_path):
    samples = make_samples(6, (4, 4))
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["group/inner/x"] = samples
    np.testing.assert_array_equal(H5TensorDataset(path, fields=["group/inner/x"])[[4, 1]][0].numpy(), samples[[4, 1]])


def test_soft_links_inside_the_file_are_followed(tmp_path):
    samples = make_samples(6, (4, 4))
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["group/x"] = samples
        file["alias"] = h5py.SoftLink("/group")
        file["group/same"] = h5py.SoftLink("x")
        file["direct"] = h5py.SoftLink("/alias/same")
    for name in ("direct", "alias/x", "alias/same"):
        np.testing.assert_array_equal(H5TensorDataset(path, fields=[name])[[5, 2]][0].numpy(), samples[[5, 2]])


def test_all_datasets_at_the_root_are_fields_by_default(tmp_path):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = make_samples(6, (4,)), np.arange(6)
        file["names"] = [f"text {i}" for i in range(6)]  # no tensor
        file["scalar"] = 3.0
    assert H5TensorDataset(path).fields == ("x", "y")


def test_attributes_of_any_kind_do_no_harm(tmp_path):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"] = make_samples(6, (4,))
        file.attrs["text"] = "variable length"
        file.attrs["reference"] = file["x"].ref
        file.attrs["empty"] = h5py.Empty("f4")
        file.attrs.create("vlen", [np.arange(3), np.arange(4)], dtype=h5py.vlen_dtype("i4"))
        file.attrs["complex"] = 1 + 2j
    assert len(H5TensorDataset(path)) == 6


def test_unequal_lengths_are_refused_by_name(tmp_path):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = make_samples(6, (4,)), np.arange(5)
    with pytest.raises(FormatError, match=r"any.h5.*x \(6 rows\).*y \(5 rows\)"):
        H5TensorDataset(path)


def test_fields_given_as_one_string_are_refused(tmp_path):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"] = make_samples(6, (4,))
    with pytest.raises(SchemaError, match="list of names"):
        H5TensorDataset(path, fields="x")


def test_absent_path_is_named(tmp_path):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"] = make_samples(6, (4,))
    with pytest.raises(FormatError, match="any.h5: has no /group"):
        H5TensorDataset(path, fields=["group/y"])
