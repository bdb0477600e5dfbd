"""What every source promises: one suite that all of them run, then what is particular to each."""

from __future__ import annotations

import csv
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from h5cache.convert.pictures import PictureOptions, decode_picture
from h5cache.convert.sources import (
    SOURCES,
    BadSampleError,
    IterableSource,
    MissingSourceError,
    Source,
    SourceError,
    make_source,
)
from h5cache.format.writer import Writer

torch = pytest.importorskip("torch")

SMALL = PictureOptions(resize=20, size=16)
CLASSES = ("cat", "dog", "eel")
MTIME_NS = 1_700_000_000_123_456_789


def write_picture(path: Path, seed: int, shape: tuple[int, int] = (24, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    path.write_bytes(cv2.imencode(path.suffix.lower(), picture)[1].tobytes())
    os.utime(path, ns=(MTIME_NS + seed, MTIME_NS + seed))


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8), rng.integers(0, 3, count)


def settle(path: Path) -> None:
    os.utime(path, ns=(MTIME_NS, MTIME_NS))


@dataclass
class Made:
    """A source, what it must deliver, and where it lies."""

    src: Any
    keys: list[str]
    expected: list[dict[str, Any]]
    classes: tuple[str, ...] = ()
    labels: list[int] | None = None
    options: dict[str, Any] | None = None
    #: A file that, touched, must change the fingerprint, and one that, spoilt, must make sample 0 bad.
    touch: Path | None = None
    spoil: Path | None = None

    def open(self) -> Source:
        source = make_source(self.src, **(self.options or {}))
        assert isinstance(source, Source)
        return source


def class_folders(home: Path) -> Made:
    names = ["cat/a.jpg", "cat/deep/er/b.PNG", "cat/z.webp", "dog/a.jpg", "dog/b.bmp", "eel/x.tiff"]
    for seed, name in enumerate(names):
        write_picture(home / name, seed)
    (home / "cat" / ".hidden.jpg").write_bytes(b"no")
    (home / ".git").mkdir()
    write_picture(home / ".git" / "c.jpg", 9)
    (home / "notes.txt").write_text("no")
    (home / "dog" / "readme.md").write_text("no")
    labels = [CLASSES.index(name.split("/")[0]) for name in names]
    expected = [
        {"image": decode_picture(home / name, SMALL), "label": label} for name, label in zip(names, labels, strict=True)
    ]
    first = home / names[0]
    return Made(home, names, expected, CLASSES, labels, {"pictures": SMALL}, touch=home / names[4], spoil=first)


def flat_folder(home: Path) -> Made:
    names = ["a.jpg", "b.jpeg", "c.png"]
    for seed, name in enumerate(names):
        write_picture(home / name, seed)
    expected = [{"image": decode_picture(home / name, SMALL)} for name in names]
    return Made(home, names, expected, options={"pictures": SMALL}, touch=home / "b.jpeg", spoil=home / "a.jpg")


def csv_list(home: Path) -> Made:
    names = ["z/one.jpg", "a, comma.png", "two.jpg"]
    for seed, name in enumerate(names):
        write_picture(home / name, seed)
    with open(home / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *zip(names, ["dog", "cat", "dog"], strict=True)])
    labels = [1, 0, 1]
    expected = [
        {"image": decode_picture(home / name, SMALL), "label": label} for name, label in zip(names, labels, strict=True)
    ]
    options = {"pictures": SMALL}
    return Made(
        home / "list.csv", names, expected, ("cat", "dog"), labels, options, home / "two.jpg", home / "z" / "one.jpg"
    )


def npy_file(home: Path) -> Made:
    images, _ = rows(5)
    np.save(home / "a.npy", images)
    settle(home / "a.npy")
    expected = [{"image": image} for image in images]
    return Made(home / "a.npy", [str(i) for i in range(5)], expected, touch=home / "a.npy", spoil=home / "a.npy")


def npz(save: Callable[..., None]) -> Callable[[Path], Made]:
    def make(home: Path) -> Made:
        images, labels = rows(11)
        save(home / "a.npz", image=images, label=labels, weight=np.asfortranarray(np.ones((11, 2))))
        settle(home / "a.npz")
        expected = [{"image": images[i], "label": labels[i]} for i in range(11)]
        options = {"fields": ["image", "label"]}
        keys = [str(i) for i in range(11)]
        path = home / "a.npz"
        return Made(path, keys, expected, (), labels.tolist(), options, touch=path, spoil=path)

    return make


