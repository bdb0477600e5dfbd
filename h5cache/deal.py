"""Deal samples: a seeded order, and splits that share every class out alike. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from h5cache.errors import SchemaError

__all__ = ["check_split", "plan_order", "plan_splits"]

Numbers = npt.NDArray[np.int64]


def plan_order(num_samples: int, seed: int, shuffle: bool) -> Numbers:
    """Return the number of the sample at each place: a permutation by the seed, or the source's own order."""
    if not shuffle:
        return np.arange(num_samples, dtype=np.int64)
    # PCG64 by name: `default_rng` may change with numpy, and with it every dataset.
    return np.random.Generator(np.random.PCG64(seed)).permutation(num_samples).astype(np.int64)


def plan_splits(
    num_samples: int, labels: Numbers | None, fractions: Mapping[str, float], seed: int, shuffle: bool
) -> dict[str, Numbers]:
    """Deal every sample to exactly one split, by class and at random; return the samples of each, in order.

    Who goes where depends on the seed alone, also with `shuffle=False`, which keeps the source's order inside each
    split. What rounding leaves over in one class is carried to the next, so that many small classes add up right.
    """
    order = plan_order(num_samples, seed, shuffle=True)
    classes = np.zeros(num_samples, np.int64) if labels is None else labels
    shares = np.array(list(fractions.values()), np.float64)
    split = np.empty(num_samples, np.int64)
    carried = np.zeros(len(shares))
    # A stable sort keeps the random order within each class.
    by_class = order[np.argsort(classes[order], kind="stable")]
    bounds = np.flatnonzero(np.diff(classes[by_class], prepend=-1, append=-1)) if num_samples else np.zeros(0, int)
    edges = np.unique(np.concatenate([[0], bounds, [num_samples]]))
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        counts = plan_counts(stop - start, shares, carried)
        carried += (stop - start) * shares - counts
        split[by_class[start:stop]] = np.repeat(np.arange(len(shares)), counts)
    stored = order if shuffle else np.arange(num_samples, dtype=np.int64)
    dealt = {name: stored[split[stored] == number] for number, name in enumerate(fractions)}
    for name, samples in dealt.items():
        if not len(samples):
            raise SchemaError(f"split {name!r} would be empty: {num_samples} samples are too few for {fractions[name]}")
    return dealt


def plan_counts(count: int, shares: npt.NDArray[np.float64], carried: npt.NDArray[np.float64]) -> Numbers:
    """Return whole numbers that add up to `count`, nearest to the shares: the largest remainders are rounded up."""
    wanted = np.maximum(0, count * shares + carried)
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    while counts.sum() > count:  # what was carried over may ask for more than there is
        counts[int(np.argmax(counts - wanted + (counts == 0) * -np.inf))] -= 1
    for _ in range(count - int(counts.sum())):
        counts[int(np.argmax(wanted - counts))] += 1
    return counts


def check_split(fractions: Mapping[str, float]) -> dict[str, float]:
    for name in fractions:
        if not name or not all(char.isalnum() or char in "-_" for char in name):
            raise SchemaError(f"the name of a split becomes that of a file: letters, digits, - and _, got {name!r}")
    total = sum(fractions.values())
    if not abs(total - 1) <= 1e-6 or not all(share >= 0 for share in fractions.values()):
        raise SchemaError(f"the shares of all splits must be positive and add up to 1, got {dict(fractions)}")
    return dict(fractions)
