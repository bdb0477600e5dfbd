"""`Writer`: what is appended comes back bit for bit; what fails publishes nothing and leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import writer_driver as driver

import h5cache.format.parts as parts_module
import h5cache.format.writer as writer_module
from h5cache import Field, H5TensorDataset, Writer
from h5cache.errors import (
    DatasetBusyError,
    DatasetExistsError,
    MissingDatasetError,
    SchemaError,
    WriterClosedError,
)
from h5cache.format.open import open_dataset
from h5cache.format.publish import lock_output

Array = np.ndarray[Any, Any]
PICTURE = {"x": Field("uint8", (3, 8, 8)), "label": Field("int64")}


@pytest.fixture(params=["out.h5", "folder"])
def out(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """A dataset to be, alone in its folder: one file, then a folder of shards."""
    return str(tmp_path / "home" / request.param) if (tmp_path / "home").mkdir() is None else ""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "out.h5")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "PART_SAMPLES", 16)


def beside(out: str) -> list[str]:
    """Everything in the output's folder."""
    home = os.path.dirname(out)
    return sorted(
        os.path.relpath(os.path.join(base, name), home) for base, dirs, files in os.walk(home) for name in dirs + files
    )


def read(path: str, name: str) -> Array:
    """All rows of a field as bits, straight from the reader."""
    with H5TensorDataset(path, fields=(name,), verify="always") as ds:
        tensor = ds[:][0]
        tensor = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        return np.asarray(tensor.numpy())


def run_driver(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, driver.__file__, *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        **options,
    )


def in_fork(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def leave_by(error: BaseException, w: Writer, **batch: Any) -> None:
    """Append a batch, then leave the writer's block by an exception."""
    with w:
        if batch:
            w.append(**batch)
        raise error


# What comes back


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (5,), (3, 9, 7), (9, 7, 3)])
def test_every_dtype_comes_back_bit_for_bit(file: str, dtype: str, shape: tuple[int, ...]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (50, *shape, np.dtype(dtype).itemsize), np.uint8)
    rows = noise.view(dtype)[..., 0] if dtype != "bool" else noise[..., 0] > 99
    with Writer(file, {"x": Field(dtype, shape)}) as w:
        w.append(x=rows[:20])
        w.append(x=torch.from_numpy(rows[20:]))
    found = read(file, "x")
    expected = rows.transpose(0, 3, 1, 2) if shape == (9, 7, 3) else rows
    assert found.dtype == rows.dtype
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


def test_bfloat16_comes_back_bit_for_bit(file: str) -> None:
    value = torch.randn(40, 3, 6, 6).bfloat16()
    with Writer(file) as w:
        w.append(x=value, y=value[:, 0, 0, 0])
    assert np.array_equal(read(file, "x"), value.view(torch.uint16).numpy())
    with H5TensorDataset(file) as ds:
        assert ds[3][0].dtype == ds[3][1].dtype == torch.bfloat16


def test_single_samples_and_batches_of_any_size_make_the_same_file(tmp_path: pathlib.Path) -> None:
    for name, batch in (("one", 1), ("seven", 7), ("all", 1000)):
        driver.write(str(tmp_path / name) + ".h5", batch=batch)
    with Writer(tmp_path / "single.h5", driver.FIELDS, classes=("a", "b")) as w:
        for number in range(driver.NUM_SAMPLES):
            sample = {name: rows[0] for name, rows in driver.samples(number, number + 1).items()}
            w.append(**sample)
    files = [path.read_bytes() for path in sorted(tmp_path.glob("*.h5"))]
    assert len(files) == 4
    assert all(data == files[0] for data in files)


def test_a_file_is_the_same_with_and_without_parts(tmp_path: pathlib.Path) -> None:
    driver.write(str(tmp_path / "a.h5"), resume=True)
    driver.write(str(tmp_path / "b.h5"), resume=False)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_what_was_appended_was_copied(file: str) -> None:
    image, label, keys = np.ones((3, 3, 8, 8), np.uint8), np.array([1, 2, 3]), ["a", "b", "c"]
    with Writer(file, PICTURE) as w:
        w.append(x=image, label=label, key=keys)
        image[:], label[:], keys[:] = 0, 0, ["", "", ""]
    assert read(file, "x").min() == 1
    with H5TensorDataset(file) as ds:
        assert ds.targets.tolist() == [1, 2, 3]
        assert ds.index["key"].tolist() == ["a", "b", "c"]