def arrays(home: Path) -> Made:
    images, labels = rows(6)
    expected = [{"image": images[i], "label": labels[i]} for i in range(6)]
    return Made((images[:, :, ::1], labels), [str(i) for i in range(6)], expected, (), labels.tolist())


def tensors(home: Path) -> Made:
    values = torch.arange(24, dtype=torch.float32).reshape(6, 4).t().to(torch.bfloat16)
    expected = [{"x": row} for row in values]
    return Made({"x": values}, [str(i) for i in range(4)], expected)


def pt_files(home: Path) -> Made:
    names, expected = ["cat/0.pt", "cat/sub/1.pth", "dog/0.pt", "dog/1.npy"], []
    images, _ = rows(4)
    for number, name in enumerate(names):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npy"):
            np.save(home / name, images[number])
        else:
            # A slice of a batch, as careless code saves it.
            torch.save(torch.from_numpy(images)[number], home / name)
        settle(home / name)
        expected.append({"image": images[number], "label": number // 2})
    return Made(home, names, expected, ("cat", "dog"), [0, 0, 1, 1], touch=home / names[1], spoil=home / names[0])


def pt_dicts(home: Path) -> Made:
    expected = []
    for number in range(3):
        sample = {"x": torch.full((2, 3), float(number)), "y": number}
        torch.save(sample, home / f"{number}.pt")
        settle(home / f"{number}.pt")
        expected.append({"x": sample["x"].numpy(), "y": number})
    return Made(home, ["0.pt", "1.pt", "2.pt"], expected, touch=home / "2.pt", spoil=home / "0.pt")


def pt_file(legacy: bool) -> Callable[[Path], Made]:
    def make(home: Path) -> Made:
        images, labels = rows(7)
        path = home / "all.pt"
        torch.save(
            (torch.from_numpy(images), torch.from_numpy(labels)), path, _use_new_zipfile_serialization=not legacy
        )
        settle(path)
        expected = [{"image": images[i], "label": labels[i]} for i in range(7)]
        keys = [str(i) for i in range(7)]
        return Made(path, keys, expected, (), labels.tolist(), touch=path, spoil=path)

    return make


class Squares(torch.utils.data.Dataset):
    classes = ("even", "odd")

    def __init__(self, count: int) -> None:
        self.targets = [number % 2 for number in range(count)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return torch.full((3, 4, 4), number), number % 2


def torch_dataset(home: Path) -> Made:
    expected = [{"image": np.full((3, 4, 4), i, np.int64), "label": i % 2} for i in range(5)]
    return Made(Squares(5), [str(i) for i in range(5)], expected, ("even", "odd"), [0, 1, 0, 1, 0])


def torch_subset(home: Path) -> Made:
    expected = [{"image": np.full((3, 4, 4), i, np.int64), "label": i % 2} for i in (3, 0, 1)]
    subset = torch.utils.data.Subset(Squares(5), [3, 0, 1])
    return Made(subset, ["0", "1", "2"], expected, ("even", "odd"), [1, 0, 1])


def sequence(home: Path) -> Made:
    samples = [{"x": np.float32([i, i]), "y": i} for i in range(3)]
    return Made(samples, ["0", "1", "2"], samples)


def h5_dataset(folder: bool, codec: str = "auto") -> Callable[[Path], Made]:
    def make(home: Path) -> Made:
        count = 300
        rng = np.random.default_rng(0)
        picture = rng.integers(0, 60, (count, 3, 8, 8), dtype=np.uint8)
        picture[17] = 0
        table = ((np.arange(256, dtype=np.float32) / 255) - 0.4) / 0.3
        values = {
            "image": picture,
            "noise": rng.random((count, 40), dtype=np.float32),
            "exact": table[picture],
            "half": torch.from_numpy(rng.random((count, 30), dtype=np.float32)).to(torch.bfloat16),
            "label": rng.integers(0, 3, count),
        }
        out = home / ("set" if folder else "set.h5")
        from h5cache.schema import Field

        fields = {
            "image": Field("uint8", (3, 8, 8), codec=codec),
            "noise": Field("float32", (40,), codec=codec),
            "exact": Field("float32", (3, 8, 8)),
            "half": Field("bfloat16", (30,), codec=codec),
            "label": Field("int64"),
        }
        keys = [f"k/{i:04}.jpg" for i in range(count)]
        options = {"shard_samples": 128} if folder else {}
        with Writer(out, fields, classes=CLASSES, **options) as writer:
            writer.append(key=keys, **values)
        bits = values["half"].view(torch.int16).numpy().view(np.uint16)
        arrays = {**values, "half": bits}
        expected = [{name: array[i] for name, array in arrays.items()} for i in range(count)]
        return Made(out, keys, expected, CLASSES, values["label"].tolist())

    return make


def foreign_h5(home: Path) -> Made:
    import h5py

    images, labels = rows(9)
    with h5py.File(home / "foreign.h5", "w") as file:
        file.create_dataset("image", data=images, chunks=(2, 3, 8, 8), compression="gzip")
        file["label"] = labels
    settle(home / "foreign.h5")
    expected = [{"image": images[i], "label": labels[i]} for i in range(9)]
    return Made(home / "foreign.h5", [str(i) for i in range(9)], expected, touch=home / "foreign.h5")


MAKERS: dict[str, Callable[[Path], Made]] = {
    "class-folders": class_folders,
    "folder": flat_folder,
    "list": csv_list,
    "npy": npy_file,
    "npz": npz(np.savez),
    "npz-compressed": npz(np.savez_compressed),
    "arrays": arrays,
    "tensors": tensors,
    "pt-files": pt_files,
    "pt-files-dicts": pt_dicts,
    "pt-file": pt_file(legacy=False),
    "pt-file-legacy": pt_file(legacy=True),
    "dataset": torch_dataset,
    "dataset-subset": torch_subset,
    "sequence": sequence,
    "h5cache": h5_dataset(folder=False),
    "h5cache-folder": h5_dataset(folder=True),
    "h5cache-raw": h5_dataset(folder=True, codec="none"),
    "h5cache-zstd": h5_dataset(folder=False, codec="zstd"),
    "h5-foreign": foreign_h5,
}


@pytest.fixture(params=list(MAKERS))
def made(request, tmp_path) -> Made:
    home = tmp_path / "source"
    home.mkdir()
    return MAKERS[request.param](home)


def as_array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    return np.asarray(value)


def check_sample(found: Any, expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        left, right = as_array(found[name]), as_array(value)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_source_has_its_samples_in_order(made):
    source = made.open()
    assert len(source) == len(made.expected)
    for sample, expected in enumerate(made.expected):
        check_sample(source.load(sample), expected)


def test_samples_can_be_loaded_in_any_order_and_twice(made):
    source = made.open()
    for sample in (len(source) - 1, 0, len(source) // 2, 0):
        check_sample(source.load(sample), made.expected[sample])


def test_loaded_samples_are_the_callers_to_write_into(made):
    source = made.open()
    expected = pickle.loads(pickle.dumps(made.expected[0]))
    for value in source.load(0).values():
        if np.ndim(value):
            value[...] = 1
    check_sample(source.load(0), expected)


def test_keys_are_unique_utf8_bytes_in_arrays(made):
    files = made.open().files
    assert files.keys.dtype.kind == "S"
    assert [key.decode() for key in files.keys.tolist()] == made.keys
    assert len(set(made.keys)) == len(made.keys)
    for column in (files.nbytes, files.mtimes_ns):
        assert column is None or (column.dtype == np.int64 and len(column) == len(made.keys))


def test_classes_and_labels_agree_with_what_is_loaded(made):
    source = made.open()
    assert source.classes == made.classes
    if made.labels is None:
        assert source.labels is None
        return
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == made.labels
    assert [int(source.load(sample)["label"]) for sample in range(len(source))] == made.labels


def test_schema_describes_what_is_loaded(made):
    source = made.open()
    if source.schema is None:
        return
    sample = source.load(0)
    assert list(source.schema) == list(sample)
    for name, field in source.schema.items():
        assert as_array(sample[name]).shape == field.shape
        assert as_array(sample[name]).dtype == field.stored_dtype


def test_source_survives_pickling(made):
    source = made.open()
    source.load(0)
    again = pickle.loads(pickle.dumps(source))
    for sample in (0, len(source) - 1):
        check_sample(again.load(sample), made.expected[sample])
    assert again.fingerprint() == source.fingerprint()


def test_taken_samples_are_a_source_of_their_own(made):
    source = made.open()
    chosen = np.array([len(source) - 1, 0, 1])
    taken = pickle.loads(pickle.dumps(source.take(chosen)))
    assert len(taken) == 3
    assert [key.decode() for key in taken.files.keys.tolist()] == [made.keys[number] for number in chosen]
    assert taken.classes == made.classes
    assert (taken.labels is None) == (made.labels is None)
    for place, number in enumerate(chosen):
        check_sample(taken.load(place), made.expected[number])
    check_sample(taken.take(np.array([1])).load(0), made.expected[0])
    assert taken.fingerprint() != source.fingerprint()
    with pytest.raises(IndexError):
        source.take(np.array([len(source)]))


def test_indices_choose_samples(made):
    options = made.options or {}
    source = make_source(made.src, **options, indices=[1, 0])
    assert len(source) == 2
    check_sample(source.load(0), made.expected[1])


def test_fingerprint_is_json_and_stable(made):
    first = made.open().fingerprint()
    assert json.loads(json.dumps(first)) == first
    assert made.open().fingerprint() == first


def test_fingerprint_is_the_same_for_a_copy_elsewhere(made, tmp_path):
    if not isinstance(made.src, Path):
        return
    before = made.open().fingerprint()
    home = tmp_path / "source"
    shutil.copytree(home, tmp_path / "elsewhere" / "copy")  # keeps times
    made.src = tmp_path / "elsewhere" / "copy" / made.src.relative_to(home)
    assert made.open().fingerprint() == before


def test_fingerprint_changes_when_a_file_is_touched(made):
    if made.touch is None:
        return
    before = made.open().fingerprint()
    os.utime(made.touch, ns=(MTIME_NS, MTIME_NS + 10**9))
    assert made.open().fingerprint() != before


@pytest.mark.parametrize("how", ["cut", "garbage", "removed"])
def test_spoilt_file_is_a_bad_sample_with_a_reason(made, how):
    if made.spoil is None:
        return
    source = made.open()
    if how == "removed":
        made.spoil.unlink()
    elif how == "cut":
        made.spoil.write_bytes(made.spoil.read_bytes()[:-5])
    else:
        made.spoil.write_bytes(b"garbage" * 30)
    with pytest.raises(BadSampleError) as caught:
        pickle.loads(pickle.dumps(source)).load(0)
    assert str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_loading_in_a_fresh_process_imports_torch_only_where_said(tmp_path):
    home = tmp_path / "source"
    home.mkdir()
    for name in ("class-folders", "npy", "h5cache"):
        folder = home / name
        folder.mkdir()
        made = MAKERS[name](folder)
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(made.open()))
    code = (
        "import pickle, sys\n"
        "for path in sys.argv[1:]:\n"
        "    source = pickle.load(open(path, 'rb'))\n"
        "    source.load(0)\n"
        "    assert not source.needs_torch\n"
        "assert 'torch' not in sys.modules\n"
    )
    paths = [str(tmp_path / f"{name}.pickle") for name in ("class-folders", "npy", "h5cache")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, *paths], check=True, timeout=60)


def test_every_kind_is_recognised_and_can_be_named(tmp_path):
    kinds = set()
    for name, maker in MAKERS.items():
        home = tmp_path / name
        home.mkdir()
        made = maker(home)
        source = made.open()
        kinds.add(source.kind)
        named = make_source(made.src, source.kind, **(made.options or {}))
        assert named.fingerprint() == source.fingerprint()
    assert kinds | {"iterable"} == set(SOURCES)


# -- class folders -----------------------------------------------------------------------------------------------


def test_class_folder_without_pictures_keeps_its_number(tmp_path, caplog):
    write_picture(tmp_path / "b" / "x.jpg", 0)
    (tmp_path / "a").mkdir()
    source = make_source(tmp_path, pictures=SMALL)
    assert source.classes == ("a", "b")
    assert source.labels.tolist() == [1]
    assert "without files" in caplog.text


def test_samples_are_sorted_by_class_then_path(tmp_path):
    for name in ("a/2.jpg", "a/10.jpg", "a-b/1.jpg", "a/1/z.jpg"):
        write_picture(tmp_path / name, 0)
    source = make_source(tmp_path, pictures=SMALL)
    assert source.files.keys.tolist() == [b"a/1/z.jpg", b"a/10.jpg", b"a/2.jpg", b"a-b/1.jpg"]
    assert source.labels.tolist() == [0, 0, 0, 1]


def test_links_are_followed_once_and_loops_end(tmp_path):
    root = tmp_path / "root"
    write_picture(root / "a" / "real" / "x.jpg", 0)
    write_picture(tmp_path / "outside" / "y.jpg", 1)
    (root / "a" / "again").symlink_to("real")
    (root / "a" / "loop").symlink_to("..")
    (root / "a" / "self").symlink_to("self")
    (root / "a" / "file.jpg").symlink_to(tmp_path / "outside" / "y.jpg")
    (root / "b").symlink_to(tmp_path / "outside")
    source = make_source(root, pictures=SMALL)
    assert source.files.keys.tolist() == [b"a/file.jpg", b"a/real/x.jpg", b"b/y.jpg"]
    assert [source.load(i)["label"] for i in range(3)] == [0, 0, 1]


def test_dangling_link_is_a_bad_sample_not_a_silent_loss(tmp_path):
    write_picture(tmp_path / "a" / "x.jpg", 0)
    (tmp_path / "a" / "gone.jpg").symlink_to("nowhere.jpg")
    source = make_source(tmp_path, pictures=SMALL)
    assert source.files.keys.tolist() == [b"a/gone.jpg", b"a/x.jpg"]
    with pytest.raises(BadSampleError, match="No such file"):
        source.load(0)


def test_file_that_grew_after_listing_is_a_bad_sample(tmp_path):
    write_picture(tmp_path / "a" / "x.jpg", 0)
    source = make_source(tmp_path, pictures=SMALL)
    write_picture(tmp_path / "a" / "x.jpg", 1, (50, 50))
    with pytest.raises(BadSampleError, match="changed"):
        source.load(0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems insist on UTF-8 names")
def test_names_that_are_not_utf8_are_read_and_get_a_utf8_key(tmp_path):
    write_picture(tmp_path / "a" / "x.jpg", 0)
    os.rename(tmp_path / "a" / "x.jpg", os.path.join(os.fsencode(tmp_path), b"a", b"caf\xe9.jpg"))
    source = make_source(tmp_path, pictures=SMALL)
    assert source.files.keys.tolist() == [rb"a/caf\xe9.jpg"]
    assert source.load(0)["image"].shape == (3, 16, 16)


def test_taken_files_pickle_small(tmp_path):
    for number in range(400):
        (tmp_path / "a" / "x").mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / "x" / f"{number:04}.jpg").write_bytes(b"")
    source = make_source(tmp_path, pictures=SMALL)
    assert len(pickle.dumps(source.take(np.arange(4)))) < len(pickle.dumps(source)) / 5


# -- lists -------------------------------------------------------------------------------------------------------


def listed(tmp_path: Path, name: str, text: str, **options: Any) -> Source:
    for picture in ("a.jpg", "b c.jpg"):
        if not (tmp_path / picture).exists():
            write_picture(tmp_path / picture, 0)
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    source = make_source(tmp_path / name, pictures=SMALL, **options)
    assert isinstance(source, Source)
    return source


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "a.jpg,7\nb c.jpg,3\n"),
        ("l.csv", "a.jpg;7\r\nb c.jpg;3\r\n"),
        ("l.csv", '"a.jpg", "7"\n\n"b c.jpg", 3\n'),
        ("l.csv", "label,width,Path\n7,30,a.jpg\n3,30,b c.jpg\n"),
        ("l.tsv", "a.jpg\t7\nb c.jpg\t3\n"),
        ("l.tsv", "filename\tclass\na.jpg\t7\nb c.jpg\t3\n"),
        ("l.txt", "a.jpg 7\nb c.jpg 3\n"),
        ("l.txt", "a.jpg,7\nb c.jpg,3"),
    ],
)
def test_list_forms_are_understood(tmp_path, name, text):
    source = listed(tmp_path, name, text)
    assert source.files.keys.tolist() == [b"a.jpg", b"b c.jpg"]
    assert source.labels.tolist() == [7, 3]
    assert source.classes == ()
    assert source.load(1)["label"] == 3


