"""Truncated, empty, foreign, missing, replaced: a clear error each, of the right class, naming the file."""

from __future__ import annotations

import os
import shutil

import h5py
import numpy as np
import pytest
from format_samples import make_samples, write_mixed

from h5cache import H5TensorDataset
from h5cache.errors import (
    ChecksumError,
    DatasetChangedError,
    FormatError,
    H5CacheError,
    MissingDatasetError,
    UnsafeFileError,
)
from h5cache.format.encode import checksum
from h5cache.format.verify import iter_damage


def read_everything(path):
    with H5TensorDataset(path, as_dict=True) as dataset:
        return dataset[:], dataset.index


@pytest.mark.parametrize("tenths", range(40))
def test_truncated_file_is_refused(mixed, tenths):
    path, _ = mixed
    nbytes = path.stat().st_size
    os.truncate(path, nbytes * tenths // 40 if tenths else nbytes - 1)
    with pytest.raises(FormatError, match="mixed.h5"):
        H5TensorDataset(path)
    assert [str(path) in str(found) for found in iter_damage(path)] == [True]


def test_empty_file_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    path.touch()
    with pytest.raises(FormatError, match=r"x.h5: the file is empty"):
        H5TensorDataset(path)


def test_text_file_is_refused(tmp_path):
    path = tmp_path / "x.h5"
    path.write_text("not what it says\n" * 100)
    with pytest.raises(FormatError, match=r"x.h5: not an HDF5 file"):
        H5TensorDataset(path)


def test_absent_file_is_missing(tmp_path):
    with pytest.raises(MissingDatasetError, match="no such dataset.*x.h5"):
        H5TensorDataset(tmp_path / "x.h5")
    with pytest.raises(MissingDatasetError, match=r"x.h5"):
        list(iter_damage(tmp_path / "x.h5"))


def test_folder_without_manifest_is_no_dataset(folder):
    path, _ = folder
    (path / "manifest.h5").unlink()
    with pytest.raises(MissingDatasetError, match=r"no manifest.h5"):
        H5TensorDataset(path)
    with pytest.raises(MissingDatasetError, match=r"manifest.h5"):
        list(iter_damage(path))


def test_manifest_opened_as_a_file_points_to_its_folder(folder):
    path, _ = folder
    with pytest.raises(FormatError, match="open the folder"):
        H5TensorDataset(path / "manifest.h5")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_a_permission_error(mixed):
    path, _ = mixed
    path.chmod(0)
    with pytest.raises(PermissionError, match="mixed.h5"):
        H5TensorDataset(path)


@pytest.mark.parametrize("version", [0, 2, 10**9, -1])
def test_unknown_format_version_is_refused(mixed, version):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        file.attrs.modify("format_version", version)
    with pytest.raises(FormatError, match=rf"mixed.h5: is of format version {version}"):
        H5TensorDataset(path)


def test_missing_filter_is_named(tmp_path):
    path = tmp_path / "any.h5"
    samples = make_samples(4, (5, 5))
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 5, 5))
        properties.set_filter(305, h5py.h5z.FLAG_OPTIONAL, ())  # LZO: registered with the HDF Group, built by nobody
        space = h5py.h5s.create_simple(samples.shape)
        made = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, dcpl=properties)
        made.write_direct_chunk((0, 0, 0), samples.tobytes())
    dataset = H5TensorDataset(path, fields=["x"])
    with pytest.raises(FormatError, match=r"any.h5: /x needs the HDF5 filter 305, which is not installed"):
        dataset[0]


@pytest.mark.parametrize("kind", ["ours", "foreign", "folder"])
def test_file_replaced_while_open_is_noticed_or_the_old_one_is_read(kind, tmp_path):
    path = tmp_path / ("x" if kind == "folder" else "x.h5")
    old, new = make_samples(8, (4, 4)), make_samples(8, (4, 4), seed=5)
    if kind == "foreign":
        for name, samples in ((path, old), (tmp_path / "new.h5", new)):
            with h5py.File(name, "w") as file:
                file["image"] = samples
    else:
        write_mixed(path, 12)
        write_mixed(tmp_path / ("new" if kind == "folder" else "new.h5"), 12)
    dataset = H5TensorDataset(path, fields=["image"])
    before = dataset[1][0].numpy().copy()
    used = H5TensorDataset(path, fields=["image"])
    target = next(path.glob("shard*")) if kind == "folder" else path
    other = next((tmp_path / "new").glob("shard*")) if kind == "folder" else tmp_path / "new.h5"
    other.replace(target)
    with pytest.raises(DatasetChangedError, match=target.name):
        used[1]
    try:
        after = dataset[1][0].numpy()
    except DatasetChangedError:
        after = before  # read by its name, as foreign files are: refused
    np.testing.assert_array_equal(after, before)