def test_keys_of_any_length_and_script_come_back(file: str) -> None:
    keys = ["", "a", "größe/猫.jpg", "x" * 4096, "trailing space ", "🐈"]
    with Writer(file, {"x": Field("int64")}) as w:
        w.append(x=[0, 1, 2, 3], key=keys[:4])
        w.append(x=4, key=keys[4])
        w.append(x=5, key=keys[5])
        w.append(x=6)
    with H5TensorDataset(file) as ds:
        assert ds.index["key"].tolist() == [*keys, ""]


def test_a_slice_of_a_batch_costs_its_own_bytes_and_not_the_batchs(file: str) -> None:
    batch = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8)
    saved = io.BytesIO()
    torch.save(batch[7], saved)
    with Writer(file, {"x": Field("uint8", (3, 32, 32))}) as w:
        w.append(x=batch[7])
    assert saved.tell() > batch.nbytes
    assert os.path.getsize(file) < 3 * batch[7].nbytes + 10_000


def test_a_dataset_without_samples_is_a_dataset(out: str) -> None:
    fields = {"x": Field("float32", (3, 8, 8)), "y": Field("uint8", (9,), codec="zstd"), "label": Field("int64")}
    with Writer(out, fields):
        pass
    with H5TensorDataset(out) as ds:
        assert len(ds) == 0
        assert list(ds) == []
        assert [tuple(tensor.shape) for tensor in ds[:]] == [(0, 3, 8, 8), (0, 9), (0,)]
        assert len(ds.index) == len(ds.targets) == 0


def test_empty_batches_change_nothing(file: str) -> None:
    with Writer(file, PICTURE) as w:
        w.append(x=[], label=[])
        w.append(x=np.zeros((0, 3, 8, 8), np.uint8), label=torch.zeros(0, dtype=torch.int64), key=[])
        w.append(x=np.ones((2, 3, 8, 8), np.uint8), label=[1, 2])
        w.append(x=[], label=[])
        assert w.num_done == 2
    assert len(read(file, "x")) == 2


def test_a_field_may_have_any_name_that_python_allows(file: str) -> None:
    with Writer(file) as w:
        w.append(self=[1, 2], fields=[3, 4], größe=[5, 6])
    with H5TensorDataset(file) as ds:
        assert ds.fields == ("self", "fields", "größe")


def test_odd_chunk_sizes_come_back_from_files_and_folders(out: str) -> None:
    rows = np.random.default_rng(0).integers(0, 4, (100, 50), np.uint8)
    fields = {"a": Field("uint8", (50,), chunk_samples=7), "b": Field("uint8", (50,), chunk_samples=5, codec="zstd")}
    with Writer(out, fields, shard_samples=30) as w:
        w.append(a=rows, b=rows[::-1])
    assert np.array_equal(read(out, "a"), rows)
    assert np.array_equal(read(out, "b"), rows[::-1])
    if not out.endswith(".h5"):
        assert open_dataset(out).starts.tolist() == [0, 35, 70, 100]


# What is refused


BAD_BATCHES: dict[str, dict[str, Any]] = {
    "shape": {"x": np.zeros((2, 3, 8, 9), np.uint8), "label": [1, 2]},
    "dtype": {"x": np.zeros((2, 3, 8, 8), np.int16), "label": [1, 2]},
    "lengths": {"x": np.zeros((2, 3, 8, 8), np.uint8), "label": [1, 2, 3]},
    "unknown": {"x": np.zeros((1, 3, 8, 8), np.uint8), "label": [1], "more": [1]},
    "missing": {"x": np.zeros((1, 3, 8, 8), np.uint8)},
    "nothing": {},
    "too large": {"x": np.zeros((1, 3, 8, 8), np.uint8), "label": [2**63]},
    "ragged": {"x": [torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, dtype=torch.uint8)], "label": [1, 2]},
    "object": {"x": np.zeros((1, 3, 8, 8), np.uint8), "label": np.array([None])},
    "text": {"x": np.zeros((1, 3, 8, 8), np.uint8), "label": "1"},
    "meta": {"x": torch.zeros(1, 3, 8, 8, dtype=torch.uint8, device="meta"), "label": [1]},
    "NUL": {"x": np.zeros((1, 3, 8, 8), np.uint8), "label": [1], "key": ["a\0b"]},
    "keys": {"x": np.zeros((1, 3, 8, 8), np.uint8), "label": [1], "key": ["a", "b"]},
}


