"""`ds.batches(...)` under DataLoader: workers agree on the epoch and share its batches exactly."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from load_cases import NUM, check, flat, numbers_of, open_numbers, run_script
from torch.utils.data import DataLoader

from h5cache import Field, H5TensorDataset, Writer
from h5cache.errors import StateError

SHUFFLES = [False, "chunk", "full"]
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create",  # more workers than this machine has cores
    "ignore:.*multi-threaded, use of fork",
    "ignore:.set_vital. is deprecated",  # torchdata 0.11 under torch 2.13
)


def workers(stream: Any, num_workers: int, **options: Any) -> DataLoader:
    return DataLoader(stream, batch_size=None, num_workers=num_workers, **options)


def expected(ds: H5TensorDataset, shuffle: Any, epoch: int, num_workers: int = 1, **options: Any) -> list[list[int]]:
    """Return the batches of an epoch by the order's arithmetic."""
    order = ds.batches(8, shuffle, **options)._order(max(1, num_workers)).epoch(epoch)
    return [order.batch(g).tolist() for g in range(order.num_batches)]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_workers_deliver_the_batches_of_the_order(ds: H5TensorDataset, shuffle: Any, num_workers: int) -> None:
    stream = ds.batches(8, shuffle)
    loader = workers(stream, num_workers)
    assert len(loader) == len(stream) == 10
    for epoch in range(2):
        found = [check(batch) for batch in loader]
        assert found == expected(ds, shuffle, epoch, num_workers)
        assert sorted(flat(found)) == list(range(NUM))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_spawned_workers_deliver_the_same(one: H5TensorDataset, context: str) -> None:
    stream = one.batches(8, "chunk", seed=2)
    loader = workers(stream, 2, multiprocessing_context=context, persistent_workers=True)
    for epoch in (0, 1, 5):
        if epoch == 5:
            stream.set_epoch(5)
        assert [check(batch) for batch in loader] == expected(one, "chunk", epoch, 2, seed=2)


def test_more_workers_than_batches_leave_some_idle(file: str) -> None:
    stream = open_numbers(file).batches(50, "full")
    assert [len(batch) for batch in numbers_of(workers(stream, 4))] == [50, 25]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_ranks_and_workers_together_see_each_sample(file: str, shuffle: Any) -> None:
    seen: list[int] = []
    for rank in range(2):
        stream = open_numbers(file).batches(6, shuffle, rank=rank, world_size=2, drop_last=True)
        found = numbers_of(workers(stream, 2))
        assert {len(batch) for batch in found} == {6}
        seen += flat(found)
    assert len(seen) == len(set(seen)) == 72


def test_set_epoch_reaches_persistent_workers(file: str) -> None:
    ds = open_numbers(file)
    stream = ds.batches(8, "full")
    loader = workers(stream, 2, persistent_workers=True)
    assert numbers_of(loader) == expected(ds, "full", 0)
    assert numbers_of(loader) == expected(ds, "full", 1)
    stream.set_epoch(9)
    assert numbers_of(loader) == expected(ds, "full", 9)
    assert numbers_of(loader) == expected(ds, "full", 10)
    next(iter(loader))  # breaking out is an epoch, too
    assert numbers_of(loader) == expected(ds, "full", 12)


@pytest.mark.parametrize("peeks", [(0,), (1,), (2,), (0, 3, 1)])
def test_workers_agree_on_the_epoch_after_peeks_with_other_numbers_of_workers(file: str, peeks: tuple[int]) -> None:
    """Counted per worker, a peek put workers of one iteration into different epochs: samples came twice or never."""
    ds = open_numbers(file)
    stream = ds.batches(8, "full")
    for num_workers in peeks:
        next(iter(workers(stream, num_workers)))
    assert numbers_of(workers(stream, 3)) == expected(ds, "full", len(peeks))


def test_workers_agree_when_torch_is_seeded_anew_for_every_epoch(file: str) -> None:
    ds = open_numbers(file)
    stream = ds.batches(8, "full")
    for epoch in range(3):
        torch.manual_seed(0)  # DataLoader then draws the same seed for its workers again
        assert numbers_of(workers(stream, 2)) == expected(ds, "full", epoch)
    torch.manual_seed(0)
    stream.set_epoch(1)
    assert numbers_of(workers(stream, 2)) == expected(ds, "full", 1)


