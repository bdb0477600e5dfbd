"""Share samples out into named parts, each class alike. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["split_samples"]


def split_samples(
    num_samples: int, shares: Mapping[str, float], labels: npt.NDArray[Any] | None, seed: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Return disjoint sample numbers by name, ascending; together all samples. Shares are relative to their sum.

    With `labels`, each class is split by itself, by largest remainders, so that every part has its share of it.
    """
    if not shares or any(not share >= 0 for share in shares.values()) or not sum(shares.values()) > 0:
        raise ValueError(f"shares must be numbers of at least 0, not all 0, got {dict(shares)}")
    rng = np.random.Generator(np.random.PCG64(seed))
    groups = (
        [np.arange(num_samples)] if labels is None else [np.flatnonzero(labels == one) for one in np.unique(labels)]
    )
    parts: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in shares}
    weights = np.array(list(shares.values()), np.float64)
    owed = np.zeros(len(weights))
    for group in groups:
        # What rounding left a part short of in the classes before counts for it in this one.
        exact = weights / weights.sum() * len(group) + owed
        counts = np.maximum(np.floor(exact), 0).astype(np.int64)
        while counts.sum() > len(group):
            counts[np.argmax(counts - exact)] -= 1
        for place in np.argsort(-(exact - counts), kind="stable")[: len(group) - counts.sum()]:
            counts[place] += 1
        owed = exact - counts
        for name, part in zip(shares, np.split(rng.permutation(group), np.cumsum(counts)[:-1]), strict=True):
            parts[name].append(part)
    return {name: np.sort(np.concatenate([np.zeros(0, np.int64), *found])) for name, found in parts.items()}