@pytest.mark.parametrize("name", BAD_BATCHES)
@pytest.mark.parametrize("given", [True, False])
def test_a_bad_batch_is_refused_and_the_writer_goes_on_without_it(file: str, name: str, given: bool) -> None:
    with Writer(file, PICTURE if given else None) as w:
        w.append(x=np.full((2, 3, 8, 8), 1, np.uint8), label=[1, 1])
        with pytest.raises(SchemaError):
            w.append(**BAD_BATCHES[name])
        assert w.num_done == 2
        w.append(x=np.full((1, 3, 8, 8), 2, np.uint8), label=[2])
    assert read(file, "label").tolist() == [1, 1, 2]
    assert read(file, "x")[:, 0, 0, 0].tolist() == [1, 1, 2]


def test_a_bad_first_batch_does_not_decide_the_schema(file: str) -> None:
    with Writer(file) as w:
        with pytest.raises(SchemaError):
            w.append(x=np.zeros((2, 3)), label=[1, 2, 3])
        assert w.schema is None
        w.append(x=np.zeros((2, 5), np.int16))
        assert w.schema is not None
        assert w.schema["x"].shape == (5,)


def test_appending_after_close_is_refused(file: str) -> None:
    w = Writer(file, {"x": Field("int64")})
    w.append(x=1)
    w.close()
    w.close()
    with pytest.raises(WriterClosedError, match="closed; nothing can be appended"):
        w.append(x=1)
    assert read(file, "x").tolist() == [1]


def test_closing_without_fields_or_samples_is_refused_and_leaves_nothing(out: str) -> None:
    with pytest.raises(SchemaError, match="nothing was appended and no fields were given"), Writer(out):
        pass
    assert beside(out) == []


def test_options_that_cannot_be_are_refused_before_any_work(out: str) -> None:
    with pytest.raises(SchemaError, match="chunk_samples"):
        Writer(out, {"x": Field("uint8", (10**6,), chunk_samples=2**30)})
    with pytest.raises(SchemaError, match="provenance must be JSON"):
        Writer(out, PICTURE, provenance={"a": object()})
    with pytest.raises(ValueError, match="shard_samples"):
        Writer(out, PICTURE, shard_samples=0)
    assert beside(out) == []


