"""A saved position: complete, checked, and independent of ranks and workers where that is promised."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5cache.errors import StateError
from h5cache.load.order import Order, Population
from h5cache.load.state import LoaderState

POPULATION = Population(np.array([0, 50, 103]), 8)
ORDER = Order(POPULATION, 12, "chunk", seed=3, lanes=6, groups=2, window=2)


def saved(order: Order = ORDER, epoch: int = 2, next_batch: int = 4) -> dict:
    return LoaderState.of(order.epoch(epoch), next_batch).to_dict()


def test_state_survives_json_and_pickle() -> None:
    state = LoaderState.of(replace(ORDER, seed=np.int64(3)).epoch(2), 4)
    assert LoaderState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert LoaderState.from_dict(pickle.loads(pickle.dumps(state.to_dict()))) == state


@given(
    shuffle=st.sampled_from([False, "chunk", "full"]),
    ranks=st.sampled_from([(1, 2), (2, 1), (3, 2), (6, 3), (1, 1), (2, 6)]),
    workers=st.integers(1, 5),
    next_batch=st.integers(0, 9),
    groups=st.integers(1, 3),
)
def test_resume_with_other_ranks_and_workers_gives_exactly_the_rest(
    shuffle: object, ranks: tuple[int, int], workers: int, next_batch: int, groups: int
) -> None:
    before, after = ranks
    order = Order(POPULATION, 12 // before, shuffle, 3, world_size=before, lanes=6, groups=groups, window=2)
    state = LoaderState.from_dict(saved(order, next_batch=next_batch))
    rest = []
    for rank in range(after):
        # Configured anew, with other lanes, groups and window: those of the state count.
        now = Order(POPULATION, 12 // after, shuffle, 0, rank=rank, world_size=after, lanes=after, groups=workers)
        found = state.resume(now)
        assert found.epoch == 2
        for worker in range(workers):
            for g in found.worker_batches(worker, workers, state.next_batch):
                rest += found.batch(g)[: found.num_rows(g) - found.num_padding(g)].tolist()
    assert sorted(rest) == sorted(order.epoch(2).sequence[next_batch * 12 :].tolist())


def test_state_after_the_last_batch_leaves_nothing() -> None:
    state = LoaderState.from_dict(saved(next_batch=ORDER.num_batches))
    assert list(state.resume(ORDER).worker_batches(0, 1, state.next_batch)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"population": Population.of(104, 8)}, "saved with 103 samples, this dataset or view has 104"),
        ({"population": Population.of(103, 8)}, "other samples, or in other chunks"),
        ({"population": Population(POPULATION.starts, 4)}, "other samples, or in other chunks"),
        ({"population": Population(POPULATION.starts, 8, np.arange(103)[::-1].copy())}, "same select, filter or split"),
        ({"batch_size": 24}, r"global batch of 12, now it is 24 \(24 x 1 ranks\): use batch_size=12"),
        ({"shuffle": "full"}, "saved with shuffle='chunk', now it is 'full': use shuffle='chunk'"),
        ({"drop_last": True}, "use drop_last=False"),
        ({"batch_size": 3, "world_size": 4, "lanes": 4}, r"by 4 ranks: .* use one of \[1, 2, 3, 6\] ranks"),
        ({"batch_size": 2, "world_size": 5, "lanes": 5}, "use ranks that divide it"),
    ],
)
def test_state_of_another_order_is_refused_with_what_to_do(change: dict, message: str) -> None:
    with pytest.raises(StateError, match=message):
        LoaderState.from_dict(saved()).resume(replace(ORDER, **change))


def test_full_order_resumes_in_other_chunks_and_shards() -> None:
    order = replace(ORDER, shuffle="full")
    found = LoaderState.from_dict(saved(order)).resume(replace(order, population=Population.of(103, 4)))
    np.testing.assert_array_equal(found.sequence, order.epoch(2).sequence)


def test_state_of_another_shuffling_numpy_is_refused() -> None:
    with pytest.raises(StateError, match="numpy shuffles otherwise"):
        LoaderState.from_dict({**saved(), "check": 1}).resume(ORDER)


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, [], None])
def test_anything_else_is_no_state(state: object) -> None:
    with pytest.raises(StateError, match="no state of an h5cache loader"):
        LoaderState.from_dict(state)


def test_state_of_another_version_is_refused() -> None:
    with pytest.raises(StateError, match="version 2, this h5cache reads version 1"):
        LoaderState.from_dict({**saved(), "version": 2})


def test_state_with_missing_or_unknown_parts_is_refused() -> None:
    state = saved()
    del state["epoch"]
    with pytest.raises(StateError, match=r"missing \['epoch'\], unknown \['epoque'\]"):
        LoaderState.from_dict({**state, "epoque": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": -1},
        {"epoch": "1"},
        {"next_batch": True},
        {"lanes": 0},
        {"drop_last": 1},
        {"shuffle": True},
        {"check": None},
    ],
)
def test_state_with_damaged_values_is_refused(wrong: dict) -> None:
    with pytest.raises(StateError, match=f"damaged: {next(iter(wrong))}"):
        LoaderState.from_dict({**saved(), **wrong})


def test_state_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(StateError, match="batch 99 of 9"):
        LoaderState.from_dict({**saved(), "next_batch": 99}).resume(ORDER)
    with pytest.raises(ValueError, match="0 to 9"):
        LoaderState.of(ORDER.epoch(0), 10)
