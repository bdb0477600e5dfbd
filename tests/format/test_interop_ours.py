"""What h5cache writes reads equal without h5cache: h5py + hdf5plugin, PyTables, h5dump."""

from __future__ import annotations

import subprocess
import sys
import warnings

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy as np
import pytest
from format_samples import make_samples, needs_tool

from h5cache import Blosc, Blosc2, Field, Raw, Writer, Zstd
from h5cache.schema import STORED_AS

CODECS = {
    "none": Raw(),
    "zstd": Zstd(),
    **{f"blosc-{shuffle}": Blosc(shuffle=shuffle) for shuffle in ("none", "shuffle", "bitshuffle")},
    **{
        f"blosc2-{cname}-{filter}": Blosc2(cname=cname, filter=filter)
        for cname in ("zstd", "lz4")
        for filter in ("none", "shuffle", "bitshuffle", "bytedelta", "shuffle+bytedelta")
    },
}
#: Two full chunks, and a full one with an edge chunk.
COUNTS = {"full": 8, "edge": 7}
SHAPE = (3, 5, 15)
PYTABLES = """
import sys, numpy, tables
with tables.open_file(sys.argv[1]) as file:
    names = [name for name in file.root._v_children if name.startswith("x_")]
    numpy.savez(sys.argv[2], **{name: file.get_node("/" + name)[:] for name in names})
"""


@pytest.fixture(scope="module", params=CODECS)
def written(request, tmp_path_factory):
    """One file per codec: a field of every dtype with and without an edge chunk is two files of eleven fields."""
    folder = tmp_path_factory.mktemp("ours")
    files = {}
    for name, count in COUNTS.items():
        path = folder / f"{name}.h5"
        fields = {f"x_{dtype}": Field(dtype, SHAPE, CODECS[request.param], chunk_samples=4) for dtype in STORED_AS}
        samples = {f"x_{dtype}": make_samples(count, SHAPE, dtype) for dtype in STORED_AS}
        samples["x_uint8"][:4] = 0  # an all-zero chunk has a form of its own
        with Writer(path, fields) as writer:
            writer.append(**samples)
        files[name] = (path, samples)
    return files


@pytest.mark.parametrize("kind", COUNTS)
def test_h5py_reads_every_dtype_of_every_codec(written, kind):
    path, samples = written[kind]
    with h5py.File(path) as file:
        for name, expected in samples.items():
            assert file[name].dtype == expected.dtype
            np.testing.assert_array_equal(file[name][()], expected, err_msg=name)


@pytest.mark.parametrize("kind", COUNTS)
def test_pytables_reads_every_dtype_of_every_codec(written, kind, tmp_path, plugin_environment):
    pytest.importorskip("tables")
    path, samples = written[kind]
    # In a process of its own: PyTables has zstd from the plugins only, and looks for them when it is loaded.
    command = [sys.executable, "-c", PYTABLES, str(path), str(tmp_path / "read.npz")]
    subprocess.run(command, check=True, env=plugin_environment, timeout=60)
    with np.load(tmp_path / "read.npz") as read:
        for name, expected in samples.items():
            np.testing.assert_array_equal(read[name], expected, err_msg=name)


@needs_tool("h5dump")
@pytest.mark.parametrize("kind", COUNTS)
def test_h5dump_reads_every_dtype_of_every_codec(written, kind, tmp_path, plugin_environment):
    path, samples = written[kind]
    for name, expected in samples.items():
        out = tmp_path / name
        command = ["h5dump", "-d", f"/{name}", "-b", "FILE", "-o", str(out), str(path)]
        subprocess.run(command, check=True, capture_output=True, env=plugin_environment, timeout=60)
        assert out.read_bytes() == expected.tobytes(), name


def test_index_reads_well_in_pandas(mixed):
    pandas = pytest.importorskip("pandas")
    path, samples = mixed
    with h5py.File(path) as file:
        frame = pandas.DataFrame(file["index"][:])
    assert len(frame) == len(samples["label"])
    assert frame["key"].str.decode("utf-8")[3] == "class3/picture-003.jpg"


@needs_tool("h5dump")
def test_index_reads_well_in_h5dump(mixed):
    path, _ = mixed
    shown = subprocess.run(
        ["h5dump", "-d", "/index", str(path)], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert '"class3/picture-003.jpg"' in shown


def test_labels_and_classes_read_well_in_h5py(mixed):
    path, samples = mixed
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["label"][()], samples["label"])
        assert [name.decode() for name in file.attrs["classes"]] == ["a", "b", "c", "d", "e"]


def test_exact_codes_expand_with_the_table_their_attribute_names(mixed):
    path, samples = mixed
    with h5py.File(path) as file:
        codes = file["norm"][()]
        values = file[file["norm"].attrs["value_table"]][()]
    expanded = np.stack([values[channel][codes[:, channel]] for channel in range(3)], axis=1)
    np.testing.assert_array_equal(expanded.view(np.uint32), samples["norm"].view(np.uint32))


def test_pytables_walks_the_whole_file(mixed):
    tables = pytest.importorskip("tables")
    path, samples = mixed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tables.NaturalNameWarning)
        with tables.open_file(str(path)) as file:
            names = {node._v_pathname for node in file.walk_nodes("/")}
            assert {f"/{name}" for name in samples} <= names
            assert file.root.index[3]["key"] == b"class3/picture-003.jpg"