def test_a_writer_whose_append_broke_in_the_middle_publishes_nothing(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from h5cache.format import hdf5

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    rows = np.random.default_rng(0).integers(0, 256, (8, 100), np.uint8)
    w = Writer(out, {"x": Field("uint8", (100,), chunk_samples=4)})
    with monkeypatch.context() as patch:
        patch.setattr(hdf5, "append_chunk", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            w.append(x=rows)
    with pytest.raises(WriterClosedError, match="failed in the middle"):
        w.append(x=rows)
    with pytest.raises(WriterClosedError, match="nothing is published"):
        w.close()
    assert beside(out) == []


# Memory


def test_memory_does_not_grow_with_the_number_of_chunks(tmp_path: pathlib.Path) -> None:
    def peak(chunks: int) -> int:
        rows = np.zeros((64, 3, 32, 32), np.uint8)
        gc.collect()
        tracemalloc.start()
        try:
            with Writer(
                tmp_path / f"{chunks}.h5", {"x": Field("uint8", (3, 32, 32), chunk_samples=64, codec="none")}
            ) as w:
                for number in range(chunks):
                    rows[:] = number
                    w.append(x=rows)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    few, many = peak(5), peak(50)
    # Keys and tables grow: some bytes a sample. A chunk is 196 kB.
    assert many < few + 50 * 64 * 40


def test_samples_appended_one_by_one_need_few_bytes_each(file: str) -> None:
    count = 20_000
    with Writer(file, {"x": Field("int64")}) as w:
        w.append(x=0, key="first")
        tracemalloc.start()
        try:
            for number in range(count):
                w.append(x=number, key="0123456789")
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert kept < count * 60 + 600_000
    assert len(read(file, "x")) == count + 1


# Exact codes


def levels(count: int, seed: int = 0) -> Array:
    """Planes of 256 levels, as a normalised picture has."""
    return (np.random.default_rng(seed).integers(0, 256, (count, 64)).astype(np.float32)) / np.float32(255)


def nudged(rows: Array) -> Array:
    return np.nextafter(rows, np.float32(9))


COUNT = 64


@pytest.mark.parametrize("at", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63])
def test_a_later_conflict_stores_floats_bit_for_bit(out: str, small_parts: None, at: int) -> None:
    rows = levels(COUNT)
    rows[at:] = nudged(rows[at:])
    with Writer(out, {"x": Field("float32", (64,), chunk_samples=4)}, resume=True, shard_samples=16) as w:
        for start in range(0, COUNT, 5):
            w.append(x=rows[start : start + 5], key=[str(i) for i in range(start, min(COUNT, start + 5))])
        assert w.num_done == COUNT
    assert read(out, "x").tobytes() == rows.tobytes()
    assert open_dataset(out).storage["x"].table is None
    with H5TensorDataset(out) as ds:
        assert ds.index["key"].tolist() == [str(i) for i in range(COUNT)]
    assert [name for name in beside(out) if "partial" in name or "parts" in name or "codes" in name] == []


def test_a_conflict_makes_the_same_file_as_floats_from_the_start(tmp_path: pathlib.Path, small_parts: None) -> None:
    rows = levels(COUNT)
    rows[40:] = nudged(rows[40:])
    for name, exact in (("codes", "auto"), ("floats", "never")):
        for batch in (3, 64):
            with Writer(tmp_path / f"{name}{batch}.h5", {"x": Field("float32", (64,), exact=exact)}, resume=True) as w:
                for start in range(0, COUNT, batch):
                    w.append(x=rows[start : start + batch])
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")}
    assert len(files) == 4
    assert len(set(files.values())) == 1


@pytest.mark.parametrize("first, second", [(20, 20), (20, 40), (40, 20), (16, 32), (5, 6), (63, 63)])
def test_two_fields_may_conflict_one_after_the_other(out: str, small_parts: None, first: int, second: int) -> None:
    rows = {"a": levels(COUNT, 1), "b": levels(COUNT, 2), "c": levels(COUNT, 3)}
    rows["a"][first:], rows["b"][second:] = nudged(rows["a"][first:]), nudged(rows["b"][second:])
    fields = {name: Field("float32", (64,), chunk_samples=4) for name in rows}
    with Writer(out, fields, resume=True, shard_samples=16) as w:
        for start in range(0, COUNT, 7):
            w.append(**{name: array[start : start + 7] for name, array in rows.items()})
    for name, array in rows.items():
        assert read(out, name).tobytes() == array.tobytes()
    assert open_dataset(out).storage["c"].table is not None


def test_values_that_conflict_only_between_parts_are_stored_as_floats(out: str, small_parts: None) -> None:
    """Each part alone has one meaning per code: a table that starts empty in each part would find out at the join."""
    rows = levels(32)
    rows[16:] = nudged(rows[16:])
    with Writer(out, {"x": Field("float32", (64,), chunk_samples=16)}, resume=True, shard_samples=16) as w:
        w.append(x=rows)
    assert read(out, "x").tobytes() == rows.tobytes()


def test_a_resumed_run_knows_the_codes_of_all_parts_before(out: str, small_parts: None) -> None:
    rows = levels(64)
    rows[0:16] = rows[0:16].round()
    rows[48:] = nudged(rows[48:])
    fields = {"x": Field("float32", (64,), chunk_samples=16, exact="codes", codec="blosc2")}
    died = Writer(out, fields, resume=True, shard_samples=16)
    died.append(x=rows[:50])
    died.abort()
    with Writer(out, fields, resume=True, shard_samples=16) as w:
        w.append(x=rows[w.num_done :])
    assert read(out, "x").tobytes() == rows.tobytes()


def test_exact_codes_are_tried_only_where_they_are_wanted(tmp_path: pathlib.Path) -> None:
    rows = levels(32)
    wanted = {
        "auto": (Field("float32", (64,)), True),
        "codes": (Field("float32", (64,), codec="zstd", exact="codes"), True),
        "codec given": (Field("float32", (64,), codec="zstd"), False),
        "never": (Field("float32", (64,), exact="never"), False),
    }
    for name, (field, coded) in wanted.items():
        path = str(tmp_path / f"{name}.h5")
        with Writer(path, {"x": field}) as w:
            w.append(x=rows)
        assert (open_dataset(path).storage["x"].table is not None) == coded, name
        assert read(path, "x").tobytes() == rows.tobytes()


def test_codes_asked_for_but_impossible_are_floats(file: str) -> None:
    rows = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    with Writer(file, {"x": Field("float32", (64,), exact="codes")}) as w:
        w.append(x=rows)
    assert read(file, "x").tobytes() == rows.tobytes()


# Publishing


def test_the_dataset_appears_at_the_end_and_alone(out: str) -> None:
    with Writer(out, PICTURE) as w:
        w.append(x=np.zeros((4, 3, 8, 8), np.uint8), label=[1] * 4)
        assert driver.digest(out) is None
    names = beside(out)
    assert names[0] == os.path.basename(out)
    assert all(name.endswith(".h5") or name == "folder" for name in names)
    assert len(names) == (1 if out.endswith(".h5") else 3)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("resume", [False, True])
def test_an_exception_in_the_loop_publishes_nothing_and_leaves_nothing(
    out: str, error: type[BaseException], resume: bool
) -> None:
    with pytest.raises(error):
        leave_by(error(), Writer(out, PICTURE, resume=resume), x=np.zeros((4, 3, 8, 8), np.uint8), label=[1] * 4)
    assert beside(out) == []


@pytest.mark.parametrize(
    "name, where",
    [
        ("out.h5", "join_parts"),
        ("out.h5", "check_chunks"),
        ("out.h5", "publish_file"),
        ("folder", "write_manifest"),
        ("folder", "publish_file"),
    ],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_exception_while_publishing_keeps_the_parts_if_they_are_wanted_and_else_leaves_nothing(
    tmp_path: pathlib.Path,
    name: str,
    where: str,
    error: type[BaseException],
    small_parts: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    out = str(tmp_path / name)
    for resume in (True, False) if name == "folder" else (True,):
        w = Writer(out, driver.FIELDS, classes=("a", "b"), resume=resume, shard_samples=16)
        w.append(**driver.samples(0, 64))
        with monkeypatch.context() as patch:
            patch.setattr(parts_module, where, fail)
            with pytest.raises(error):
                w.close()
        assert not any("partial" in left or "lock" in left for left in beside(out))
        if resume:
            with Writer(out, driver.FIELDS, classes=("a", "b"), resume=True, shard_samples=16) as w:
                assert w.num_done == 64
            assert driver.published(out) == 64
            shutil.rmtree(out) if name == "folder" else os.unlink(out)
        assert beside(out) == []


def test_a_writer_that_is_forgotten_leaves_nothing(out: str) -> None:
    w = Writer(out, PICTURE)
    w.append(x=np.zeros((4, 3, 8, 8), np.uint8), label=[1] * 4)
    del w
    gc.collect()
    assert beside(out) == []


def test_an_existing_dataset_is_refused_at_once(out: str) -> None:
    driver.write(out, num=5)
    before = beside(out)
    for resume in (False, True):
        with pytest.raises(DatasetExistsError, match="pass overwrite=True"):
            Writer(out, PICTURE, resume=resume)
    assert beside(out) == before


def test_an_overwritten_dataset_is_readable_until_the_end_and_then_replaced(out: str) -> None:
    driver.write(out, num=20)
    with Writer(out, driver.FIELDS, overwrite=True, shard_samples=16) as w:
        w.append(**driver.samples(0, 50))
        assert driver.published(out) == 20
    assert driver.published(out) == 50
    assert len(beside(out)) == (1 if out.endswith(".h5") else 2 + 4)


def test_an_overwritten_dataset_survives_an_exception(out: str) -> None:
    driver.write(out, num=20)
    before = beside(out)
    w = Writer(out, driver.FIELDS, classes=("a", "b"), overwrite=True, shard_samples=16)
    with pytest.raises(KeyboardInterrupt):
        leave_by(KeyboardInterrupt(), w, **driver.samples(0, 50))
    assert driver.published(out) == 20
    assert beside(out) == before


def test_a_dataset_that_is_published_survives_an_interrupt_while_the_old_one_is_removed(
    out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.write(out, num=20)
    remove = parts_module.remove

    def interrupt(path: str) -> None:
        if driver.published(out) == 50:
            monkeypatch.setattr(parts_module, "remove", remove)
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(parts_module, "remove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        driver.write(out, num=50, overwrite=True)
    assert driver.published(out) == 50


def test_a_folder_run_killed_after_publishing_is_not_taken_for_an_unfinished_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards are the published dataset: neither a resumed nor a new run may touch them before its end."""
    out = str(tmp_path / "folder")
    driver.write(out, num=50)
    run = parts_module.PartsFolder(out, parts_module._published_shards(out)[0].split("-")[1])
    run.describe({})
    for resume in (False, True):
        w = Writer(out, driver.FIELDS, overwrite=True, resume=resume)
        assert w.num_done == 0
        with pytest.raises(RuntimeError):
            leave_by(RuntimeError(), w)
        assert driver.published(out) == 50


def test_a_folders_other_files_are_not_ours_to_remove(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "folder"
    out.mkdir()
    mine = [out / name for name in ("shard-mine.h5", "shard-0.h5", "notes.partial", "photo.jpg")]
    for path in mine:
        path.write_text("precious")
    driver.write(str(out), num=40)
    driver.write(str(out), num=40, overwrite=True)
    with pytest.raises(RuntimeError):
        leave_by(RuntimeError(), Writer(out, driver.FIELDS, overwrite=True), **driver.samples(0, 9))
    assert all(path.read_text() == "precious" for path in mine)
    assert driver.published(str(out)) == 40


def test_a_damaged_dataset_can_be_overwritten(out: str) -> None:
    driver.write(out, num=20)
    damaged = out if out.endswith(".h5") else os.path.join(out, "manifest.h5")
    os.truncate(damaged, 100)
    driver.write(out, num=30, overwrite=True)
    assert driver.published(out) == 30


def test_a_missing_parent_folder_is_said_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(MissingDatasetError, match="create it first"):
        Writer(tmp_path / "no" / "out.h5", PICTURE)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_in_the_way_of_a_file_and_a_file_in_the_way_of_a_folder_are_refused_at_once(
    tmp_path: pathlib.Path, overwrite: bool
) -> None:
    (tmp_path / "out.h5").mkdir()
    (tmp_path / "out").write_text("a file")
    for name in ("out.h5", "out"):
        with pytest.raises(DatasetExistsError):
            Writer(tmp_path / name, PICTURE, overwrite=overwrite)
    assert sorted(os.listdir(tmp_path)) == ["out", "out.h5"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_read_only_place_is_said_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "place").mkdir(mode=0o555)
    monkeypatch.chdir(tmp_path / "place")

    def try_as_nobody() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        with pytest.raises(PermissionError, match="out.h5.lock"):
            # By a relative path: nobody may not walk down to pytest's folder.
            with lock_output("out.h5"):
                pass

    assert in_fork(try_as_nobody) == 0


# Two writers, forks


def test_a_second_writer_is_told_at_once_and_a_killed_one_leaves_no_stale_lock(out: str) -> None:
    with subprocess.Popen(
        [sys.executable, driver.__file__, "hold", out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(DatasetBusyError, match="another process is writing"):
                Writer(out, driver.FIELDS, **options)
        holder.kill()
        holder.wait()
    driver.write(out, num=20)
    assert driver.published(out) == 20
    assert [name for name in beside(out) if not name.endswith(".h5")] == ([] if out.endswith(".h5") else ["folder"])


def test_two_writers_of_one_process_are_told_apart_too(out: str) -> None:
    with Writer(out, PICTURE):
        with pytest.raises(DatasetBusyError):
            Writer(out, PICTURE)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_harm_its_parents_writer(out: str) -> None:
    writers = [Writer(out, driver.FIELDS, resume=True, shard_samples=16)]
    writers[0].append(**driver.samples(0, 40))

    def forget() -> None:
        writers.clear()
        gc.collect()

    def use() -> None:
        for action in (lambda: writers[0].append(**driver.samples(40, 41)), writers[0].close):
            with pytest.raises(WriterClosedError, match="belongs to process"):
                action()

    def leave() -> None:
        with writers[0]:
            sys.exit()

    assert in_fork(forget) == 0
    assert in_fork(use) == 0
    assert in_fork(leave) == 1
    with pytest.raises(DatasetBusyError):
        Writer(out, driver.FIELDS)
    writers[0].append(**driver.samples(40, 50))
    writers[0].close()
    assert driver.published(out) == 50


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lock_does_not_outlive_its_process_in_forked_workers(file: str) -> None:
    """A DataLoader's workers live on for some seconds when the loop is killed: a re-run must not find it busy."""
    ready, held = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        w = Writer(file, PICTURE)
        worker = os.fork()
        if worker == 0:
            os.close(held[1])
            os.write(ready[1], b"x")
            os.read(held[0], 1)  # until the test ends
            os._exit(0)
        signal.pause()
        w.close()
    os.close(held[0])
    os.read(ready[0], 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    driver.write(file, num=3)
    os.close(held[1])
    assert driver.published(file) == 3


# Resuming


def die_at(out: str, num: int, **options: Any) -> None:
    w = Writer(out, driver.FIELDS, classes=("a", "b"), resume=True, shard_samples=16, **options)
    with pytest.raises(RuntimeError, match="died"):
        leave_by(RuntimeError("died"), w, **driver.samples(w.num_done, num))


def test_finished_parts_survive_and_the_resumed_dataset_is_the_same(out: str, small_parts: None) -> None:
    driver.write(out, resume=True)
    undisturbed = driver.digest(out)
    for path in [out] if out.endswith(".h5") else [os.path.join(out, name) for name in os.listdir(out)]:
        os.unlink(path)
    for num, done in ((10, 0), (40, 32), (42, 32), (64, 64), (64, 64), (75, 64)):
        die_at(out, num)
        assert driver.digest(out) is None
        assert not any("partial" in name or "lock" in name for name in beside(out))
        found = parts_module.PartsFolder.find(out)
        assert len(found[0].finished() if found else []) == done // 16
    driver.write(out, resume=True)
    assert driver.digest(out) == undisturbed


def test_leftover_parts_are_not_thrown_away_unasked(out: str, small_parts: None) -> None:
    die_at(out, 40)
    before = beside(out)
    with pytest.raises(DatasetExistsError, match="2 finished parts .* pass resume=True to go on, or overwrite=True"):
        driver.write(out)
    assert beside(out) == before
    driver.write(out, num=10, overwrite=True)
    assert driver.published(out) == 10
    assert not any("parts" in name or "run" in name for name in beside(out))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"fields": {**driver.FIELDS, "label": Field("int32")}}, "other fields"),
        ({"classes": ("a", "c")}, "other classes"),
        ({"provenance": {"transform": "new"}}, "other provenance"),
        ({"fields": None, "classes": ("x",)}, "other classes"),
    ],
)
def test_a_changed_run_is_refused_by_name_and_its_parts_are_kept(
    out: str, small_parts: None, change: dict[str, Any], said: str
) -> None:
    die_at(out, 40)
    before = beside(out)
    options: dict[str, Any] = {"fields": driver.FIELDS, "classes": ("a", "b"), "resume": True, "shard_samples": 16}
    with pytest.raises(SchemaError, match=f"{said}; give the same, or pass resume=False, overwrite=True"):
        Writer(out, **{**options, **change})
    assert beside(out) == before


def test_a_resumed_run_takes_its_fields_from_the_parts(out: str, small_parts: None) -> None:
    die_at(out, 40, provenance={"size": (8, 8)})
    with Writer(out, classes=("a", "b"), resume=True, shard_samples=16, provenance={"size": (8, 8)}) as w:
        assert w.num_done == 32
        assert list(w.schema or ()) == list(driver.FIELDS)
        with pytest.raises(SchemaError, match="expected dtype"):
            w.append(**{**driver.samples(32, 40), "label": np.zeros(8, np.int32)})
        w.append(**driver.samples(32, 75))
    assert driver.published(out) == 75


def test_a_run_that_never_finished_a_part_does_not_bind_the_next(out: str) -> None:
    with subprocess.Popen(
        [sys.executable, driver.__file__, "hold", out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
    assert beside(out) != []
    with Writer(out, {"other": Field("int64")}, resume=True) as w:
        assert w.num_done == 0
        w.append(other=[1, 2])
    assert read(out, "other").tolist() == [1, 2]
    assert not any("parts" in name or "lock" in name or "run" in name for name in beside(out))


def test_resuming_a_finished_dataset_says_that_it_exists(out: str, small_parts: None) -> None:
    driver.write(out, resume=True)
    with pytest.raises(DatasetExistsError):
        driver.write(out, resume=True)
    driver.write(out, resume=True, overwrite=True)
    assert driver.published(out) == driver.NUM_SAMPLES


def attack(out: str, **options: Any) -> dict[str, Any]:
    done = run_driver("attack", out, json.dumps({"conflict_at": None, "overwrite": False, **options}))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout), log=done.stderr)


@pytest.mark.parametrize("overwrite, conflict_at", [(False, None), (True, 40)])
def test_a_writer_killed_before_any_step_on_the_disk_resumes_to_the_same_bytes(
    out: str, overwrite: bool, conflict_at: int | None
) -> None:
    stride = 11 if conflict_at else 7
    found = attack(out, how="steps", count=120, stride=stride, overwrite=overwrite, conflict_at=conflict_at)
    assert found["problems"] == [], found["log"]
    assert found["kills"] >= 6


def test_a_writer_killed_at_random_moments_resumes_to_the_same_bytes(out: str) -> None:
    found = attack(out, how="moments", count=5)
    assert found["problems"] == [], found["log"]
    assert found["kills"] >= 6


@pytest.mark.slow
@pytest.mark.timeout(550)
@pytest.mark.parametrize("how, count", [("steps", 500), ("moments", 50)])
@pytest.mark.parametrize("overwrite, conflict_at", [(False, None), (True, 40)])
def test_a_writer_killed_a_hundred_times_resumes_to_the_same_bytes(
    out: str, how: str, count: int, overwrite: bool, conflict_at: int | None
) -> None:
    found = attack(out, how=how, count=count, overwrite=overwrite, conflict_at=conflict_at)
    assert found["problems"] == [], found["log"]
    assert found["kills"] >= 40


# A full disk


@pytest.mark.parametrize("nbytes", [300, 3000, 40_000, 200_000])
def test_a_file_that_may_not_grow_is_a_clear_error_and_leaves_nothing(out: str, nbytes: int) -> None:
    done = run_driver("limited", out, str(nbytes), "anew")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OSError [Errno 27] File too large"), done.stdout
    assert done.stdout.count("\n") == 1
    assert beside(out) == []


def test_parts_survive_a_file_that_may_not_grow_and_the_run_resumes(tmp_path: pathlib.Path) -> None:
    limited, right = str(tmp_path / "limited.h5"), str(tmp_path / "right.h5")
    done = run_driver("limited", limited, "200000", "resume")
    assert done.stdout.startswith("OSError [Errno 27] File too large"), done.stdout + done.stderr
    assert not any("partial" in name or "lock" in name for name in beside(limited))
    assert sum("part-" in name for name in beside(limited)) > 3
    assert run_driver("limited", limited, "0", "resume").stdout == "published\n"
    assert run_driver("limited", right, "0", "anew").stdout == "published\n"
    assert pathlib.Path(limited).read_bytes() == pathlib.Path(right).read_bytes()
    assert beside(limited) == ["limited.h5", "right.h5"]


@pytest.fixture
def full_disk(tmp_path: pathlib.Path) -> Iterator[str]:
    """A disk of 900 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield str(disk)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("name", ["out.h5", "folder"])
def test_a_full_disk_is_a_clear_error_and_is_free_again_afterwards(full_disk: str, name: str) -> None:
    out = os.path.join(full_disk, name)
    identifiers = h5py.h5f.get_obj_count()
    rows = np.random.default_rng(0).integers(0, 256, (400, 4096), np.uint8)
    w = Writer(out, {"x": Field("uint8", (4096,), chunk_samples=8)})
    with pytest.raises(OSError, match=r"No space left on device: '.*partial'") as caught:
        w.append(x=rows)
    w.abort()
    assert caught.value.errno == errno.ENOSPC
    assert beside(out) == []
    assert h5py.h5f.get_obj_count() == identifiers
    free = os.statvfs(full_disk)
    assert free.f_bfree * free.f_bsize > 850_000


def test_parts_survive_a_full_disk_and_the_run_resumes_when_there_is_room(full_disk: str) -> None:
    out = os.path.join(full_disk, "out.h5")
    done = run_driver("full", out, "resume")
    assert "No space left on device" in done.stdout, done.stdout + done.stderr
    assert sum("part-" in name for name in beside(out)) > 3
    subprocess.run(["mount", "-o", "remount,size=9m", full_disk], check=True)
    assert run_driver("full", out, "resume").stdout == "published\n"
    assert beside(out) == ["out.h5"]
