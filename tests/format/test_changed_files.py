"""After h5repack, or a write through h5py, h5cache reads right or says that the file was changed: no wrong pixels."""

from __future__ import annotations

import shutil
import subprocess

import h5py
import hdf5plugin
import numpy as np
import pytest
from format_samples import assert_reads, make_samples, needs_tool

from h5cache import Field, H5TensorDataset, Writer
from h5cache.errors import ChecksumError, FormatError, H5CacheError, MissingDatasetError
from h5cache.format.encode import checksum
from h5cache.format.verify import iter_damage

VERIFY = ("first", "never")
REPACKS = {
    "plain": [],
    "gzip": ["-f", "GZIP=1"],
    "no filter": ["-f", "NONE"],
    "blosc2": ["-f", "UD=32026,0,7,0,0,0,0,1,1,5"],
    "blosc2, images alone": ["-f", "image,depth:UD=32026,0,7,0,0,0,0,1,0,5"],
    "blosc": ["-f", "image,depth,raw,norm,old:UD=32001,0,7,0,0,0,0,1,1,5"],
    "zstd": ["-f", "UD=32015,0,1,1"],
    "smaller chunks": ["-l", "image:CHUNK=2x3x75x75"],
    "chunks across samples": ["-l", "image:CHUNK=3x1x40x75", "-l", "raw:CHUNK=5x3"],
    "labels and index in chunks": ["-l", "label,index:CHUNK=4", "-f", "label,index:GZIP=9"],
    "contiguous": ["-l", "CONTI"],
    "compact labels": ["-l", "label:COMPA"],
}


def repack(path, environment, *options):
    out = path.with_suffix(".repacked")
    subprocess.run(
        ["h5repack", *options, str(path), str(out)], check=True, capture_output=True, env=environment, timeout=60
    )
    out.replace(path)


def check_named(path, errors):
    assert all(str(path) in str(error) for error in errors)
    return errors


def assert_right_or_refused(path, samples, verify):
    """Each sample comes back as it is in the file now, or an H5CacheError names the file. Return the errors."""
    try:
        dataset = H5TensorDataset(path, as_dict=True, verify=verify)
    except H5CacheError as exc:
        return check_named(path, [exc])
    errors = []
    with dataset:
        for name, expected in samples.items():
            dataset.fields = (name,)
            for i in np.random.default_rng(2).permutation(len(expected)).tolist():
                try:
                    read = dataset[i][name].numpy()
                except H5CacheError as exc:
                    errors.append(exc)
                else:
                    np.testing.assert_array_equal(read, expected[i], err_msg=f"{name} {i}")
    return check_named(path, errors)


@needs_tool("h5repack")
@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("way", REPACKS)
def test_repacked_file_reads_right(mixed, way, verify, plugin_environment):
    path, samples = mixed
    repack(path, plugin_environment, *REPACKS[way])
    assert_reads(path, samples, verify)


@needs_tool("h5repack")
@pytest.mark.parametrize("way", REPACKS)
def test_repacked_file_is_not_called_damaged(mixed, way, plugin_environment):
    path, _ = mixed
    repack(path, plugin_environment, *REPACKS[way])
    assert [str(found) for found in iter_damage(path) if not found.rewritten] == []


@pytest.mark.parametrize("verify", VERIFY)
def test_file_behind_a_userblock_reads_right(mixed, verify):
    path, samples = mixed
    path.write_bytes(b"notes".ljust(512) + path.read_bytes())
    assert_reads(path, samples, verify)
    assert [found for found in iter_damage(path) if not found.rewritten] == []


@needs_tool("h5repack")
@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("way", REPACKS)
def test_folder_with_one_repacked_shard_reads_right(folder, way, verify, plugin_environment):
    path, samples = folder
    shards = sorted(path.glob("shard-*.h5"))
    repack(shards[1], plugin_environment, *REPACKS[way])
    assert_reads(path, samples, verify)


@needs_tool("h5repack")
@pytest.mark.parametrize("verify", VERIFY)
def test_repacked_shard_of_the_same_size_is_noticed(folder, verify, plugin_environment):
    path, samples = folder
    shard = sorted(path.glob("shard-*.h5"))[1]
    repack(shard, plugin_environment)
    with h5py.File(path / "manifest.h5", "r+") as file:
        rows = file["shards"][()]
        rows["nbytes"][1] = shard.stat().st_size
        file["shards"][...] = rows
        file["shards"].attrs.modify("checksum", np.uint64(checksum(rows.tobytes())))
    assert_reads(path, samples, verify)


def test_folder_with_a_removed_shard_names_it(folder):
    path, _ = folder
    shard = sorted(path.glob("shard-*.h5"))[1]
    shard.unlink()
    with pytest.raises(MissingDatasetError, match=shard.name):
        H5TensorDataset(path)
    found = list(iter_damage(path))
    assert [(one.path, one.samples) for one in found] == [(str(shard), range(8, 16))]


def test_folder_with_swapped_shards_is_refused_or_right(folder):
    path, samples = folder
    first, second, _ = sorted(path.glob("shard-*.h5"))
    spare = path / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    assert assert_right_or_refused(path, {"image": samples["image"]}, "first")


