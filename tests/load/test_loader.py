"""`Loader`: exactly the samples of the order, whatever the threads; epochs; state; options."""

from __future__ import annotations

import gc
import pathlib
import threading
from typing import Any

import pytest
import torch
from load_cases import NUM, check, expected_batches, flat, numbers_of, open_numbers

from h5cache import Field, H5TensorDataset, Writer
from h5cache.errors import LoaderClosedError, StateError
from h5cache.load.augment import HorizontalFlip, RandomCrop, RandomResizedCrop
from h5cache.load.read import SampleReader

SHUFFLES = [False, "chunk", "full"]


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_loader_delivers_the_samples_of_the_order(ds: H5TensorDataset, shuffle: Any, threads: int) -> None:
    with ds.loader(8, shuffle, threads=threads, seed=3) as loader:
        for epoch in range(2):
            found = [check(batch) for batch in loader]
            assert found == expected_batches(loader, epoch)
            assert sorted(flat(found)) == list(range(NUM))
            assert [len(batch) for batch in found] == [8] * 9 + [3]
    if shuffle:
        assert expected_batches(loader, 0) != expected_batches(loader, 1)


@pytest.mark.parametrize("prefetch", [0, 1, 7])
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("window_nbytes", [1, 2**28])
@pytest.mark.filterwarnings("ignore:shuffle=.chunk. mixes only")
def test_prefetch_and_window_do_not_matter(
    one: H5TensorDataset, shuffle: Any, prefetch: int, window_nbytes: int
) -> None:
    for threads in (0, 2):
        with one.loader(8, shuffle, threads=threads, prefetch=prefetch, window_nbytes=window_nbytes) as loader:
            for epoch in range(2):
                assert [check(batch) for batch in loader] == expected_batches(loader, epoch)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_drop_last_drops_the_short_batch_alone(one: H5TensorDataset, shuffle: Any) -> None:
    with one.loader(8, shuffle, drop_last=True, threads=2) as loader:
        found = [check(batch) for batch in loader]
    assert len(loader) == len(found) == 9
    assert {len(batch) for batch in found} == {8}
    assert len(set(flat(found))) == 72


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_each_epoch_and_have_equal_batches(one: H5TensorDataset, shuffle: Any, world_size: int) -> None:
    sizes, seen = set(), []
    for rank in range(world_size):
        with one.loader(6, shuffle, rank=rank, world_size=world_size, threads=1) as loader:
            found = [check(batch) for batch in loader]
        sizes.add(tuple(map(len, found)))
        seen += flat(found)
    assert len(sizes) == 1
    assert set(seen) == set(range(NUM))
    assert len(seen) - NUM < world_size  # padding


@pytest.mark.parametrize("batch_size", [1, 75, 76, 1000])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_batches_may_be_as_small_or_large_as_one_likes(one: H5TensorDataset, shuffle: Any, batch_size: int) -> None:
    with one.loader(batch_size, shuffle, threads=2) as loader:
        assert sorted(flat([check(batch) for batch in loader])) == list(range(NUM))


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_an_empty_view_has_no_batches(one: H5TensorDataset, shuffle: Any) -> None:
    with one.select([]).loader(4, shuffle) as loader:
        assert len(loader) == 0
        assert list(loader) == list(loader) == []


def test_fields_and_as_dict_choose_what_comes(one: H5TensorDataset) -> None:
    with one.loader(8, fields=("number", "big"), as_dict=False, threads=2) as loader:
        number, big = next(iter(loader))
    assert number.tolist() == list(range(8))
    assert big.shape == (8, 3, 80, 72)


def test_transform_is_called_with_each_batch_and_its_result_delivered(one: H5TensorDataset) -> None:
    with one.loader(8, threads=2, transform=lambda batch: (len(batch["number"]), threading.current_thread().name)) as x:
        found = list(x)
    assert [count for count, _ in found] == [8] * 9 + [3]
    assert all(name.startswith("h5cache-") for _, name in found)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("threads", [0, 2])
def test_chunk_order_decodes_each_chunk_once(
    file: str, monkeypatch: pytest.MonkeyPatch, shuffle: Any, threads: int
) -> None:
    read: list[int] = []
    original = SampleReader.read_chunk

    def counted(self: SampleReader, name: str, chunk: int, out: Any) -> None:
        read.append(chunk)
        original(self, name, chunk, out)

    monkeypatch.setattr(SampleReader, "read_chunk", counted)
    ds = H5TensorDataset(file, ["small"])
    with ds.loader(8, shuffle, threads=threads) as loader:
        for _ in loader:
            pass
    assert sorted(read) == list(range(5))