def test_index_of_a_replaced_file_is_refused(mixed, tmp_path):
    path, _ = mixed
    dataset = H5TensorDataset(path)
    write_mixed(tmp_path / "new.h5", 18)
    (tmp_path / "new.h5").replace(path)
    with pytest.raises(DatasetChangedError, match="mixed.h5"):
        _ = dataset.index


def test_file_truncated_while_open_is_noticed(mixed):
    path, _ = mixed
    dataset = H5TensorDataset(path)
    _ = dataset[0]
    os.truncate(path, 3000)
    with pytest.raises(DatasetChangedError, match="mixed.h5"):
        dataset[17]


def test_file_removed_before_its_first_read_is_missing(mixed):
    path, _ = mixed
    dataset = H5TensorDataset(path)
    path.unlink()
    with pytest.raises(MissingDatasetError, match=r"removed after it was opened.*mixed.h5"):
        dataset[0]


def test_file_removed_while_in_use_is_read_on(mixed):
    path, samples = mixed
    dataset = H5TensorDataset(path, fields=["image"])
    _ = dataset[0]
    path.unlink()
    np.testing.assert_array_equal(dataset[17][0].numpy(), samples["image"][17])


# Hostile tables and schemas


def change_schema(path, change):
    """Rewrite the schema with a checksum that fits: damage is another matter."""
    import json

    with h5py.File(path, "r+") as file:
        schema = json.loads(file.attrs["schema"])
        changed = json.dumps(change(schema))
        texts = [changed, file.attrs["provenance"].decode(), *(name.decode() for name in file.attrs["classes"])]
        del file.attrs["schema"]
        file.attrs.create("schema", changed.encode(), dtype=h5py.string_dtype("utf-8", len(changed.encode())))
        file.attrs.modify("checksum", np.uint64(checksum("\n".join(texts).encode())))


def with_field(number, **changes):
    def change(schema):
        schema["fields"][number].update(changes)
        return schema

    return change