@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("field", ["image", "depth", "raw", "norm", "packed", "old"])
@pytest.mark.parametrize("rows", [slice(0, 1), slice(5, 6), slice(17, 18), slice(0, 18)], ids=str)
def test_samples_written_through_h5py_read_as_they_are_now_or_are_refused(mixed, field, rows, verify):
    path, samples = mixed
    with h5py.File(path, "r+") as file:
        stored = file[field][rows]
        file[field][rows] = np.roll(stored, 3, axis=-1) if field == "norm" else stored + 1
    changed = dict(samples)
    changed[field] = samples[field].copy()
    new = samples[field][rows]
    changed[field][rows] = np.roll(new, 3, axis=-1) if field == "norm" else new + 1
    assert_right_or_refused(path, changed, verify)


@pytest.mark.parametrize("verify", VERIFY)
def test_shard_written_through_h5py_reads_as_it_is_now_or_is_refused(folder, verify):
    path, samples = folder
    with h5py.File(sorted(path.glob("shard-*.h5"))[1], "r+") as file:
        file["image"][3] = 99
    samples = {**samples, "image": samples["image"].copy()}
    samples["image"][11] = 99
    assert assert_right_or_refused(path, samples, verify) == []


def test_written_label_is_refused_with_its_key(mixed):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        file["label"][3] += 1
    with pytest.raises(ChecksumError, match=r"mixed.h5: field 'label', chunk 0, samples 0 to 17 .*picture-000.jpg"):
        H5TensorDataset(path)


def test_written_key_is_refused(mixed):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        row = file["index"][3]
        row["key"] = b"other"
        file["index"][3] = row
    with pytest.raises(ChecksumError, match="index.*samples 0 to 17"):
        _ = H5TensorDataset(path).index


@pytest.mark.parametrize("count", [10, 16, 17, 19, 24, 100])
@pytest.mark.parametrize("field", ["image", "raw"])
def test_field_of_another_length_is_refused(mixed, field, count):
    path, samples = mixed
    with h5py.File(path, "r+") as file:
        file[field].resize(count, axis=0)
    with pytest.raises(FormatError, match=rf"/{field} is .*the file was changed"):
        H5TensorDataset(path)
    with h5py.File(path, "r+") as file:
        file[field].resize(18, axis=0)
    # libhdf5 has dropped what lay beyond `count`, or encoded the edge chunk anew.
    kept = min(count, 18)
    shrunk = {field: np.concatenate([samples[field][:kept], np.zeros_like(samples[field][kept:])])}
    for verify in VERIFY:
        assert_right_or_refused(path, shrunk, verify)


def test_added_datasets_and_attributes_do_no_harm(mixed):
    path, samples = mixed
    with h5py.File(path, "r+") as file:
        file["mine"] = np.arange(5)
        file.attrs["note"] = "seen"
        file["image"].attrs["note"] = "seen"
    assert_reads(path, samples)
    assert list(iter_damage(path)) == []


@pytest.mark.parametrize("attribute", ["schema", "classes", "provenance"])
def test_written_attribute_is_refused(mixed, attribute):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        value = file.attrs[attribute]
        changed = np.roll(value, 1) if attribute == "classes" else bytes(value).replace(b"e", b"E")
        file.attrs.modify(attribute, changed)
    with pytest.raises(ChecksumError, match="mixed.h5: schema, provenance or classes"):
        H5TensorDataset(path)


def frame_nbytes(images):
    """The stored size that HDF5's own Blosc2 filter makes of a chunk of the file below."""
    with h5py.File("x", "w", driver="core", backing_store=False) as file:
        data = file.create_dataset("x", data=images, chunks=images.shape, **hdf5plugin.Blosc2("zstd", 1, 0))
        return data.id.get_chunk_info(0).size


@pytest.fixture(scope="module")
def same_size(tmp_path_factory):
    """A file with one chunk, and other images that libhdf5 stores in exactly as many bytes."""
    path = tmp_path_factory.mktemp("same") / "x.h5"
    rng = np.random.default_rng(0)
    images = make_samples(4, (3, 40, 40))
    images.reshape(4, -1)[:, :1500] = rng.integers(0, 256, (4, 1500))
    with Writer(path, {"image": Field("uint8", (3, 40, 40), "blosc2", chunk_samples=4)}) as writer:
        writer.append(image=images)
    with h5py.File(path) as file:
        wanted = file["image"].id.get_chunk_info(0).size
    noise = rng.integers(0, 256, images.size).astype(np.uint8)
    other = np.zeros_like(images)
    for step in (256, 16, 1):
        # Noise does not compress: byte by byte the frame grows, and then about as fast.
        start = np.count_nonzero(other)
        for stop in range(start, images.size, step):
            trial = np.zeros_like(images)
            trial.reshape(-1)[:stop] = noise[:stop] | 1
            nbytes = frame_nbytes(trial)
            if nbytes == wanted:
                return path, trial
            if nbytes > wanted:
                break
            other = trial
    for _ in range(4000):
        trial = other.copy()
        trial.reshape(-1)[-rng.integers(1, 2000) :: rng.integers(1, 40)] = rng.integers(0, 256)
        if frame_nbytes(trial) == wanted:
            return path, trial
    pytest.fail("found no images of the wanted stored size")


@pytest.mark.parametrize("verify", VERIFY)
def test_rewritten_chunk_of_the_same_stored_size_is_never_taken_for_ours(same_size, tmp_path, verify):
    original, images = same_size
    path = tmp_path / "x.h5"
    shutil.copyfile(original, path)
    with h5py.File(path, "r+") as file:
        before = file["image"].id.get_chunk_info(0).size
        file["image"][...] = images
        assert file["image"].id.get_chunk_info(0).size == before
    assert assert_right_or_refused(path, {"image": images}, verify) == []
    assert [found.rewritten for found in iter_damage(path)] == [True]