def test_list_of_paths_alone_has_no_label(tmp_path):
    source = listed(tmp_path, "l.csv", "a.jpg\nb c.jpg\n")
    assert source.labels is None
    assert list(source.load(0)) == ["image"]


def test_header_can_be_said(tmp_path):
    assert len(listed(tmp_path, "l.csv", "foo,bar\na.jpg,1\n", has_header=True)) == 1
    assert len(listed(tmp_path, "l.csv", "foo,bar\na.jpg,1\n", has_header=False)) == 2


def test_missing_file_of_a_list_is_a_bad_sample(tmp_path):
    source = listed(tmp_path, "l.csv", "a.jpg,x\nnone.jpg,y\n")
    assert source.files.nbytes[1] == 0
    source.load(0)
    with pytest.raises(BadSampleError, match="No such file"):
        source.load(1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("path,label\n", "no samples"),
        ("a.jpg,1\na.jpg,2\n", "lines 1 and 2"),
        ("a.jpg,1\nb.jpg\n", "line 2"),
        ("a.jpg,1\nb.jpg,\n", "line 2"),
        ("a.jpg,1,2\n", "3 columns"),
        (",1\n", "line 1"),
    ],
)
def test_list_that_cannot_be_understood_says_where(tmp_path, text, problem):
    with pytest.raises(SourceError, match=problem):
        listed(tmp_path, "l.csv", text)