SCHEMAS = {
    "huge shape": with_field(0, shape=[2**40, 2**40]),
    "shape whose product overflows to zero": with_field(0, shape=[2**32, 2**32]),
    "negative shape": with_field(0, shape=[-3, 75, 75]),
    "fractional shape": with_field(0, shape=[3, 75.5, 75]),
    "shape of text": with_field(0, shape="abc"),
    "no shape": with_field(0, shape=None),
    "another shape": with_field(0, shape=[3, 75, 76]),
    "another dtype": with_field(0, dtype="int8"),
    "unknown dtype": with_field(0, dtype="float128"),
    "dtype of numbers": with_field(0, dtype=[1]),
    "unknown kind": with_field(0, kind="ragged"),
    "no kind": with_field(0, kind=None),
    "unknown codec": with_field(0, codec={"name": "magic"}),
    "codec of text": with_field(0, codec="blosc2"),
    "codec of nothing": with_field(0, codec=None),
    "codec with other blocks": with_field(0, codec={"name": "blosc2", "typesize": 3, "block_nbytes": 99}),
    "codec without blocks": with_field(0, codec={"name": "blosc2", "typesize": 3, "block_nbytes": 0}),
    "raw codec": with_field(0, codec={"name": "none", "block_nbytes": 16875}),
    "zero block_samples": with_field(0, block_samples=0),
    "negative block_samples": with_field(0, block_samples=-1),
    "huge block_samples": with_field(0, block_samples=2**60, chunk_samples=2**60),
    "huge raw blocks": with_field(2, block_samples=2**60, chunk_samples=2**60),
    "another chunk_samples": with_field(0, chunk_samples=8),
    "huge chunk_samples": with_field(0, chunk_samples=4 * 2**50),
    "text for chunk_samples": with_field(0, chunk_samples="many"),
    "codes of integers": with_field(0, codes=True),
    "codes without a table": with_field(2, codes=True),
    "contiguous and coded": with_field(0, contiguous=True),
    "another layout": with_field(0, layout="WHC"),
    "a name that leaves the group": with_field(0, name="../image"),
    "an empty name": with_field(0, name=""),
    "a name that is reserved": with_field(0, name="index"),
    "a name of nothing": with_field(0, name=None),
    "a name of lists": with_field(0, name=[]),
    "a field that is not there": with_field(0, name="other"),
    "a list": lambda _: [],
    "a number": lambda _: 5,
    "nothing": lambda _: None,
    "no fields": lambda _: {"fields": []},
    "fields of numbers": lambda _: {"fields": [1, 2]},
    "fields that are a map": lambda _: {"fields": {"name": 1}},
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_hostile_schema_is_refused(mixed, case):
    path, _ = mixed
    change_schema(path, SCHEMAS[case])
    with pytest.raises(FormatError, match="mixed.h5"):
        read_everything(path)
    assert all(str(path) in str(found) for found in iter_damage(path))


def test_deeply_nested_schema_is_refused(mixed):
    path, _ = mixed
    deep = "[" * 50_000
    with h5py.File(path, "r+") as file:
        del file.attrs["schema"]
        file.attrs.create("schema", deep.encode(), dtype=h5py.string_dtype("utf-8", len(deep)))
        texts = [deep, file.attrs["provenance"].decode(), *(name.decode() for name in file.attrs["classes"])]
        file.attrs.modify("checksum", np.uint64(checksum("\n".join(texts).encode())))
    with pytest.raises(FormatError, match="mixed.h5"):
        H5TensorDataset(path)


@pytest.mark.parametrize("name", ["schema", "provenance", "checksum", "format_version", "kind"])
def test_missing_attribute_is_refused(mixed, name):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        del file.attrs[name]
    with pytest.raises(FormatError, match="mixed.h5"):
        H5TensorDataset(path)


@pytest.mark.parametrize("name", ["schema", "provenance", "checksum", "format_version", "kind", "classes"])
@pytest.mark.parametrize("value", [5, -1.5, np.arange(3), b"\xff\xfe", np.zeros((2, 2), "S3")], ids=str)
def test_attribute_of_another_type_is_refused(mixed, name, value):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        del file.attrs[name]
        file.attrs[name] = np.bytes_(value) if isinstance(value, bytes) else value
    with pytest.raises((FormatError, ChecksumError), match="mixed.h5"):
        H5TensorDataset(path)


def change_table(path, name, change):
    """Replace a table under /h5cache by another, with a checksum that fits."""
    group, part = name.split("/")
    with h5py.File(path, "r+") as file:
        rows = change(file["h5cache"][name][()])
        del file["h5cache"][name]
        file["h5cache"][name] = rows
        file["h5cache"][group].attrs[f"{part}_checksum"] = np.uint64(checksum(rows.tobytes()))


def set_column(column, value, rows=slice(None)):
    def change(table):
        table[column][rows] = value
        return table

    return change


TABLES = {
    "block offsets outside": ("image/blocks", set_column("offset", 2**32 - 1)),
    "block sizes outside": ("image/blocks", set_column("nbytes", 2**32 - 1)),
    "blocks beyond their chunk": ("image/blocks", set_column("nbytes", 16874, slice(3, 4))),
    "raw blocks": ("old/blocks", set_column("nbytes", 2400)),
    "overlapping blocks": ("image/blocks", set_column("offset", 0)),
    "too few blocks": ("image/blocks", lambda table: table[:-1]),
    "no blocks": ("image/blocks", lambda table: table[:0]),
    "too many blocks": ("image/blocks", lambda table: np.concatenate([table, table])),
    "blocks in two dimensions": ("image/blocks", lambda table: table.reshape(-1, 1)),
    "blocks of floats": ("image/blocks", lambda table: np.zeros(len(table))),
    "raw checksums for coded blocks": ("image/blocks", lambda table: table[["checksum"]].copy()),
    "chunk sizes of zero": ("image/chunks", set_column("nbytes", 0)),
    "too few chunks": ("image/chunks", lambda table: table[:-1]),
    "values of another shape": ("norm/values", lambda table: table[:, :255].copy()),
    "values of another dtype": ("norm/values", lambda table: table.astype("f8")),
    "index checksums of another dtype": ("index/blocks", lambda table: np.zeros(len(table), "f4")),
}


@pytest.mark.parametrize("case", TABLES)
def test_hostile_table_is_refused(mixed, case):
    path, _ = mixed
    change_table(path, *TABLES[case])
    with pytest.raises((FormatError, ChecksumError), match="mixed.h5"):
        read_everything(path)
    assert all(str(path) in str(found) for found in iter_damage(path))


def replace_dataset(path, name, **options):
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        del file[name]
        file.create_dataset(name, **options)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "options",
    [
        {"shape": (2**60,), "dtype": "i8"},
        {"shape": (2**60,), "dtype": "i8", "chunks": (1024,)},
        {"shape": (2**60,), "dtype": "i8", "chunks": (1024,), "compression": "gzip"},
        {"shape": (18,), "dtype": "i8"},
        {"shape": (18,), "dtype": "f4"},
        {"shape": (), "dtype": "i8"},
        {"shape": None, "dtype": "i8"},
        {"shape": (18, 1), "dtype": "i8"},
        {"shape": (18,), "dtype": h5py.string_dtype()},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["label", "index", "image", "h5cache/image/blocks", "h5cache/index/blocks"])
def test_dataset_that_claims_what_is_not_stored_is_refused(mixed, name, options):
    path, _ = mixed
    replace_dataset(path, name, **options)
    with pytest.raises((FormatError, ChecksumError), match="mixed.h5"):
        read_everything(path)
    assert all(str(path) in str(found) for found in iter_damage(path))


@pytest.mark.timeout(20)
def test_number_of_samples_that_is_claimed_everywhere_is_refused(mixed):
    path, _ = mixed
    for name in ("label", "index", "image"):
        with h5py.File(path) as file:
            shape, dtype = file[name].shape[1:], file[name].dtype
        replace_dataset(path, name, shape=(2**58, *shape), dtype=dtype, chunks=(4, *shape))
    with pytest.raises(FormatError, match="mixed.h5"):
        read_everything(path)
    assert list(iter_damage(path))


@pytest.mark.parametrize(
    "name", ["index", "h5cache", "h5cache/image", "h5cache/image/blocks", "label", "h5cache/index"]
)
@pytest.mark.parametrize("instead", ["nothing", "a group", "a dangling link", "a loop", "a type"])
def test_object_of_another_kind_is_refused(mixed, name, instead):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        del file[name]
        if instead == "a group":
            file.create_group(name)
        elif instead == "a dangling link":
            file[name] = h5py.SoftLink("/nowhere")
        elif instead == "a loop":
            file[name] = h5py.SoftLink(f"/{name}")
        elif instead == "a type":
            file[name] = np.dtype("i4")
    with pytest.raises(FormatError, match="mixed.h5"):
        read_everything(path)
    assert list(iter_damage(path))


@pytest.mark.parametrize(
    "shard, error",
    [
        (b"../x.h5", UnsafeFileError),
        (b"/etc/x.h5", UnsafeFileError),
        (b"sub/x.h5", UnsafeFileError),
        (b"..", UnsafeFileError),
        (b"", UnsafeFileError),
        (b"\xff\xfe.h5", H5CacheError),
        (b"absent.h5", MissingDatasetError),
        (b"manifest.h5", H5CacheError),
    ],
)
def test_manifest_that_names_another_file_is_refused(folder, shard, error):
    path, _ = folder
    shutil.copyfile(sorted(path.glob("shard-*.h5"))[0], path.parent / "x.h5")
    with h5py.File(path / "manifest.h5", "r+") as file:
        rows = file["shards"][()]
        rows["name"][0] = shard
        file["shards"][...] = rows
        file["shards"].attrs.modify("checksum", np.uint64(checksum(rows.tobytes())))
    with pytest.raises(error, match=path.name):
        H5TensorDataset(path)
    for found in iter_damage(path):
        assert found.path.startswith(str(path))


@pytest.mark.parametrize("count", [-1, 0, 7, 9, 2**62])
def test_manifest_that_counts_other_samples_is_refused(folder, count):
    path, _ = folder
    with h5py.File(path / "manifest.h5", "r+") as file:
        rows = file["shards"][()]
        rows["num_samples"][0] = count
        file["shards"][...] = rows
        file["shards"].attrs.modify("checksum", np.uint64(checksum(rows.tobytes())))
    with pytest.raises(FormatError, match=path.name):
        read_everything(path)
    assert list(iter_damage(path))
