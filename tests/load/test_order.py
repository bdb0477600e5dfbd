"""The order of an epoch: every sample once, split exactly among ranks and workers, the same for ever."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache.load.budget import plan_window
from h5cache.load.order import Order, Population, choose_lanes, normalise_shuffle

SHUFFLES = (False, "chunk", "full")


@dataclass(frozen=True)
class Case:
    """A population and how an epoch over it is cut up, as seen by all ranks."""

    population: Population
    shuffle: object
    batch_size: int
    world_size: int
    lanes: int
    groups: int
    window: int
    drop_last: bool
    seed: int
    epoch: int

    def ranks(self) -> list[Order]:
        return [
            Order(
                self.population, self.batch_size, self.shuffle, self.seed, self.drop_last, rank, self.world_size,
                self.lanes, self.groups, self.window,
            )
            for rank in range(self.world_size)
        ]  # fmt: skip

    @property
    def total(self) -> int:
        return self.population.num_samples

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size


@st.composite
def populations(draw: Callable) -> Population:
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    total = int(starts[-1])
    selected = None
    if draw(st.booleans()) and total:
        repeats = draw(st.booleans())
        numbers = draw(st.lists(st.integers(0, total - 1), max_size=total, unique=not repeats))
        selected = np.array(sorted(numbers) if draw(st.booleans()) else numbers, np.int64)
    return Population(starts, draw(st.integers(1, 17)), selected)


@st.composite
def cases(draw: Callable, shuffles: tuple = SHUFFLES) -> Case:
    per_lane, per_rank, ranks = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return Case(
        draw(populations()),
        draw(st.sampled_from(shuffles)),
        batch_size=per_lane * per_rank,
        world_size=ranks,
        lanes=per_rank * ranks,
        groups=draw(st.integers(1, 4)),
        window=draw(st.integers(1, 6)),
        drop_last=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
        epoch=draw(st.integers(0, 3)),
    )


def delivered(order: Order, epoch: int, padding: bool = False) -> list[int]:
    found = order.epoch(epoch)
    rows = []
    for g in range(found.num_batches):
        batch = found.batch(g)
        rows += batch[: len(batch) if padding else len(batch) - found.num_padding(g)].tolist()
    return rows


@given(cases())
def test_sequence_of_any_order_is_a_permutation_of_the_samples(case: Case) -> None:
    sequence = case.ranks()[0].epoch(case.epoch).sequence
    np.testing.assert_array_equal(np.sort(sequence), np.sort(case.population.samples))


@given(cases())
def test_ranks_partition_the_epoch_with_padding_left_out(case: Case) -> None:
    rows = [sample for order in case.ranks() for sample in delivered(order, case.epoch)]
    expected = Counter(case.population.samples.tolist())
    if case.drop_last:
        assert len(rows) == case.total // case.global_batch * case.global_batch
        assert not Counter(rows) - expected
    else:
        assert Counter(rows) == expected


@given(cases())
def test_all_ranks_have_equally_many_batches_of_equal_sizes(case: Case) -> None:
    epochs = [order.epoch(case.epoch) for order in case.ranks()]
    sizes = {tuple(len(found.batch(g)) for g in range(found.num_batches)) for found in epochs}
    assert len(sizes) == 1
    (size,) = sizes
    # As many as DistributedSampler and DataLoader make of it.
    per_rank = case.total // case.world_size if case.drop_last else -(-case.total // case.world_size)
    assert len(size) == (per_rank // case.batch_size if case.drop_last else -(-per_rank // case.batch_size))
    assert set(size[:-1]) <= {case.batch_size}
    if not case.drop_last:
        assert sum(size) == per_rank
    assert all(found.num_rows(g) == n for found in epochs for g, n in enumerate(size))


@given(cases())
def test_padding_repeats_the_first_samples_of_the_epoch(case: Case) -> None:
    epochs = [order.epoch(case.epoch) for order in case.ranks()]
    if not epochs[0].num_batches:
        return
    last = epochs[0].num_batches - 1
    padding = [int(found.batch(last)[-1]) for found in epochs if found.num_padding(last)]
    sequence = epochs[0].sequence.tolist()
    assert padding == [sequence[i % len(sequence)] for i in range(len(padding))]
    assert len(padding) == (0 if case.drop_last else -case.total % case.world_size)


@given(cases(), st.integers(1, 6), st.data())
def test_workers_partition_the_batches_from_any_start(case: Case, workers: int, data: st.DataObject) -> None:
    found = case.ranks()[-1].epoch(case.epoch)
    start = data.draw(st.integers(0, found.num_batches))
    lists = [list(found.worker_batches(worker, workers, start)) for worker in range(workers)]
    assert sorted(g for one in lists for g in one) == list(range(start, found.num_batches))
    # DataLoader takes from its workers in turn: numbers ascend.
    turns = [one[turn] for turn in range(len(lists[0])) for one in lists if turn < len(one)]
    assert turns == list(range(start, found.num_batches))


@given(cases(), st.data())
def test_resume_with_other_ranks_of_the_same_global_batch_gives_exactly_the_rest(
    case: Case, data: st.DataObject
) -> None:
    fitting = [w for w in range(1, case.global_batch + 1) if case.global_batch % w == 0]
    if case.shuffle == "chunk":
        fitting = [w for w in fitting if case.lanes % w == 0]
    ranks = data.draw(st.sampled_from(fitting))
    begun = [order.epoch(case.epoch) for order in case.ranks()]
    start = data.draw(st.integers(0, begun[0].num_batches))
    seen = Counter(
        sample
        for found in begun
        for g in range(start)
        for sample in found.batch(g)[: found.num_rows(g) - found.num_padding(g)].tolist()
    )
    other = replace(case, world_size=ranks, batch_size=case.global_batch // ranks)
    resumed = [order.epoch(case.epoch) for order in other.ranks()]
    assert resumed[0].num_batches == begun[0].num_batches
    rest = Counter(
        sample
        for found in resumed
        for g in range(start, found.num_batches)
        for sample in found.batch(g)[: found.num_rows(g) - found.num_padding(g)].tolist()
    )
    assert seen + rest == Counter(
        delivered(replace(case, world_size=1, batch_size=case.global_batch).ranks()[0], case.epoch)
    )


@given(cases(("chunk",)), st.data())
def test_chunk_order_decodes_each_chunk_once_over_all_ranks_and_workers(case: Case, data: st.DataObject) -> None:
    case = replace(case, drop_last=False)
    workers = data.draw(st.sampled_from([k for k in range(1, case.groups + 1) if case.groups % k == 0]))
    decoded: Counter[int] = Counter()
    for order in case.ranks():
        found = order.epoch(case.epoch)
        for worker in range(workers):
            spans = found.chunk_spans(found.worker_batches(worker, workers))
            assert len(np.unique(spans.chunks)) == len(spans.chunks)
            decoded.update(spans.chunks.tolist())
    used = set(case.population.chunks_of(case.population.samples).tolist())
    assert set(decoded) == used
    # One more only where the border of two owners falls inside a chunk.
    borders = case.world_size * case.groups - 1
    assert decoded.total() <= len(used) + borders
    if case.world_size == workers == 1:
        assert decoded.total() == len(used)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_chunk_order_decodes_each_chunk_exactly_once_where_lanes_are_whole_chunks(ranks: int, groups: int) -> None:
    population = Population.of(16 * 8 * 16, 16)
    decoded: Counter[int] = Counter()
    for rank in range(ranks):
        order = Order(
            population, 64 // ranks, "chunk", 5, rank=rank, world_size=ranks, lanes=8, groups=groups, window=2
        )
        found = order.epoch(0)
        for worker in range(groups):
            decoded.update(found.chunk_spans(found.worker_batches(worker, groups)).chunks.tolist())
    assert decoded == Counter(range(128))


@given(cases())
def test_chunk_spans_cover_every_row_that_is_not_padding(case: Case) -> None:
    for order in case.ranks():
        found = order.epoch(case.epoch)
        spans = found.chunk_spans()
        when = {chunk: (a, b) for chunk, a, b in zip(spans.chunks.tolist(), spans.first, spans.last, strict=True)}
        needed: dict[int, list[int]] = {}
        for g in range(found.num_batches):
            own = found.batch(g)[: found.num_rows(g) - found.num_padding(g)]
            for chunk in case.population.chunks_of(own).tolist():
                needed.setdefault(chunk, []).append(g)
        assert when == {chunk: (min(batches), max(batches)) for chunk, batches in needed.items()}
        assert np.all(np.diff(spans.first) >= 0)
        held = [sum(a <= g <= b for a, b in when.values()) for g in range(found.num_batches)]
        assert spans.most_at_once == max(held, default=0)


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (4, 1), (2, 3)])
def test_chunks_held_at_once_stay_near_one_window_per_lane(ranks: int, groups: int) -> None:
    population = Population(np.array([0, 30_011, 100_003]), 16)
    for rank in range(ranks):
        order = Order(population, 256 // ranks, "chunk", rank=rank, world_size=ranks, lanes=16, groups=groups, window=8)
        found = order.epoch(0)
        for worker in range(groups):
            held = found.chunk_spans(found.worker_batches(worker, groups)).most_at_once
            # One lane or two are between windows; had all lanes been at once, it were twice the windows.
            assert held <= (16 // ranks + 3) * 8


@given(cases(("chunk",)))
def test_lanes_mix_only_chunks_of_one_window(case: Case) -> None:
    case = replace(case, world_size=1, batch_size=case.lanes, lanes=case.lanes, groups=1)
    found = case.ranks()[0].epoch(case.epoch)
    full = case.total // case.lanes
    for lane in range(case.lanes):
        chunks = case.population.chunks_of(found.sequence[: full * case.lanes].reshape(full, case.lanes)[:, lane])
        open_at_once = [
            len(set(chunks[: i + 1].tolist()) & set(chunks[i:].tolist())) for i in range(len(chunks))
        ]  # fmt: skip
        assert max(open_at_once, default=0) <= case.window


@given(cases())
def test_same_seed_and_epoch_give_the_same_order_after_pickling_too(case: Case) -> None:
    for order in case.ranks():
        again = pickle.loads(pickle.dumps(order))
        np.testing.assert_array_equal(order.epoch(case.epoch).sequence, again.epoch(case.epoch).sequence)


@pytest.mark.parametrize("shuffle", ["chunk", "full"])
def test_epochs_and_seeds_differ(shuffle: str) -> None:
    population = Population.of(1000, 10)
    orders = [
        Order(population, 10, shuffle, seed, lanes=5, window=4).epoch(epoch) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({found.sequence.tobytes() for found in orders}) == 4
    assert len({found.check for found in orders}) == 4


def test_unshuffled_order_is_that_of_the_selection() -> None:
    selected = np.array([7, 3, 3, 9, 0])
    assert delivered(Order(Population.of(10, 4, selected), 2), 0) == [7, 3, 3, 9, 0]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("total", "batch_size", "ranks"), [(0, 4, 1), (0, 4, 3), (2, 4, 1), (2, 4, 3), (1, 1, 4)])
def test_tiny_datasets_serve_every_rank_alike(
    total: int, batch_size: int, ranks: int, drop_last: bool, shuffle: str
) -> None:
    orders = [
        Order(
            Population.of(total, 3), batch_size, shuffle, drop_last=drop_last, rank=rank, world_size=ranks, lanes=ranks
        )
        for rank in range(ranks)
    ]
    batches = [delivered(order, 0, padding=True) for order in orders]
    expected = 0 if drop_last else -(-total // ranks)
    assert [len(rows) for rows in batches] == [expected] * ranks
    assert {row for rows in batches for row in rows} == (set() if drop_last else set(range(total)))


GOLDEN = {
    False: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
    "full": [21, 19, 7, 17, 22, 2, 5, 13, 10, 8, 12, 3, 4, 0, 18, 11, 15, 14, 20, 16, 1, 9, 6],
    "chunk": [0, 16, 12, 10, 18, 19, 22, 21, 14, 1, 13, 11, 9, 8, 4, 7, 17, 15, 2, 3, 20, 6, 5],
}


def _golden(shuffle: object) -> list[int]:
    population = Population(np.array([0, 10, 23]), 4)
    return Order(population, 4, shuffle, seed=7, lanes=2, groups=2, window=2).epoch(3).sequence.tolist()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_order_never_changes_between_versions(shuffle: object) -> None:
    # If numpy changes these, saved states are refused (LoaderState.check): say so in the CHANGELOG.
    assert _golden(shuffle) == GOLDEN[shuffle]


def test_order_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "import numpy as np; from h5cache.load.order import Order, Population\n"
        "p = Population(np.array([0, 10, 23]), 4)\n"
        "order = Order(p, 4, 'chunk', seed=7, lanes=2, groups=2, window=2)\n"
        "print(order.epoch(3).sequence.tolist(), p.fingerprint('chunk'))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert str(GOLDEN["chunk"]) in texts.pop()


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_full_order_puts_any_sample_anywhere_equally_often() -> None:
    order = Order(Population.of(12, 3), 4, "full")
    counts = np.zeros((12, 12))
    for epoch in range(3000):
        counts[np.arange(12), order.epoch(epoch).sequence] += 1
    # 11 x 11 degrees of freedom: mean 121, standard deviation 15.6.
    assert 60 < chi_square(counts) < 190


def test_chunk_order_puts_any_chunk_anywhere_equally_often() -> None:
    order = Order(Population.of(48, 4), 4, "chunk", lanes=1, window=1)
    counts = np.zeros((12, 12))
    for epoch in range(3000):
        counts[np.arange(12), order.epoch(epoch).sequence[::4] // 4] += 1
    assert 60 < chi_square(counts) < 190


def test_window_of_chunk_order_mixes_its_samples_uniformly() -> None:
    # One lane, one window of all chunks: a sample may come out anywhere.
    order = Order(Population.of(12, 3), 4, "chunk", lanes=1, window=100)
    counts = np.zeros((12, 12))
    for epoch in range(3000):
        sequence = order.epoch(epoch).sequence
        counts[np.arange(12), sequence] += 1
    assert 60 < chi_square(counts) < 190


def test_first_batch_of_chunk_order_is_drawn_from_half_a_window_at_least() -> None:
    population = Population.of(16 * 4096, 16)
    for lanes in (1, 2, 16):
        order = Order(population, 512, "chunk", lanes=lanes, window=64 // lanes)
        assert len(np.unique(population.chunks_of(order.epoch(0).batch(0)))) >= 32


def test_samples_of_a_window_follow_each_other_independently() -> None:
    order = Order(Population.of(64 * 16, 16), 16, "chunk", lanes=1, window=16)
    together, pairs = 0, 0
    for epoch in range(60):
        chunks = order.epoch(epoch).sequence // 16
        windows = chunks.reshape(-1, 256)
        together += int((windows[:, 1:] == windows[:, :-1]).sum())
        pairs += windows[:, 1:].size
    # Two of 256 samples in 16 chunks of 16 share a chunk with chance 15/255.
    assert abs(together / pairs - 15 / 255) < 4 * np.sqrt(15 / 255 / pairs)


@given(st.integers(1, 600), st.integers(1, 40))
def test_chosen_lanes_fit_ranks_and_batch(batch_size: int, ranks: int) -> None:
    lanes = choose_lanes(batch_size, ranks)
    assert lanes % ranks == 0
    assert batch_size * ranks % lanes == 0
    assert lanes <= max(16, ranks)
    if ranks == 1:
        assert lanes == max(n for n in range(1, 17) if batch_size % n == 0)


def test_lanes_that_ranks_do_not_divide_raise_with_the_ranks_that_would() -> None:
    with pytest.raises(ValueError, match=r"cannot be split among 3 ranks: use one of \[1, 2, 4\] ranks"):
        Order(Population.of(9, 3), 4, "chunk", rank=0, world_size=3, lanes=4)
    with pytest.raises(ValueError, match="lanes must divide it"):
        Order(Population.of(9, 3), 4, "chunk", lanes=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"rank": 1},
        {"seed": -1},
        {"window": 0},
        {"groups": 0},
        {"shuffle": True},
        {"shuffle": "random"},
    ],
)
def test_wrong_arguments_raise_value_errors(wrong: dict) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong)))):
        Order(**{"population": Population.of(9, 3), "batch_size": 2, **wrong})


def test_batch_out_of_range_raises_an_index_error() -> None:
    found = Order(Population.of(9, 3), 2).epoch(0)
    for g in (-1, 5):
        with pytest.raises(IndexError, match="5 batches"):
            found.batch(g)


def test_population_out_of_range_raises() -> None:
    with pytest.raises(IndexError, match="sample 9 is out of range"):
        Population.of(9, 3, np.array([1, 9]))
    with pytest.raises(ValueError, match="starts must"):
        Population(np.array([3, 9]), 3)


def test_shuffle_arguments_mean_what_users_expect() -> None:
    assert [normalise_shuffle(value) for value in (True, False, None, "full", "chunk")] == [
        "full", False, False, "full", "chunk",
    ]  # fmt: skip
    with pytest.raises(ValueError, match='"chunk"'):
        normalise_shuffle("blocks")


def test_sequence_cannot_be_changed_and_batches_are_copies() -> None:
    found = Order(Population.of(9, 3), 2, "full").epoch(0)
    found.batch(0)[:] = -1
    assert found.sequence.min() == 0
    with pytest.raises(ValueError, match="read-only"):
        found.sequence[0] = 1


def test_window_plan_keeps_to_its_budget() -> None:
    plan = plan_window(80_000, 2_408_448, 16)
    assert plan.window == 6
    assert not plan.too_small
    assert not plan.over_budget
    assert 0.96 < plan.diversity < 0.98


def test_window_plan_that_mixes_few_chunks_says_so_and_what_would_do() -> None:
    plan = plan_window(80_000, 2_408_448, 16, budget_nbytes=50_000_000)
    assert (plan.window, plan.chunks_mixed, plan.too_small) == (1, 16, True)
    assert plan.diversity == pytest.approx(0.84)
    enough = plan_window(80_000, 2_408_448, 16, budget_nbytes=plan.enough_nbytes)
    assert not enough.too_small


def test_window_plan_of_few_chunks_takes_them_all_without_complaint() -> None:
    plan = plan_window(5, 1000, 4)
    assert (plan.chunks_mixed, plan.too_small, plan.diversity) == (5, False, 1.0)


def test_window_plan_says_where_one_chunk_per_lane_is_too_much() -> None:
    assert plan_window(1000, 10**9, 16).over_budget


@given(st.integers(0, 10**6), st.integers(1, 10**7), st.integers(1, 16), st.integers(0, 10**9))
@settings(max_examples=50)
def test_window_plan_is_within_its_budget_or_says_so(chunks: int, nbytes: int, lanes: int, budget: int) -> None:
    plan = plan_window(chunks, nbytes, lanes, budget_nbytes=budget)
    assert plan.window >= 1
    assert plan.over_budget == (plan.nbytes > budget)
    assert not plan.over_budget or plan.window == 1