def test_two_loaders_over_one_stream_are_each_whole(file: str) -> None:
    stream = open_numbers(file).batches(8, "full")
    loaders = [workers(stream, 2, persistent_workers=True) for _ in range(2)]
    for _ in range(2):
        both = list(zip(*loaders, strict=True))
        for found in zip(*both, strict=True):
            assert sorted(flat(numbers_of(found))) == list(range(NUM))


def test_batches_in_a_worker_are_shared_memory_already(one: H5TensorDataset) -> None:
    stream = one.batches(8, transform=note_sharing)
    assert all(sharing for batch in workers(stream, 1) for sharing in batch)


def note_sharing(batch: dict[str, torch.Tensor]) -> list[bool]:
    return [tensor.is_shared() for tensor in batch.values()]


def test_a_stream_pickles_with_its_epoch(file: str) -> None:
    stream = open_numbers(file).batches(8, "full")
    stream.set_epoch(3)
    assert numbers_of(pickle.loads(pickle.dumps(stream))) == numbers_of(stream)


# State


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 3), (3, 0), (1, 1)])
def test_resume_with_other_workers_gives_exactly_the_rest(file: str, shuffle: Any, before: int, after: int) -> None:
    ds = open_numbers(file)
    for done in (1, 4, 10):
        stream = ds.batches(8, shuffle, seed=5)
        stream.set_epoch(2)
        batches = iter(workers(stream, before))
        seen = numbers_of(next(batches) for _ in range(done))
        state = stream.state_dict(batches_done=done)
        del batches
        other = ds.batches(8, shuffle, seed=77)
        other.load_state_dict(state)
        assert other.state_dict() == state
        whole = expected(ds, shuffle, 2, before, seed=5)
        assert seen == whole[:done]
        rest = numbers_of(workers(other, after))
        if done == 10:
            assert rest == expected(ds, shuffle, 3, before, seed=5)
            continue
        assert rest == whole[done:]
        # Workers are new ones in each epoch: the state must not be resumed again. Its seed stays.
        later = numbers_of(workers(other, after))
        assert sorted(flat(later)) == list(range(NUM))
        if shuffle != "chunk" or max(before, 1) == max(after, 1):  # a window is planned for the number of workers
            assert later == expected(ds, shuffle, 3, after, seed=5)


def test_resuming_twice_and_set_epoch_after_it_continue(file: str) -> None:
    ds = open_numbers(file)
    whole = expected(ds, "full", 0)
    stream = ds.batches(8, "full")
    batches = iter(workers(stream, 2))
    next(batches)
    state = stream.state_dict(batches_done=1)
    stream.load_state_dict(state)
    stream.set_epoch(0)  # the usual loop says so at its top
    batches = iter(workers(stream, 2))
    assert numbers_of(next(batches) for _ in range(3)) == whole[1:4]
    state = stream.state_dict(batches_done=3)
    stream.load_state_dict(state)
    assert numbers_of(workers(stream, 3)) == whole[4:]
    stream.load_state_dict(state)
    stream.set_epoch(1)
    assert numbers_of(workers(stream, 3)) == expected(ds, "full", 1)


def test_state_without_batches_done_is_refused_where_workers_iterate(file: str) -> None:
    stream = open_numbers(file).batches(8)
    assert stream.state_dict()["loader"]["next_batch"] == 0
    batches = iter(workers(stream, 1))
    next(batches)
    with pytest.raises(ValueError, match="batches_done"):
        stream.state_dict()


def test_state_of_an_iteration_in_this_process_needs_no_count(file: str) -> None:
    ds = open_numbers(file)
    stream = ds.batches(8, "chunk")
    batches = iter(stream)
    seen = numbers_of(next(batches) for _ in range(3))
    other = ds.batches(8, "chunk")
    other.load_state_dict(stream.state_dict())
    assert seen + numbers_of(other) == expected(ds, "chunk", 0)


