"""Links and storage that leave a file are refused before anything is read through them."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
from format_samples import make_samples

from h5cache import H5TensorDataset
from h5cache.errors import UnsafeFileError
from h5cache.format.verify import iter_damage

#: A FIFO without a writer blocks whoever opens it: these tests hang, and fail, if anything is opened.
pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def trap(tmp_path):
    path = tmp_path / "trap.h5"
    os.mkfifo(path)
    return path


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside.h5"
    with h5py.File(path, "w") as file:
        file["x"] = file["group/x"] = make_samples(6, (4,))
    return path


LINKS = {
    "the dataset itself": ("x", lambda file, path: file.__setitem__("x", h5py.ExternalLink(path, "x"))),
    "a group above it": ("g/x", lambda file, path: file.__setitem__("g", h5py.ExternalLink(path, "group"))),
    "a group further above": ("a/g/x", lambda file, path: file.__setitem__("a/g", h5py.ExternalLink(path, "group"))),
    "behind a soft link": (
        "soft",
        lambda file, path: (
            file.__setitem__("x", h5py.ExternalLink(path, "x")),
            file.__setitem__("soft", h5py.SoftLink("/x")),
        ),
    ),
    "inside a soft link's path": (
        "soft/x",
        lambda file, path: (
            file.__setitem__("g", h5py.ExternalLink(path, "/")),
            file.__setitem__("soft", h5py.SoftLink("/g/group")),
        ),
    ),
}


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("target", ["trap", "outside"])
def test_external_link_in_a_foreign_file_is_refused(case, target, request, tmp_path):
    name, link = LINKS[case]
    with h5py.File(tmp_path / "any.h5", "w") as file:
        link(file, str(request.getfixturevalue(target)))
    with pytest.raises(UnsafeFileError, match=r"any.h5: /.*external link"):
        H5TensorDataset(tmp_path / "any.h5", fields=[name])


def test_external_links_at_the_root_are_not_fields(outside, trap, tmp_path):
    with h5py.File(tmp_path / "any.h5", "w") as file:
        file["mine"] = make_samples(6, (4,))
        file["x"] = h5py.ExternalLink(str(outside), "x")
        file["y"] = h5py.ExternalLink(str(trap), "x")
    assert H5TensorDataset(tmp_path / "any.h5").fields == ("mine",)


def make_external_storage(file, name, path, shape=(6, 4)):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_external(os.fsencode(path), 0, int(np.prod(shape)))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple(shape), dcpl=properties)


def make_virtual(file, name, path, shape=(6, 4)):
    layout = h5py.VirtualLayout(shape=shape, dtype="u1")
    layout[:] = h5py.VirtualSource(str(path), "x", shape=shape)
    file.create_virtual_dataset(name, layout)


def make_unlimited_virtual(file, name, path, shape=(6, 4)):
    """Its extent depends on its sources: asking for the shape opens `path` with a number in it."""
    whole = (1, *shape[1:])
    space = h5py.h5s.create_simple(whole, (h5py.h5s.UNLIMITED, *shape[1:]))
    chosen = space.copy()
    chosen.select_hyperslab((0,) * len(shape), (h5py.h5s.UNLIMITED, *(1 for _ in shape[1:])), whole, whole)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    pattern = os.fsencode(path).replace(b"trap", b"%b")
    properties.set_virtual(chosen, pattern, b"x", h5py.h5s.create_simple(whole))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_UINT8, space, dcpl=properties)


MAKERS = {"external storage": make_external_storage, "virtual": make_virtual, "unlimited": make_unlimited_virtual}


@pytest.fixture
def numbered_trap(trap):
    """The first source that an unlimited virtual dataset looks for."""
    os.mkfifo(trap.parent / "0.h5")
    return trap


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("fields", [["x"], ["group/x"], None])
def test_storage_outside_a_foreign_file_is_refused(kind, fields, numbered_trap, tmp_path):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        group = file if fields != ["group/x"] else file.create_group("group")
        MAKERS[kind](group, "x", numbered_trap)
    with pytest.raises(UnsafeFileError, match=r"any.h5: /.*refused"):
        H5TensorDataset(path, fields=fields)
    assert len(list(iter_damage(path))) == 1


NAMES = ["image", "label", "index", "h5cache", "h5cache/image", "h5cache/image/blocks", "h5cache/index/blocks"]


@pytest.mark.parametrize("name", NAMES)
def test_external_link_in_our_own_file_is_refused(mixed, trap, name):
    path, _ = mixed
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = h5py.ExternalLink(str(trap), "/x")
    with pytest.raises(UnsafeFileError, match=r"mixed.h5: /.*external link"):
        _ = H5TensorDataset(path).index
    assert any("external link" in str(found) for found in iter_damage(path))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ["image", "label", "index", "h5cache/image/blocks"])
def test_storage_outside_our_own_file_is_refused(mixed, numbered_trap, name, kind):
    path, _ = mixed
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        shape = file[name].shape
        del file[name]
        group, _, last = name.rpartition("/")
        MAKERS[kind](file[group or "/"], last, numbered_trap, shape)
    with pytest.raises(UnsafeFileError, match=r"mixed.h5: /.*refused"):
        _ = H5TensorDataset(path).index
    assert any("refused" in str(found) for found in iter_damage(path))


@pytest.mark.parametrize("name", ["shards", "label", "index", "h5cache/image/blocks"])
def test_external_link_in_a_manifest_is_refused(folder, trap, name):
    path, _ = folder
    with h5py.File(path / "manifest.h5", "r+") as file:
        del file[name]
        file[name] = h5py.ExternalLink(str(trap), "/x")
    with pytest.raises(UnsafeFileError, match=r"manifest.h5: /.*external link"):
        _ = H5TensorDataset(path).index
    assert any("external link" in str(found) for found in iter_damage(path))


def test_external_link_in_a_shard_is_not_followed(folder, trap):
    path, samples = folder
    with h5py.File(sorted(path.glob("shard-*.h5"))[0], "r+") as file:
        del file["image"]
        file["image"] = h5py.ExternalLink(str(trap), "/x")
    # The manifest knows where the bytes lie, and their checksums hold: libhdf5 is not asked.
    np.testing.assert_array_equal(H5TensorDataset(path)[:][0].numpy(), samples["image"])
    assert any("external link" in str(found) for found in iter_damage(path))


def test_field_that_becomes_a_link_while_open_is_refused(tmp_path, trap):
    path = tmp_path / "any.h5"
    with h5py.File(path, "w") as file:
        file["x"] = make_samples(6, (4,))
    dataset = H5TensorDataset(path, fields=["x"])
    before = os.stat(path)
    with h5py.File(path, "r+") as file:
        del file["x"]
        file["x"] = h5py.ExternalLink(str(trap), "/x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises((UnsafeFileError, RuntimeError), match="any.h5"):
        dataset[0]