# -- arrays and tensors ------------------------------------------------------------------------------------------


def test_uncompressed_npz_is_mapped_not_read(tmp_path):
    from h5cache.convert.sources.arrays import _open_npz

    np.savez(tmp_path / "a.npz", x=np.arange(1000), y=np.zeros((1000, 0)))
    opened = _open_npz(str(tmp_path / "a.npz"))
    assert isinstance(opened["x"], np.memmap)
    np.testing.assert_array_equal(opened["x"], np.arange(1000))
    assert opened["y"].shape == (1000, 0)


def test_big_pt_file_is_mapped_and_an_old_one_read_once(tmp_path, monkeypatch):
    loads = []
    real = torch.load

    def load(*args: Any, **options: Any) -> Any:
        loads.append(options["mmap"])
        return real(*args, **options)

    monkeypatch.setattr(torch, "load", load)
    for name, new_form in (("new.pt", True), ("old.pt", False)):
        torch.save(torch.arange(4000).reshape(1000, 4), tmp_path / name, _use_new_zipfile_serialization=new_form)
        source = make_source(tmp_path / name)
        assert (str(tmp_path / name) in Path("/proc/self/maps").read_text()) == new_form
        for part in (range(0, 500), range(500, 1000)):
            taken = source.take(np.array(part))
            assert taken.load(7)["field0"].tolist() == [4 * (part[0] + 7) + column for column in range(4)]
    assert loads == [True, False]


