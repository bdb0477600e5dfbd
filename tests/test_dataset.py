"""`H5TensorDataset`: the right samples for every kind of index, in every kind of worker."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from h5cache import Field, H5TensorDataset, Writer
from h5cache.errors import ChecksumError, DatasetChangedError, MissingDatasetError, SchemaError
from h5cache.store.local import MAX_OPEN_FILES

NUM = 100
FIELDS = {
    "image": Field("uint8", (3, 12, 10), chunk_samples=8),
    "plane": Field("float32", (3, 12, 10), chunk_samples=8),
    "hwc": Field("uint8", (12, 10, 3), chunk_samples=16, codec="zstd"),
    "half": Field("bfloat16", (20,), chunk_samples=16),
    "mask": Field("bool", (6, 7), codec="none", chunk_samples=16),
    "label": Field("int64"),
}


def content(num: int = NUM) -> dict[str, torch.Tensor]:
    """What the datasets of these tests hold, in (N, C, H, W)."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (num, 3, 12, 10), generator=generator, dtype=torch.uint8)
    return {
        "image": image,
        "plane": (image.float() / 255 - 0.5) / 0.25,
        "hwc": image.flip(2),
        "half": torch.randn(num, 20, generator=generator).bfloat16(),
        "mask": torch.rand(num, 6, 7, generator=generator) > 0.5,
        "label": torch.arange(num) % 3,
    }


def write(path: str, num: int = NUM, **options: Any) -> str:
    rows = content(num)
    with Writer(path, FIELDS, classes=("cat", "dog", "eel"), shard_samples=16, **options) as w:
        w.append(**{**rows, "hwc": rows["hwc"].permute(0, 2, 3, 1)}, key=[f"k{number}" for number in range(num)])
    return path


