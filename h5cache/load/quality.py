"""How far the batches of an order are from those of a true shuffle, as numbers. Pure: from the index alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.load.order import EpochOrder, Order, Shuffle

__all__ = ["ShuffleQuality", "quality_by_window", "shuffle_quality"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShuffleQuality:
    """Means over batches, each beside what a true shuffle of the same samples is expected to give."""

    shuffle: Shuffle
    batch_size: int
    #: Batches looked at.
    num_batches: int
    chunks_per_batch: float
    random_chunks_per_batch: float
    #: Bits; None without labels.
    label_entropy: float | None = None
    random_label_entropy: float | None = None

    @property
    def label_ratio(self) -> float | None:
        """Label entropy of a batch relative to random: 1 is a true shuffle, 0 is one label per batch."""
        if self.label_entropy is None or self.random_label_entropy is None:
            return None
        return _ratio(self.label_entropy, self.random_label_entropy)

    @property
    def chunk_ratio(self) -> float:
        """Distinct chunks in a batch relative to random."""
        return _ratio(self.chunks_per_batch, self.random_chunks_per_batch)

    def __str__(self) -> str:
        if not self.num_batches:
            return f"shuffle={self.shuffle!r}: no batches"
        parts = []
        if self.label_ratio is not None:
            bits = f"{self.label_entropy:.2f} of {self.random_label_entropy:.2f} bits"
            parts.append(f"label entropy {self.label_ratio:.1%} of random ({bits})")
        parts.append(f"{self.chunks_per_batch:.1f} chunks a batch, random {self.random_chunks_per_batch:.1f}")
        return f"shuffle={self.shuffle!r}, batches of {self.batch_size}: " + "; ".join(parts)


def shuffle_quality(
    epoch_order: EpochOrder, labels: npt.ArrayLike | None = None, num_batches: int = 64
) -> ShuffleQuality:
    """Look at up to `num_batches` batches of this rank, evenly spread over the epoch, full ones where there are any.

    `labels`: one per sample of the dataset (not of the view), of any type that sorts. Random is computed, not drawn:
    batches without replacement from all samples of the epoch.
    """
    order, population = epoch_order.order, epoch_order.order.population
    full = population.num_samples // order.global_batch
    looked_at = np.unique(np.linspace(0, max(full - 1, 0), num_batches).astype(np.int64)).tolist()
    batches = [epoch_order.batch(g) for g in looked_at] if epoch_order.num_batches and num_batches > 0 else []
    size = len(batches[0]) if batches else 0
    chunk_counts = _counts(population.chunks_of(epoch_order.sequence))
    chunks = [population.chunks_of(batch) for batch in batches]
    entropy = random_entropy = None
    if labels is not None:
        codes = _codes(labels, int(population.starts[-1]))
        entropy = _mean([_entropy(codes[batch]) for batch in batches])
        random_entropy = _expected_entropy(_counts(codes[epoch_order.sequence]), size)
    return ShuffleQuality(
        shuffle=order.shuffle,
        batch_size=size,
        num_batches=len(batches),
        chunks_per_batch=_mean([float(len(np.unique(batch))) for batch in chunks]),
        random_chunks_per_batch=_expected_distinct(chunk_counts, size),
        label_entropy=entropy,
        random_label_entropy=random_entropy,
    )


def quality_by_window(
    order: Order,
    labels: npt.ArrayLike | None = None,
    windows: Sequence[int] = (1, 2, 4, 8, 16, 32),
    *,
    epoch: int = 0,
    num_batches: int = 64,
) -> tuple[tuple[int, ShuffleQuality], ...]:
    """Return (window, quality) of chunk order for each window, with the lanes and groups of `order`."""
    orders = (replace(order, shuffle="chunk", window=window) for window in windows)
    return tuple((each.window, shuffle_quality(each.epoch(epoch), labels, num_batches)) for each in orders)


def _ratio(measured: float, expected: float) -> float:
    # One label, or one chunk: nothing to mix, so nothing is lacking.
    return measured / expected if expected > 0 else 1.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _codes(labels: npt.ArrayLike, num_samples: int) -> Integers:
    """Number the labels from 0, so that any kind of label is counted alike."""
    values: npt.NDArray[Any] = np.asarray(labels)
    if values.shape != (num_samples,):
        raise ValueError(f"one label per sample of the dataset is needed: {num_samples}, got shape {values.shape}")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _counts(codes: Integers) -> Integers:
    """Return how often each code occurs, of those that do."""
    counts = np.bincount(codes)
    return counts[counts > 0]


def _entropy(codes: Integers) -> float:
    share = _counts(codes) / max(len(codes), 1)
    return float(-(share * np.log2(share)).sum()) + 0.0


def _expected_entropy(counts: Integers, size: int) -> float:
    """Return the mean entropy in bits of `size` draws without replacement: draws of a label are hypergeometric."""
    if size == 0:
        return 0.0
    total = int(counts.sum())
    kinds, times = np.unique(counts, return_counts=True)  # labels that are equally frequent share their terms
    drawn = np.arange(1, size + 1)
    terms = -(drawn / size) * np.log2(drawn / size)
    logs = _log_factorials(total)
    expected = 0.0
    for kind, many in zip(kinds.tolist(), times.tolist(), strict=True):
        k = drawn[(drawn <= kind) & (size - drawn <= total - kind)]
        log_chance = _log_choose(logs, kind, k) + _log_choose(logs, total - kind, size - k)
        chance = np.exp(log_chance - _log_choose(logs, total, np.array([size])))
        expected += many * float((chance * terms[k - 1]).sum())
    return expected + 0.0


def _expected_distinct(counts: Integers, size: int) -> float:
    """Return the mean number of distinct groups among `size` draws without replacement."""
    if size == 0:
        return 0.0
    left = int(counts.sum()) - np.arange(size)  # before each draw
    kinds, times = np.unique(counts, return_counts=True)
    with np.errstate(divide="ignore"):  # log 0: a group too large to be missed
        drawn = [-np.expm1(np.log1p(-np.minimum(kind / left, 1)).sum()) for kind in kinds.tolist()]
    return float(np.dot(times, drawn))


def _log_factorials(most: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])


def _log_choose(logs: Floats, n: int, k: Integers) -> Floats:
    return np.asarray(logs[n] - logs[k] - logs[n - k])