@pytest.mark.parametrize("name", ["lists.pt", "lists.npz"])
def test_big_file_is_opened_and_named_once_not_once_per_sample(tmp_path, monkeypatch, name):
    from h5cache.convert.sources import row_file

    if name.endswith(".pt"):
        torch.save({"x": torch.zeros(100, 3), "label": list(range(100))}, tmp_path / name)
    else:
        np.savez(tmp_path / name, x=np.zeros((100, 3)), label=np.arange(100))
    named = []
    real = row_file.name_columns
    monkeypatch.setattr(row_file, "name_columns", lambda *args: named.append(args) or real(*args))
    source = make_source(tmp_path / name)
    assert [int(source.load(number)["label"]) for number in range(100)] == list(range(100))
    assert len(named) == 1


def test_arrays_of_unequal_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(SourceError, match="x 3, y 4"):
        make_source(tmp_path / "a.npz")


def test_files_with_pickles_are_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'owned'}",)

    np.save(tmp_path / "evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "evil.npz", x=np.array([Evil()], dtype=object))
    torch.save([Evil()], tmp_path / "evil.pt")
    for name in ("evil.npy", "evil.npz", "evil.pt"):
        with pytest.raises(SourceError):
            make_source(tmp_path / name)
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "evil.pt", tmp_path / "folder" / "0.pt")
    with pytest.raises(BadSampleError, match="never loads"):
        make_source(tmp_path / "folder").load(0)
    assert not (tmp_path / "owned").exists()