def test_loading_a_state_under_running_workers_raises(file: str) -> None:
    stream = open_numbers(file).batches(8)
    loader = workers(stream, 1, persistent_workers=True)
    next(iter(loader))
    stream.load_state_dict(stream.state_dict(batches_done=1))
    with pytest.raises(StateError, match="make a new DataLoader"):
        next(iter(loader))


def test_a_state_that_does_not_fit_is_refused_at_once(file: str) -> None:
    ds = open_numbers(file)
    state = ds.batches(8).state_dict()
    for other in (ds.batches(4), ds.batches(8, "full"), ds.select(range(9)).batches(8)):
        with pytest.raises(StateError):
            other.load_state_dict(state)
    with pytest.raises(StateError):
        ds.batches(8).load_state_dict(state["loader"])


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_stateful_dataloader_resumes_exactly(file: str, shuffle: Any, num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    ds = open_numbers(file)

    def make() -> Any:
        stream = ds.batches(8, shuffle, seed=4)
        return stateful.StatefulDataLoader(stream, batch_size=None, num_workers=num_workers)

    epochs = [expected(ds, shuffle, epoch, num_workers, seed=4) for epoch in range(3)]
    for done in (0, 1, 5, 10):
        loader = make()
        list(loader)
        batches = iter(loader)
        seen = numbers_of(next(batches) for _ in range(done))
        assert seen == epochs[1][:done]
        state = loader.state_dict()
        del batches, loader
        other = make()
        other.load_state_dict(state)
        assert numbers_of(other) == epochs[1][done:]
        assert numbers_of(other) == epochs[2]


def test_stateful_dataloader_goes_on_after_a_finished_epoch(file: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    ds = open_numbers(file)
    for num_workers in (0, 2):
        loader = stateful.StatefulDataLoader(ds.batches(8, "full"), batch_size=None, num_workers=num_workers)
        list(loader)
        other = stateful.StatefulDataLoader(ds.batches(8, "full"), batch_size=None, num_workers=num_workers)
        other.load_state_dict(loader.state_dict())
        assert numbers_of(other) == expected(ds, "full", 1)


# Work


@pytest.mark.parametrize(("ranks", "num_workers"), [(1, 2), (2, 2)])
def test_real_ranks_and_workers_decode_each_chunk_once(tmp_path: Path, ranks: int, num_workers: int) -> None:
    num_chunks, per_chunk = 48, 16
    path, log = tmp_path / "data.h5", tmp_path / "decoded"
    with Writer(path, {"small": Field("uint8", (3, 8, 8), chunk_samples=per_chunk), "number": Field("int64")}) as w:
        numbers = torch.arange(num_chunks * per_chunk)
        w.append(small=(numbers % 251).to(torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8), number=numbers)
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from torch.utils.data import DataLoader
        from h5cache import H5TensorDataset
        from h5cache.load.read import SampleReader

        path, log, rank, ranks, workers = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
        read_chunk = SampleReader.read_chunk

        def noted(self, name, chunk, out):
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{chunk}\\n".encode())
            os.close(descriptor)
            read_chunk(self, name, chunk, out)

        SampleReader.read_chunk = noted
        stream = H5TensorDataset(path).batches(
            32, "chunk", rank=rank, world_size=ranks, window_nbytes=6 * 16 * 192, lanes=4 * ranks
        )
        for small, number in DataLoader(stream, batch_size=None, num_workers=workers):
            assert bool((small[:, 0, 0, 0] == number % 251).all())
            print(*number.tolist())
    """
    options = [str(path), str(log)]
    done = [run_script(script, *options, str(rank), str(ranks), str(num_workers)) for rank in range(ranks)]
    assert [one.stderr for one in done] == [""] * ranks
    delivered = sorted(int(text) for one in done for text in one.stdout.split())
    assert delivered == list(range(num_chunks * per_chunk))
    decoded = [int(line) for line in log.read_text().split()]
    assert set(decoded) == set(range(num_chunks))
    # A chunk in which the lanes of one end and those of the next begin is needed by both.
    assert len(decoded) <= num_chunks + ranks * max(1, num_workers) - 1