def test_a_field_with_other_chunks_than_the_order_stays_within_the_window(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks would all be needed all the time: 100 MB for a window of 1 MB."""
    path = str(tmp_path / "x.h5")
    fields = {
        "image": Field("uint8", (3, 80, 72), chunk_samples=4),
        "vector": Field("float32", (64,), chunk_samples=64, exact="never"),
    }
    with Writer(path, fields) as w:
        w.append(image=torch.zeros(256, 3, 80, 72, dtype=torch.uint8), vector=torch.randn(256, 64))
    monkeypatch.setattr(SampleReader, "read_chunk", lambda *_: pytest.fail("decoded a whole chunk"))
    ds = H5TensorDataset(path)
    with pytest.warns(UserWarning, match="mixes only"):
        loader = ds.loader(8, "chunk", window_nbytes=30_000, threads=1)
    assert sum(len(image) for image, _ in loader) == 256
    loader.close()
    shuffled = ds.select(torch.randperm(256)).loader(8, False, window_nbytes=30_000, threads=1)
    assert sum(len(image) for image, _ in shuffled) == 256
    shuffled.close()


# Epochs


def test_each_iter_begins_the_next_epoch_and_set_epoch_says_which(file: str) -> None:
    with open_numbers(file).loader(8, "full", threads=1) as loader:
        assert loader.epoch == 0
        first, second = numbers_of(loader), numbers_of(loader)
        assert first == expected_batches(loader, 0)
        assert second == expected_batches(loader, 1)
        loader.set_epoch(0)
        assert numbers_of(loader) == first
        next(iter(loader))
        loader.set_epoch(7)
        assert loader.epoch == 7
        assert numbers_of(loader) == expected_batches(loader, 7)


def test_two_iterators_of_one_loader_are_independent(file: str) -> None:
    with open_numbers(file).loader(8, "full", threads=2) as loader:
        one, other = iter(loader), iter(loader)
        both = list(zip(one, other, strict=True))
        assert numbers_of(a for a, _ in both) == expected_batches(loader, 0)
        assert numbers_of(b for _, b in both) == expected_batches(loader, 1)


def test_nested_loops_over_one_loader_see_whole_epochs(file: str) -> None:
    with open_numbers(file).loader(32, "chunk", threads=2) as loader:
        for _ in loader:
            assert sorted(flat(numbers_of(loader))) == list(range(NUM))
        assert loader.epoch == 1 + len(loader)


def test_a_loader_goes_on_after_close(file: str) -> None:
    loader = open_numbers(file).loader(8, "full", threads=2)
    next(iter(loader))
    loader.close()
    loader.close()
    assert numbers_of(loader) == expected_batches(loader, 1)
    loader.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_closing_in_mid_epoch_raises_for_who_goes_on(file: str, threads: int) -> None:
    """A loop that ended quietly would pass for an epoch."""
    loader = open_numbers(file).loader(4, threads=threads)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(LoaderClosedError, match="closed"):
        next(batches)
    assert next(batches, None) is None


# State


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("done", [0, 1, 4, 8, 9, 10])
def test_resume_gives_exactly_the_rest(file: str, shuffle: Any, done: int) -> None:
    ds = open_numbers(file)
    with ds.loader(8, shuffle, threads=2, seed=1) as loader:
        for _ in loader:
            pass
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        state = loader.state_dict() if done else (loader.set_epoch(1), loader.state_dict())[1]
        expected = [expected_batches(loader, epoch) for epoch in (1, 2, 3)]
    with ds.loader(8, shuffle, threads=0, seed=99) as other:
        for _ in range(2):  # loading twice, or before the first batch, changes nothing
            other.load_state_dict(state)
            assert other.state_dict() == state
        rest, *later = (expected[0][done:], expected[1], expected[2]) if done < 10 else expected[1:]
        assert numbers_of(other) == rest
        for epoch in later:  # the seed of the state counts from now on
            assert numbers_of(other) == epoch


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_resume_with_other_ranks_gives_exactly_the_rest(file: str, shuffle: Any) -> None:
    ds = open_numbers(file)
    states, seen = [], []
    for rank in range(2):
        with ds.loader(6, shuffle, rank=rank, world_size=2, threads=1) as loader:
            batches = iter(loader)
            seen += flat(next(batches)["number"].tolist() for _ in range(2))
            states.append(loader.state_dict())
    assert states[0] == states[1]
    for world_size in (1, 3, 4):
        rest = []
        for rank in range(world_size):
            lanes = 12 if shuffle == "chunk" else None
            other = ds.loader(12 // world_size, shuffle, rank=rank, world_size=world_size, threads=2, lanes=lanes)
            if shuffle == "chunk" and states[0]["lanes"] % world_size:
                with pytest.raises(StateError, match="ranks"):
                    other.load_state_dict(states[0])
                rest = sorted(set(range(NUM)) - set(seen))
                break
            other.load_state_dict(states[0])
            rest += flat(numbers_of(other))
            other.close()
        assert set(rest) - set(seen[:4]) >= set(range(NUM)) - set(seen)
        assert len(rest) - (NUM - len(seen)) < world_size


def test_set_epoch_of_the_loaded_epoch_keeps_the_position(file: str) -> None:
    """The usual loop says set_epoch(epoch) at the top, also after resuming."""
    with open_numbers(file).loader(8, "full", threads=0) as loader:
        next(iter(loader))
        state = loader.state_dict()
        whole = expected_batches(loader, 0)
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert numbers_of(loader) == whole[1:]
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert numbers_of(loader) == expected_batches(loader, 1)


def test_a_state_of_other_samples_is_refused_when_it_is_loaded(file: str) -> None:
    ds = open_numbers(file)
    state = ds.loader(8).state_dict()
    for other in (ds.loader(4), ds.loader(8, "full"), ds.select(range(9)).loader(8), ds.loader(8, drop_last=True)):
        with pytest.raises(StateError):
            other.load_state_dict(state)
    with pytest.raises(StateError):
        ds.loader(8).load_state_dict({})


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": -3},
        {"batch_size": "8"},
        {"batch_size": 8.0},
        {"batch_size": True},
        {"shuffle": "ful"},
        {"shuffle": 3},
        {"seed": -1},
        {"seed": 1.5},
        {"threads": -1},
        {"threads": "2"},
        {"prefetch": -1},
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": -1, "world_size": 2},
        {"fields": ["nothing"]},
        {"fields": "big"},
        {"fields": []},
        {"fields": ["big", "big"]},
        {"pin_memory": "yes"},
        {"device": "abacus"},
        {"memory_format": "channels_first"},
        {"memory_format": torch.channels_last_3d},
        {"memory_format": torch.preserve_format},
        {"dtype": "float31"},
        {"dtype": "nn"},
        {"dtype": torch.complex64},
        {"dtype": "uint8", "normalize": "imagenet"},
        {"normalize": "cifar"},
        {"normalize": (0.5, 0.5)},
        {"normalize": 0.5},
        {"normalize": ((0.5, 0.5), (1.0, 1.0))},
        {"normalize": ((0.5,), (0.0,))},
        {"normalize": "imagenet", "fields": ["number"]},
        {"augment": HorizontalFlip()},
        {"augment": ["flip"]},
        {"augment": [RandomCrop(8), RandomResizedCrop(8)]},
        {"augment": [RandomCrop(81)]},
        {"augment": [HorizontalFlip()], "fields": ["number"]},
        {"transform": 3},
        {"verify": "sometimes"},
        {"window_nbytes": 0},
        {"shuffle": "chunk", "lanes": 0},
        {"shuffle": "chunk", "lanes": 3},
    ],
    ids=str,
)
def test_a_wrong_option_is_a_value_error(one: H5TensorDataset, options: dict[str, Any]) -> None:
    options = {"batch_size": 8, **options}
    with pytest.raises(ValueError):
        one.loader(**options)
    if not {"threads", "prefetch", "device", "pin_memory"} & options.keys():
        with pytest.raises(ValueError):
            one.batches(**options)


@pytest.mark.parametrize("wrong", [-1, 1.5, "2"])
def test_a_wrong_epoch_is_refused(one: H5TensorDataset, wrong: Any) -> None:
    for door in (one.loader(8), one.batches(8)):
        with pytest.raises(ValueError, match="epoch"):
            door.set_epoch(wrong)


def test_batches_refuse_what_is_the_dataloaders_business(one: H5TensorDataset) -> None:
    for options in ({"device": "cpu"}, {"pin_memory": True}):
        with pytest.raises(ValueError, match="DataLoader"):
            one.batches(8, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_pin_memory_without_cuda_warns_and_auto_does_not(one: H5TensorDataset) -> None:
    with pytest.warns(UserWarning, match="no CUDA"):
        assert len(list(one.loader(50, pin_memory=True, threads=1))) == 2
    assert len(list(one.loader(50, pin_memory="auto", threads=1))) == 2
    gc.collect()


def test_stats_and_repr_tell_what_was_delivered(one: H5TensorDataset) -> None:
    with one.loader(8, threads=2) as loader:
        assert loader.stats().samples == 0
        for _ in loader:
            pass
        stats = loader.stats()
    assert (stats.samples, stats.batches, stats.threads) == (NUM, 10, 2)
    assert stats.nbytes_read > 0
    assert "75 samples in 10 batches of 8" in repr(loader)


def test_summary_logs_one_line_an_epoch(one: H5TensorDataset, caplog: pytest.LogCaptureFixture) -> None:
    with one.loader(8, threads=1, summary=True) as loader:
        list(loader)
        list(loader)
    assert [record.message.split(":")[0] for record in caplog.records] == ["epoch 0", "epoch 1"]


@pytest.mark.filterwarnings("ignore:shuffle=.chunk. mixes only")
def test_a_field_of_large_chunks_does_not_widen_the_window_of_the_others(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.h5"
    fields = {
        "image": Field("uint8", (3, 16, 16), chunk_samples=32),
        "box": Field("float32", (8,), codec="blosc2", chunk_samples=4096),
    }
    with Writer(path, fields) as w:
        w.append(image=torch.zeros(8192, 3, 16, 16, dtype=torch.uint8), box=torch.rand(8192, 8))
    ds = H5TensorDataset(path)
    budget = 40 * 32 * 768

    def window(names: list[str]) -> int:
        loader = ds.loader(32, "chunk", threads=2, fields=names, window_nbytes=budget)
        next(iter(loader))
        image = loader._run._parts.decoded["image"]
        loader.close()
        return len(image._memory)

    assert window(["image", "box"]) <= window(["image"]) + 2