def test_state_dict_is_not_a_dataset(tmp_path):
    torch.save(torch.nn.Linear(3, 4).state_dict() | {"step": torch.tensor(1)}, tmp_path / "model.pt")
    with pytest.raises(SourceError):
        make_source(tmp_path / "model.pt")


def test_pt_file_whose_label_differs_from_its_folder_is_a_bad_sample(tmp_path):
    (tmp_path / "a").mkdir()
    torch.save((torch.zeros(3, 2, 2), 0), tmp_path / "a" / "0.pt")
    torch.save((torch.zeros(3, 2, 2), 5), tmp_path / "a" / "1.pt")
    source = make_source(tmp_path)
    assert source.load(0)["label"] == 0
    with pytest.raises(BadSampleError, match="label 5"):
        source.load(1)
    named = make_source(tmp_path, fields=["image", "age"])
    assert {name: np.shape(value) for name, value in named.load(1).items()} == {
        "image": (3, 2, 2),
        "age": (),
        "label": (),
    }


def test_tensor_dataset_fields_are_named(tmp_path):
    data = torch.utils.data.TensorDataset(torch.zeros(4, 3, 2, 2), torch.arange(4))
    assert list(make_source(data).load(1)) == ["image", "label"]
    assert list(make_source(data, fields=["x", "y"]).load(1)) == ["x", "y"]


