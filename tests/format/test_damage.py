"""One flipped bit anywhere in stored bytes is reported with shard, chunk and key."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from format_samples import assert_reads, mixed_keys

from h5cache import H5TensorDataset
from h5cache.errors import ChecksumError
from h5cache.format.verify import iter_damage

FLIPS = 100
COUNT = 18


def stored_ranges(path):
    """Name every kind of stored bytes: kind -> (field, [(chunk, first byte, last byte + 1), ...])."""
    ranges = {}
    with h5py.File(path) as file:

        def whole(name):
            dataset = file[name]
            start = dataset.id.get_offset()
            return [(None, start, start + dataset.size * dataset.dtype.itemsize)]

        for name in ("image", "depth", "raw", "norm", "packed", "old"):
            dataset = file[name]
            infos = [dataset.id.get_chunk_info(i) for i in range(dataset.id.get_num_chunks())]
            ranges[f"{name} bytes"] = (
                name,
                [(number, info.byte_offset, info.byte_offset + info.size) for number, info in enumerate(infos)],
            )
        _, chunks = ranges["image bytes"]
        blocks = file["h5cache/image/blocks"][()].reshape(len(chunks), 4)
        coded = [(number, start, stop) for number, start, stop in chunks if blocks[number]["nbytes"].any()]
        first = int(blocks[0]["offset"][0])
        ends = {n: int((blocks[n]["offset"] + blocks[n]["nbytes"]).max()) for n, _, _ in coded}
        ranges["image frame headers"] = "image", [(n, start, start + 97) for n, start, _ in coded]
        ranges["image block starts"] = "image", [(n, start + 97, start + first) for n, start, _ in coded]
        ranges["image blocks"] = "image", [(n, start + first, start + ends[n]) for n, start, _ in coded]
        ranges["image frame trailers"] = "image", [(n, start + ends[n], stop) for n, start, stop in coded]
        ranges["image zeros"] = "image", [chunk for chunk in chunks if chunk not in coded]
        ranges["label rows"] = "label", whole("label")
        ranges["index rows"] = "index", whole("index")
        for name in ("image", "raw", "norm", "label", "index"):
            ranges[f"{name} block table"] = name, whole(f"h5cache/{name}/blocks")
        ranges["image chunk table"] = "image", whole("h5cache/image/chunks")
        ranges["norm values"] = "norm", whole("h5cache/norm/values")
        ranges["norm values in use"] = "norm", whole("h5cache/norm/values_used")
    return ranges


KINDS = (
    *(f"{name} bytes" for name in ("image", "depth", "raw", "norm", "packed", "old")),
    *(f"image {part}" for part in ("frame headers", "block starts", "blocks", "frame trailers", "zeros")),
    *("label rows", "index rows", "image chunk table", "norm values", "norm values in use"),
    *(f"{name} block table" for name in ("image", "raw", "norm", "label", "index")),
)


def flips(ranges, count, seed=0):
    """Yield (chunk, byte, bit) at random."""
    rng = np.random.default_rng(seed)
    sizes = np.array([stop - start for _, start, stop in ranges])
    for _ in range(count):
        chunk, start, stop = ranges[rng.choice(len(ranges), p=sizes / sizes.sum())]
        yield chunk, int(rng.integers(start, stop)), int(rng.integers(8))


class Flipped:
    """A file with one bit flipped, for a while."""

    def __init__(self, path, byte, bit):
        self.path, self.byte, self.bit = path, byte, bit

    def __enter__(self):
        with open(self.path, "r+b") as stream:
            stream.seek(self.byte)
            old = stream.read(1)[0]
            stream.seek(self.byte)
            stream.write(bytes([old ^ 1 << self.bit]))

    def __exit__(self, *_):
        self.__enter__()


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_reported_with_file_field_chunk_and_key(mixed, kind):
    path, _ = mixed
    field, ranges = stored_ranges(path)[kind]
    keys = mixed_keys(COUNT)
    for chunk, byte, bit in flips(ranges, FLIPS):
        with Flipped(path, byte, bit):
            found = list(iter_damage(path))
        assert len(found) >= 1, (byte, bit)
        for damage in found:
            assert not damage.rewritten
            assert (damage.path, damage.field) == (str(path), field)
            if chunk is not None:
                assert damage.chunk == chunk
            if field != "index":
                assert damage.keys == tuple(keys[damage.samples.start : damage.samples.stop])
            else:
                assert len(damage.keys) in (0, COUNT)
            assert str(path) in str(damage)
            assert damage.field in str(damage)
    assert list(iter_damage(path)) == []


@pytest.mark.parametrize(
    "kind", ["image blocks", "depth bytes", "raw bytes", "norm bytes", "packed bytes", "old bytes"]
)
def test_reading_a_damaged_sample_names_file_chunk_and_key_and_spares_the_others(mixed, kind):
    path, samples = mixed
    field, ranges = stored_ranges(path)[kind]
    for chunk, byte, bit in flips(ranges, 12, seed=1):
        with Flipped(path, byte, bit), H5TensorDataset(path, fields=[field]) as dataset:
            damaged = {i for found in iter_damage(path) for i in found.samples}
            harmless = "around its samples" in str(next(iter_damage(path)))
            for i in range(COUNT):
                if i in damaged and not harmless:
                    with pytest.raises(ChecksumError) as caught:
                        dataset[i]
                    message = str(caught.value)
                    assert f"{path}: field '{field}', chunk {chunk}, sample" in message
                    assert mixed_keys(COUNT)[min(damaged)] in message
                else:
                    np.testing.assert_array_equal(dataset[i][0].numpy(), samples[field][i])


def test_damaged_labels_are_refused_when_opening(mixed):
    path, _ = mixed
    field, ranges = stored_ranges(path)["label rows"]
    for _, byte, bit in flips(ranges, 10):
        with Flipped(path, byte, bit), pytest.raises(ChecksumError, match=f"{field}.*chunk 0.*picture-000.jpg"):
            H5TensorDataset(path)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "table" in kind or "values" in kind])
def test_damaged_tables_are_refused_when_opening_or_reading(mixed, kind):
    path, _ = mixed
    _, ranges = stored_ranges(path)[kind]
    for _, byte, bit in flips(ranges, 10):
        with Flipped(path, byte, bit), pytest.raises(ChecksumError, match="mixed.h5"):
            _ = H5TensorDataset(path).index


def test_several_damaged_pieces_are_all_reported(mixed):
    path, _ = mixed
    ranges = stored_ranges(path)
    with (
        Flipped(path, ranges["image bytes"][1][0][1] + 1000, 0),
        Flipped(path, ranges["image bytes"][1][3][1] + 1000, 5),
        Flipped(path, ranges["raw bytes"][1][1][1] + 3, 5),
        Flipped(path, ranges["label rows"][1][0][1] + 9, 1),
        Flipped(path, ranges["index rows"][1][0][1] + 9, 1),
    ):
        found = [(one.field, one.chunk) for one in iter_damage(path)]
    assert sorted(found, key=str) == [("image", 0), ("image", 3), ("index", None), ("label", 0), ("raw", 1)]


@pytest.mark.parametrize("place", ["manifest.h5", "shard"])
def test_flips_in_a_folder_are_reported_with_their_file(folder, place):
    path, _ = folder
    target = path / place if place != "shard" else sorted(path.glob("shard-*.h5"))[1]
    with h5py.File(target) as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        ranges = [
            (name, file[name].id.get_offset(), file[name].id.get_offset() + file[name].id.get_storage_size())
            for name in names
            if file[name].chunks is None
        ]
    for name, byte, bit in flips(ranges, 60):
        with Flipped(target, byte, bit):
            found = list(iter_damage(path))
        assert str(target) in [one.path for one in found], name


def test_progress_counts_the_stored_bytes(mixed):
    path, _ = mixed
    done = []
    assert list(iter_damage(path, done.append)) == []
    info = H5TensorDataset(path)._reader.info
    assert sum(done) == sum(storage.stored_nbytes for storage in info.storage.values())


def test_dataset_that_is_whole_still_reads_after_all_this(mixed):
    path, samples = mixed
    assert_reads(path, samples, "always")
