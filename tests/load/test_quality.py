"""Shuffle quality: 1 for a true shuffle, 0 for sorted data, and right in between."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache.load.order import Order, Population
from h5cache.load.quality import quality_by_window, shuffle_quality

TOTAL = 64 * 256
POPULATION = Population.of(TOTAL, 16)
SORTED = np.arange(TOTAL) // 256  # 64 labels, one after the other
ORDER = Order(POPULATION, 64, "full", lanes=16)


def test_full_shuffle_is_as_good_as_random() -> None:
    found = shuffle_quality(ORDER.epoch(0), SORTED)
    assert found.label_ratio == pytest.approx(1, abs=0.01)
    assert found.chunk_ratio == pytest.approx(1, abs=0.01)


def test_sorted_data_in_its_own_order_has_no_label_entropy() -> None:
    found = shuffle_quality(replace(ORDER, shuffle=False).epoch(0), SORTED)
    assert found.label_ratio == 0
    assert found.chunks_per_batch == 4


def test_quality_of_chunk_order_grows_with_the_window() -> None:
    table = quality_by_window(ORDER, SORTED, (1, 4, 16, 64))
    ratios = [found.label_ratio for _, found in table]
    assert [window for window, _ in table] == [1, 4, 16, 64]
    assert ratios == sorted(ratios)
    assert 0.7 < ratios[0] < 0.9
    assert ratios[-1] > 0.98


def test_data_stored_shuffled_is_mixed_in_any_order() -> None:
    labels = np.random.default_rng(0).permutation(SORTED)
    for _, found in quality_by_window(ORDER, labels, (1,)):
        assert found.label_ratio == pytest.approx(1, abs=0.02)
        assert found.chunk_ratio < 0.5


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    chunk_samples=st.integers(1, 5),
    batch_size=st.integers(1, 6),
)
def test_expected_values_are_the_mean_over_all_possible_batches(
    counts: list[int], chunk_samples: int, batch_size: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    size = min(batch_size, len(labels))
    found = shuffle_quality(Order(Population.of(len(labels), chunk_samples), size, "full").epoch(0), labels)
    entropies, distinct = [], []
    for batch in itertools.combinations(range(len(labels)), size):
        share = np.unique(labels[list(batch)], return_counts=True)[1] / size
        entropies.append(-(share * np.log2(share)).sum())
        distinct.append(len({sample // chunk_samples for sample in batch}))
    assert found.random_label_entropy == pytest.approx(np.mean(entropies))
    assert found.random_chunks_per_batch == pytest.approx(np.mean(distinct))


def test_expected_values_hold_for_a_million_samples() -> None:
    # Labels and chunks all different: a batch of 256 has 8 bits and 256 chunks, up to rounding of log(1000000!).
    found = shuffle_quality(Order(Population.of(1_000_000, 1), 256).epoch(0), np.arange(1_000_000), num_batches=1)
    assert found.random_label_entropy == pytest.approx(8, rel=1e-6)
    assert found.random_chunks_per_batch == pytest.approx(256, rel=1e-6)


def test_expected_values_are_exact_where_a_batch_is_everything() -> None:
    found = shuffle_quality(Order(Population.of(12, 3), 12, "full").epoch(0), np.arange(12) % 4)
    assert found.random_label_entropy == pytest.approx(2)
    assert found.random_chunks_per_batch == pytest.approx(4)
    assert found.label_ratio == pytest.approx(1)


def test_one_label_counts_as_mixed() -> None:
    assert shuffle_quality(ORDER.epoch(0), np.zeros(TOTAL)).label_ratio == 1


def test_without_labels_chunks_alone_are_judged() -> None:
    found = shuffle_quality(ORDER.epoch(0))
    assert found.label_ratio is None
    assert "entropy" not in str(found)


def test_labels_may_be_strings_and_belong_to_the_dataset_not_the_view() -> None:
    population = Population.of(TOTAL, 16, np.arange(0, TOTAL, 3))
    found = shuffle_quality(replace(ORDER, population=population).epoch(0), SORTED.astype(str))
    assert found.label_ratio == pytest.approx(1, abs=0.01)
    with pytest.raises(ValueError, match=f"{TOTAL}, got shape"):
        shuffle_quality(ORDER.epoch(0), SORTED[:-1])


@pytest.mark.parametrize(("total", "drop_last", "looked_at"), [(0, False, 0), (5, True, 0), (5, False, 1)])
def test_tiny_epochs_are_judged_by_what_they_have(total: int, drop_last: bool, looked_at: int) -> None:
    order = Order(Population.of(total, 2), 8, "full", drop_last=drop_last)
    found = shuffle_quality(order.epoch(0), np.arange(total))
    assert found.num_batches == looked_at
    assert (str(found) == "shuffle='full': no batches") == (looked_at == 0)


def test_text_is_one_line_with_the_numbers() -> None:
    text = str(shuffle_quality(replace(ORDER, shuffle="chunk", window=4).epoch(0), SORTED))
    assert text.count("\n") == 0
    assert text.startswith("shuffle='chunk', batches of 64: label entropy ")
    assert "chunks a batch, random" in text