def test_taken_samples_of_a_dataset_pickle_without_its_tables(tmp_path):
    source = h5_dataset(folder=False)(tmp_path).open()
    assert len(pickle.dumps(source.take(np.arange(4)))) < len(pickle.dumps(source)) / 5


def test_dataset_replaced_under_its_selection_is_a_bad_sample(tmp_path):
    made = h5_dataset(folder=False)(tmp_path)
    taken = pickle.dumps(made.open().take(np.arange(4)))
    (tmp_path / "other").mkdir()
    shutil.move(h5_dataset(folder=False)(tmp_path / "other").src, made.src)
    with pytest.raises(BadSampleError, match="changed"):
        pickle.loads(taken).load(0)


def test_damaged_dataset_gives_bad_samples(tmp_path):
    made = h5_dataset(folder=False, codec="none")(tmp_path)
    before = made.open()
    noise = made.expected[5]["noise"].tobytes()
    data = made.src.read_bytes()
    assert data.count(noise) == 1
    made.src.write_bytes(data.replace(noise, noise[::-1]))
    for source in (before, made.open()):
        with pytest.raises(BadSampleError):
            source.load(5)


# -- datasets and iterables --------------------------------------------------------------------------------------


class FakePil:
    """What matters of PIL.Image: it looks like an array to numpy, and has no dtype."""

    mode, size = "RGB", (4, 2)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return np.arange(24, dtype=np.uint8).reshape(2, 4, 3).__array_interface__ | {
            "data": np.arange(24, dtype=np.uint8).tobytes()
        }


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ((np.zeros((3, 2, 2)), 1), ["image", "label"]),
        ([torch.zeros(3, 2, 2), torch.tensor(1)], ["image", "label"]),
        ((np.zeros((3, 2, 2)), np.int32(1)), ["image", "label"]),
        ((np.zeros((3, 2, 2)), 1.5), ["field0", "field1"]),
        ((np.zeros(3), 1), ["field0", "field1"]),
        (np.zeros((3, 2, 2)), ["image"]),
        (np.zeros(4), ["field0"]),
        (3, ["field0"]),
        ([1.0, 2.0], ["field0"]),
        ({"a": 1, "b": 2}, ["a", "b"]),
        ((FakePil(), 3), ["image", "label"]),
    ],
)
def test_fields_of_nameless_samples_are_named(sample, names):
    assert list(make_source([sample, sample], "dataset").load(1)) == names


def test_pil_pictures_become_arrays():
    image = make_source([(FakePil(), 3)]).load(0)["image"]
    assert isinstance(image, np.ndarray)
    assert image.shape == (2, 4, 3)


def test_dataset_that_raises_makes_a_bad_sample():
    class Faulty(Squares):
        def __getitem__(self, number: int) -> Any:
            raise RuntimeError("no such luck")

    with pytest.raises(BadSampleError, match=r"Faulty\[2\]: RuntimeError: no such luck"):
        make_source(Faulty(3)).load(2)


def test_dataset_fingerprint_changes_with_its_transform():
    def dataset(scale: float) -> Any:
        made = Squares(3)
        made.transform = lambda x: x * scale
        return make_source(made).fingerprint()

    assert dataset(1.0) == dataset(1.0)
    assert dataset(1.0) != dataset(2.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.utils.data.TensorDataset(torch.tensor([1, 2, x])),
        lambda x: torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.tensor([1, 2, x])), [0, 1]),
        lambda x: [np.array([1]), np.array([x])],
        lambda x: [(torch.zeros(3, 2, 2), 1), (torch.zeros(3, 2, 2), x)],
    ],
)
def test_fingerprint_of_data_in_memory_follows_its_values(make):
    assert make_source(make(3)).fingerprint() == make_source(make(3)).fingerprint()
    assert make_source(make(3)).fingerprint() != make_source(make(4)).fingerprint()


def test_iterable_of_samples_is_stacked():
    source = make_source(((np.full((3, 2, 2), i, np.uint8), i) for i in range(5)), batch_size=2)
    assert isinstance(source, IterableSource)
    batches = list(source.iter_batches())
    assert [len(batch["label"]) for batch in batches] == [2, 2, 1]
    assert batches[0]["image"].shape == (2, 3, 2, 2)
    assert batches[0]["image"].dtype == np.uint8
    assert np.concatenate([batch["label"] for batch in batches]).tolist() == [0, 1, 2, 3, 4]