@pytest.fixture(scope="module", params=["out.h5", "folder"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same 100 samples as one file and as a folder of shards."""
    return write(str(tmp_path_factory.mktemp("dataset") / request.param))


@pytest.fixture
def ds(path: str) -> H5TensorDataset:
    return H5TensorDataset(path)


def check(found: Any, numbers: Any) -> None:
    expected = content()
    assert len(found) == len(expected)
    for value, (name, rows) in zip(found, expected.items(), strict=True):
        assert value.dtype == rows.dtype, name
        assert torch.equal(value, rows[numbers]), name


# Choosing samples


@pytest.mark.parametrize("number", [0, 1, 57, NUM - 1])
def test_a_number_gives_one_sample(ds: H5TensorDataset, number: int) -> None:
    assert len(ds) == NUM
    for same in (number, number - NUM, np.int32(number), np.array(number), torch.tensor(number), np.uint8(number)):
        check(ds[same], number)


@pytest.mark.parametrize(
    "chosen",
    [
        slice(None),
        slice(3, 20),
        slice(90, 1000),
        slice(None, None, 7),
        slice(None, None, -1),
        slice(-5, None),
        slice(8, 3),
    ],
)
def test_a_slice_gives_a_batch(ds: H5TensorDataset, chosen: slice) -> None:
    check(ds[chosen], torch.arange(NUM)[list(range(NUM))[chosen]])


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, torch.tensor, lambda n: np.array(n, np.int16), lambda n: torch.tensor(n).int()]
)
def test_a_list_of_numbers_gives_a_batch_in_that_order_with_repeats(
    ds: H5TensorDataset, kind: Callable[[Any], Any]
) -> None:
    numbers = [5, 99, 5, -1, 0, 42, -100, 17]
    check(ds[kind(numbers)], numbers)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_a_mask_gives_the_samples_that_are_true(ds: H5TensorDataset, kind: Callable[[Any], Any]) -> None:
    mask = [number % 9 == 4 for number in range(NUM)]
    check(ds[kind(mask)], torch.tensor(mask))


def test_no_numbers_give_an_empty_batch(ds: H5TensorDataset) -> None:
    for none in ([], np.array([], int), torch.tensor([]), slice(0, 0), np.zeros(NUM, bool)):
        check(ds[none], slice(0, 0))


@pytest.mark.parametrize(
    "outside",
    [NUM, -NUM - 1, 10**30, [0, NUM], [-NUM - 1], np.array([2**64 - 1], np.uint64), [True], np.zeros(NUM + 1, bool)],
)
def test_what_is_out_of_range_is_an_index_error(ds: H5TensorDataset, outside: Any) -> None:
    with pytest.raises(IndexError):
        ds[outside]


@pytest.mark.parametrize("wrong", [1.0, torch.tensor(1.5), np.array(0.0), [0.5], "1", None, [[1, 2]], {1}, ["a"]])
def test_what_is_no_number_is_a_type_error(ds: H5TensorDataset, wrong: Any) -> None:
    with pytest.raises(TypeError):
        ds[wrong]


def test_a_for_loop_visits_every_sample_and_stops(ds: H5TensorDataset) -> None:
    assert [int(sample[-1]) for sample in ds] == content()["label"].tolist()


# What is delivered


def test_fields_are_delivered_in_the_order_asked_for(path: str) -> None:
    rows = content()
    ds = H5TensorDataset(path, fields=("label", "image"))
    assert ds.fields == ("label", "image")
    label, image = ds[7]
    assert int(label) == int(rows["label"][7])
    assert torch.equal(image, rows["image"][7])
    as_dict = H5TensorDataset(path, fields=("label", "image"), as_dict=True)[[3, 2]]
    assert list(as_dict) == ["label", "image"]
    assert torch.equal(as_dict["image"], rows["image"][[3, 2]])


@pytest.mark.parametrize("fields", [("nothing",), (), "image", ("image", "image")])
def test_fields_that_cannot_be_delivered_are_refused(path: str, fields: Any) -> None:
    with pytest.raises(SchemaError, match="fields must (name some of image, plane|be a list)"):
        H5TensorDataset(path, fields=fields)


def test_the_schema_is_the_one_that_was_written(ds: H5TensorDataset) -> None:
    assert {name: (field.dtype, field.shape, field.layout) for name, field in ds.schema.items()} == {
        name: (field.dtype, field.shape, field.layout) for name, field in FIELDS.items()
    }
    assert "100 samples" in repr(ds)


def test_classes_targets_and_index_are_as_imagefolder_has_them(ds: H5TensorDataset) -> None:
    assert tuple(ds.classes) == ("cat", "dog", "eel")
    assert ds.class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
    assert torch.equal(torch.as_tensor(ds.targets), content()["label"])
    assert ds.index["key"].tolist() == [f"k{number}" for number in range(NUM)]
    ds.targets[:] = 9
    assert int(ds[4][-1]) == 1


def test_targets_of_a_dataset_without_labels_say_what_is_missing(tmp_path: pathlib.Path) -> None:
    with Writer(tmp_path / "a.h5") as w:
        w.append(x=torch.zeros(3, 40))
    with pytest.raises(AttributeError, match="no field 'label'"):
        _ = H5TensorDataset(tmp_path / "a.h5").targets


def test_transforms_see_the_first_and_the_second_field(path: str) -> None:
    ds = H5TensorDataset(
        path, fields=("image", "label"), transform=lambda image: image.float().mean(), target_transform=lambda y: -y
    )
    mean, label = ds[5]
    assert float(mean) == float(content()["image"][5].float().mean())
    assert int(label) == -2


def test_pictures_stored_hwc_come_out_channels_last_without_a_copy(path: str) -> None:
    (batch,) = H5TensorDataset(path, fields=("hwc",))[:10]
    assert batch.shape == (10, 3, 12, 10)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    (planar,) = H5TensorDataset(path, fields=("image",))[:10]
    assert planar.is_contiguous()


def test_normalised_pictures_are_stored_as_codes_and_come_back_bit_for_bit(ds: H5TensorDataset, path: str) -> None:
    file = path if path.endswith(".h5") else next(str(name) for name in pathlib.Path(path).glob("shard-*"))
    with h5py.File(file) as stored:
        assert stored["plane"].dtype == np.uint8
    assert torch.equal(ds[:][1].view(torch.int32), content()["plane"].view(torch.int32))


def test_tensors_are_the_callers_own(ds: H5TensorDataset) -> None:
    for item in (3, [3, 4], slice(3, 5)):
        for tensor in ds[item]:
            tensor.zero_()
    check(ds[3], 3)
    check(ds[[3, 4]], [3, 4])


@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_samples_are_the_same_however_they_are_verified(path: str, verify: str) -> None:
    ds = H5TensorDataset(path, verify=verify)
    for _ in range(2):
        check(ds[:], slice(None))


def test_a_way_to_verify_that_is_not_known_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="verify must be one of first, always, never"):
        H5TensorDataset(path, verify="sometimes")


def test_a_missing_dataset_and_a_missing_shard_are_said(tmp_path: pathlib.Path) -> None:
    for name in ("no.h5", "no"):
        with pytest.raises(MissingDatasetError):
            H5TensorDataset(tmp_path / name)
    folder = write(str(tmp_path / "folder"))
    os.unlink(next((tmp_path / "folder").glob("shard-*-00003.h5")))
    with pytest.raises(MissingDatasetError, match="a shard of the dataset is missing"):
        H5TensorDataset(folder)


def test_a_dataset_that_is_replaced_while_open_says_so(tmp_path: pathlib.Path) -> None:
    for name in ("out.h5", "folder"):
        path = write(str(tmp_path / name))
        ds, used = H5TensorDataset(path), H5TensorDataset(path)
        check(used[:], slice(None))
        write(path, overwrite=True)
        with pytest.raises((DatasetChangedError, MissingDatasetError)):
            ds[0]
        check(used[5], 5)  # its descriptors still hold the files that were opened
        check(H5TensorDataset(path)[5], 5)


def test_a_damaged_sample_names_its_key(tmp_path: pathlib.Path) -> None:
    path = write(str(tmp_path / "out.h5"))
    with h5py.File(path) as file:
        offset = file["mask"].id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as stream:
        stream.seek(offset + 42 * 5)
        stream.write(b"\7")
    with pytest.raises(ChecksumError, match="field 'mask'.*k"):
        H5TensorDataset(path, fields=("mask",))[5]


# Descriptors, pickling, workers


def open_files(under: str) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith(under):
            found.append(target)
    return found


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")


@needs_proc
def test_nothing_is_open_after_opening_and_after_close(path: str) -> None:
    identifiers = h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
    ds = H5TensorDataset(path)
    _ = ds.targets, ds.index, ds.classes
    assert open_files(path) == []
    assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == identifiers
    check(ds[:], slice(None))
    assert open_files(path) != []
    ds.close()
    ds.close()
    assert open_files(path) == []
    check(ds[1], 1)
    del ds
    assert open_files(path) == []


def test_a_dataset_pickles_small_before_and_after_it_was_read(ds: H5TensorDataset) -> None:
    fresh = pickle.dumps(ds)
    check(ds[:], slice(None))
    used = pickle.dumps(ds)
    assert len(fresh) < 40_000
    assert len(used) < len(fresh) + 1000
    check(pickle.loads(used)[[9, 2]], [9, 2])


def verify_all(ds: H5TensorDataset, seed: int) -> int:
    """Read everything in a random order; return how many samples were right."""
    numbers = np.random.default_rng(seed).permutation(len(ds))
    rows = content(len(ds))
    return sum(
        all(torch.equal(value, rows[name][n]) for value, name in zip(ds[int(n)], ds.fields, strict=True))
        for n in numbers
    )


def in_worker(ds: H5TensorDataset, seed: int, results: Any) -> None:
    torch.set_num_threads(1)  # as a DataLoader's workers do: OpenMP does not survive a fork
    results.put((seed, verify_all(ds, seed)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_dataset_read_in_the_parent_is_right_in_all_kinds_of_workers_at_once(ds: H5TensorDataset) -> None:
    assert verify_all(ds, 0) == NUM
    running = []
    results = []
    for number, method in enumerate(("fork", "spawn", "forkserver")):
        context: Any = multiprocessing.get_context(method)
        queue = context.Queue()
        for seed in (2 * number, 2 * number + 1):
            process = context.Process(target=in_worker, args=(ds, seed, queue))
            process.start()
            running.append(process)
        results.append(queue)
    assert verify_all(ds, 9) == NUM
    found = [queue.get(timeout=60) for queue in results for _ in range(2)]
    for process in running:
        process.join(timeout=30)
    assert sorted(found) == [(seed, NUM) for seed in range(6)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_dataloader_delivers_every_sample_once_with_any_kind_of_workers(path: str, method: str) -> None:
    ds = H5TensorDataset(path, fields=("image", "label", "half"))
    check_first = ds[0]
    rows = content()
    loader = DataLoader(ds, batch_size=7, shuffle=True, num_workers=2, multiprocessing_context=method)
    sums = {int(image.long().sum()): int(label) for image, label in zip(rows["image"], rows["label"], strict=True)}
    seen = []
    for image, label, half in loader:
        assert half.dtype == torch.bfloat16
        seen += [int(one.long().sum()) for one in image]
        assert [sums[total] for total in seen[-len(label) :]] == label.tolist()
    assert sorted(seen) == sorted(int(one.long().sum()) for one in rows["image"])
    assert torch.equal(check_first[0], rows["image"][0])


def test_a_subset_and_a_dataloader_without_workers_deliver_the_right_batches(ds: H5TensorDataset) -> None:
    numbers = [9, 3, 50, 99, 0]
    batches = list(DataLoader(Subset(ds, numbers), batch_size=2))
    assert [len(batch[0]) for batch in batches] == [2, 2, 1]
    check([torch.cat(parts) for parts in zip(*batches, strict=True)], numbers)


def test_eight_threads_at_once_read_the_right_samples(ds: H5TensorDataset) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda seed: verify_all(ds, seed), range(8))) == [NUM] * 8


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_of_a_forked_child_read_while_the_parents_threads_did(ds: H5TensorDataset) -> None:
    """A lock that another thread held at the moment of the fork must not be met in the child."""
    stop = threading.Event()

    def keep_reading() -> None:
        while not stop.is_set():
            ds[:]
            ds.close()

    readers = [threading.Thread(target=keep_reading) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    with ThreadPoolExecutor(4) as pool:
                        status = int(list(pool.map(lambda n: int(ds[n][-1]), range(8))) != [n % 3 for n in range(8)])
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        for reader in readers:
            reader.join()


# Many shards


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("many") / "folder")
    rows = np.arange(300 * 4 * 30).reshape(-1, 30).astype(np.int16)
    with Writer(path, {"x": Field("int16", (30,), chunk_samples=4, codec="none")}, shard_samples=4) as w:
        w.append(x=rows)
    assert len(list(pathlib.Path(path).glob("shard-*"))) == 300
    return path


_opened: list[str] | None = None


def _note_open(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(args[0], str | bytes):
        _opened.append(os.fsdecode(args[0]))


def test_a_folder_of_300_shards_opens_without_opening_them(many_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    global _opened
    # libhdf5 opens files unseen by Python, but only through h5py.
    h5py_opens: list[str] = []
    opener = h5py.File

    def note(path: Any, *args: Any, **options: Any) -> Any:
        if "shard-" in str(path):
            h5py_opens.append(str(path))
        return opener(path, *args, **options)

    monkeypatch.setattr(h5py, "File", note)
    sys.addaudithook(_note_open)
    try:
        _opened = []
        ds = H5TensorDataset(many_shards)
        assert len(ds) == 1200
        assert [name for name in _opened if "shard-" in name] == []
        assert h5py_opens == []
        _ = ds[5]
        assert len({name for name in _opened if "shard-" in name}) == 1
    finally:
        _opened = None


@needs_proc
def test_threads_reading_300_shards_at_random_hold_at_most_128_descriptors(many_shards: str) -> None:
    ds = H5TensorDataset(many_shards)
    most = 0

    def read(seed: int) -> bool:
        nonlocal most
        right = True
        for number in np.random.default_rng(seed).integers(0, 1200, 300).tolist():
            right &= ds[number][0].tolist() == np.arange(number * 30, number * 30 + 30).astype(np.int16).tolist()
            if number % 16 == 0:
                most = max(most, len(open_files(many_shards)))
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert 100 < most <= MAX_OPEN_FILES
    assert torch.equal(ds[:][0].long(), torch.arange(36_000).reshape(-1, 30).to(torch.int16).long())
    assert len(open_files(many_shards)) <= MAX_OPEN_FILES