def test_iterable_of_batches_is_passed_on():
    batches = [{"x": torch.zeros(3, 2), "y": [1, 2, 3]}, {"x": torch.ones(1, 2), "y": [4]}]
    found = list(make_source(iter(batches), batched=True).iter_batches())
    assert found[0]["x"] is batches[0]["x"]
    assert found[1]["y"].tolist() == [4]


def test_data_loader_is_an_iterable_of_batches():
    loader = torch.utils.data.DataLoader(Squares(5), batch_size=2)
    batches = list(make_source(loader).iter_batches())
    assert [tuple(batch["image"].shape) for batch in batches] == [(2, 3, 4, 4), (2, 3, 4, 4), (1, 3, 4, 4)]
    assert list(batches[0]) == ["image", "label"]


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        ([{"x": 1}, {"y": 1}], "sample 1 has the fields y"),
        ([np.zeros(3), np.zeros(4)], "sample 1"),
        ([{"x": "text"}], "cannot be stored"),
    ],
)
def test_iterable_with_samples_that_do_not_fit_says_which(samples, problem):
    with pytest.raises(SourceError, match=problem):
        list(make_source(iter(samples)).iter_batches())


# -- recognising -------------------------------------------------------------------------------------------------


def test_what_cannot_be_converted_is_said_in_one_line(tmp_path):
    def says(problem: str, src: Any, kind: str | None = None, **options: Any) -> None:
        with pytest.raises(SourceError, match=problem) as caught:
            make_source(src, kind, **options)
        assert len(str(caught.value).splitlines()) == 1

    says("no such file", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    says("is empty", tmp_path / "empty")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("x")
    says("no pictures", tmp_path / "text")
    says("no pictures", tmp_path / "text", "class-folders")
    says("no pictures", tmp_path / "text", "folder")
    says("no .pt", tmp_path / "text", "pt-files")
    (tmp_path / "file").write_text("x")
    says("a folder was expected", tmp_path / "file")
    says("a folder was expected", tmp_path / "file", "class-folders")
    says("a file was expected", tmp_path / "text", "arrays")
    says("is a folder", tmp_path / "text", "list")
    write_picture(tmp_path / "one.jpg", 0)
    says("is one picture", tmp_path / "one.jpg")
    write_picture(tmp_path / "mixed" / "a" / "x.jpg", 0)
    write_picture(tmp_path / "mixed" / "y.jpg", 0)
    says("--source", tmp_path / "mixed")
    assert len(make_source(tmp_path / "mixed", "folder", pictures=SMALL)) == 1
    assert len(make_source(tmp_path / "mixed", "class-folders", pictures=SMALL)) == 1
    says("no source 'video'", tmp_path, "video")
    says("got the path", tmp_path / "mixed", "dataset")
    says("an object", [1, 2], "class-folders")
    says("fields=", tmp_path / "mixed", "folder", fields=["x"])
    (tmp_path / "bad.h5").write_bytes(b"x" * 100)
    says("bad.h5", tmp_path / "bad.h5")
    (tmp_path / "bad.npy").write_bytes(b"x" * 100)
    says("bad.npy", tmp_path / "bad.npy")
    (tmp_path / "bad.pt").write_bytes(b"x" * 100)
    says("bad.pt", tmp_path / "bad.pt")
    says("no samples", [])
    says("cannot convert", 3)
    says("field name", [1, 2], fields=["not a name"])


def test_missing_source_is_also_file_not_found(tmp_path):
    for kind in (None, "class-folders", "list", "arrays", "pt-file", "h5cache"):
        with pytest.raises(FileNotFoundError):
            make_source(tmp_path / "none", kind)
    assert issubclass(MissingSourceError, FileNotFoundError)


def test_pt_file_whose_own_label_is_a_tensor_that_matches_its_folder_is_taken(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        torch.save({"x": torch.ones(3), "label": torch.tensor(number)}, tmp_path / name / "a.pt")
    source = make_source(tmp_path)
    assert [int(source.load(number)["label"]) for number in range(2)] == [0, 1]


def test_missing_source_says_which_path_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MissingSourceError) as caught:
        make_source(tmp_path / "nothing")
    assert caught.value.filename == str(tmp_path / "nothing")
    assert "no such" in str(caught.value.strerror)
