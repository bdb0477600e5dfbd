"""Find the even grid of 256 places on which a few floating-point numbers lie, up to their rounding.

Pure arithmetic on sorted levels. Knows nothing of bit patterns, codes on disk or samples; a grid found here only says
which place each number takes, so a poor guess costs a conflict later and never a wrong value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LAST_PLACE", "Grid", "fit_grids"]

LAST_PLACE = 255

# (means, stds) of normalisations in use: value = (k / 255 - mean) / std. One entry holds for every channel.
_KNOWN = (
    ((0.0,), (1.0,)),  # ToTensor
    ((0.0,), (1 / 255,)),  # 0 .. 255 as float
    ((0.5,), (0.5,)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet
    ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),  # CLIP
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),  # CIFAR-10
    ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # CIFAR-10, per-image deviations
    ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),  # CIFAR-100
    ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255,)),  # Caffe
    ((0.1307,), (0.3081,)),  # MNIST
    ((0.2860,), (0.3530,)),  # Fashion-MNIST
    ((0.0,), (256 / 255,)),  # k / 256
    ((128 / 255,), (1 / 255,)),  # k - 128
    ((128 / 255,), (128 / 255,)),  # k / 128 - 1
)

# Fewer levels than this fit some grid by chance, so their spacing is evidence of nothing.
_FEW = 3
# From here on a chance fit to 0.35 of a step is rare: 0.7 ** 30 * 255 counts < 1 %.
_MANY = 32
_LOOSE = 0.35
# Any misfit below half a step is safe; the rest is left for arithmetic in float32.
_WIDEST = 0.45
# A grid of our own has two free parameters; a known one wins unless it fits worse by this much (steps, RMS).
_HANDICAP = 0.1


@dataclass(frozen=True)
class Grid:
    """Places 0 to 255: place k stands at `offset + k * step`, with `step > 0`."""

    offset: float
    step: float


def fit_grids(levels: Sequence[NDArray[np.float64]], epsilon: float) -> list[Grid] | None:
    """Choose one grid per channel that gives each of its levels a place of its own, or None where there is none.

    `levels`: per channel, finite, ascending and distinct, at least one. `epsilon`: spacing of the dtype at 1.0.
    Where the levels leave the position open, places are chosen so that unseen levels probably fit as well: multiples
    of the step, a normalisation in use, else the middle of the room.
    """
    with np.errstate(all="ignore"):  # extreme levels overflow; the checks below then see inf or nan and refuse
        candidates = [(_worst_misfit(grids, levels, epsilon), grids) for grids in _known_grids(len(levels))]
        own = _own_grids(levels, epsilon)
        if own is not None:
            candidates.append((_worst_misfit(own, levels, epsilon, _WIDEST) + _HANDICAP, own))
    # Rounded, so that among equally good ones the first of the list is taken.
    misfit, grids = min(candidates, key=lambda candidate: round(candidate[0], 3))
    return grids if misfit < np.inf else None


def _known_grids(num_channels: int) -> Iterator[list[Grid]]:
    for means, stds in _KNOWN:
        if len(means) not in (1, num_channels):
            continue
        pairs = list(zip(means, itertools.cycle(stds)))
        grids = [Grid((0.0 - mean) / std, 1 / (255 * std)) for mean, std in pairs]
        if len(grids) == 1:
            yield grids * num_channels
        else:
            yield grids
            yield grids[::-1]  # BGR


def _worst_misfit(
    grids: Sequence[Grid], levels: Sequence[NDArray[np.float64]], epsilon: float, tolerance: float | None = None
) -> float:
    return max(_misfit(*pair, epsilon, tolerance) for pair in zip(grids, levels, strict=True))


def _misfit(grid: Grid, levels: NDArray[np.float64], epsilon: float, tolerance: float | None = None) -> float:
    """Return the RMS distance of the levels from their places in steps; inf if two share one or one is too far off."""
    position = (levels - grid.offset) / grid.step
    place = np.rint(position)
    distance = np.abs(position - place)
    if tolerance is None:
        reach = max(abs(grid.offset), float(np.abs(levels).max())) / grid.step
        rounding = min(max(16 * epsilon * reach, 1e-3), 0.4)
        tolerance = max(rounding, _LOOSE) if levels.size >= _MANY else rounding
    fits = (
        distance.max() <= tolerance and place[0] >= 0 and place[-1] <= LAST_PLACE and bool((np.diff(place) > 0).all())
    )
    return float(np.sqrt(np.mean(distance**2))) if fits else np.inf


def _own_grids(levels: Sequence[NDArray[np.float64]], epsilon: float) -> list[Grid] | None:
    """Fit each channel by itself; those of few levels lean on the one that has most."""
    grids: dict[int, Grid] = {}
    hint: Grid | None = None
    for channel in sorted(range(len(levels)), key=lambda c: -levels[c].size):
        grid: Grid | None
        if hint is not None and levels[channel].size <= _FEW and _misfit(hint, levels[channel], epsilon) < np.inf:
            grid = hint
        else:
            grid = _own_grid(levels[channel], hint.step if hint else None, epsilon)
        if grid is None:
            return None
        grids[channel] = grid
        hint = hint or grid
    return [grids[channel] for channel in range(len(levels))]


def _own_grid(levels: NDArray[np.float64], step_hint: float | None, epsilon: float) -> Grid | None:
    if levels.size > LAST_PLACE + 1:
        return None
    first, extent = float(levels[0]), float(levels[-1] - levels[0])
    if levels.size == 1:
        return _place(levels, Grid(first, step_hint or abs(first) / 128 or 1 / 255), 0, epsilon)
    guess: tuple[Grid, int] | None = None
    if levels.size <= _FEW and (step_hint or levels.size == 2):
        # Two values and nothing else known: a mask, so black and white.
        count = int(np.clip(np.rint(extent / step_hint), 1, LAST_PLACE)) if step_hint else LAST_PLACE
        guess = Grid(first, extent / count), count
        if _misfit(guess[0], levels, epsilon, _WIDEST) == np.inf:
            guess = None
    guess = guess or _scan_counts(levels, extent)
    if guess is None:
        return None
    tolerance = _WIDEST if levels.size <= _FEW else None
    return _place(levels, *guess, epsilon) if _misfit(guess[0], levels, epsilon, tolerance) < np.inf else None


def _scan_counts(levels: NDArray[np.float64], extent: float) -> tuple[Grid, int] | None:
    """Return the grid, and its steps from first to last level, on which the levels lie best.

    The extent is a whole number of steps, at most 255: all are tried at once. Measured in steps, rounding weighs twice
    as much on a grid twice as fine, so the best is the coarsest that fits. The smallest gap would be a poor start: in
    half precision it is off by a quarter.
    """
    if not np.isfinite(extent):
        return None
    counts = np.arange(levels.size - 1, LAST_PLACE + 1, dtype=np.float64)[:, None]
    # Extents near the ends of float64 are no pictures; scaled levels keep the squares below finite.
    scaled = (levels - levels[0]) / extent
    start, step = np.zeros_like(counts), 1 / counts
    for _ in range(3):  # least squares on the places, then places anew: the two end levels are rounded as well
        places = np.rint((scaled - start) / step)
        centred = places - places.mean(axis=1, keepdims=True)
        step = (centred * scaled).sum(axis=1, keepdims=True) / (centred**2).sum(axis=1, keepdims=True)
        start = scaled.mean() - step * places.mean(axis=1, keepdims=True)
    misfit = np.sqrt(np.mean(((scaled - start) / step - places) ** 2, axis=1))
    taken_twice = (np.diff(places, axis=1) < 1).any(axis=1)
    misfit[taken_twice | ~np.isfinite(misfit)] = np.inf
    if misfit.min() == np.inf:
        return None
    best = int(np.argmax(misfit <= misfit.min() + 1e-6))
    first_place = places[best, 0]
    offset = float(levels[0] + extent * (start[best, 0] + first_place * step[best, 0]))
    count = int(places[best, -1] - first_place)
    return (Grid(offset, float(extent * step[best, 0])), count) if count <= LAST_PLACE else None


def _place(levels: NDArray[np.float64], grid: Grid, count: int, epsilon: float) -> Grid | None:
    """Shift a grid that starts at the first level: to multiples of its step, else to the middle of the room."""
    if not (grid.step > 0 and np.isfinite(grid.offset / grid.step)):
        return None
    multiple = round(grid.offset / grid.step)
    near = abs(grid.offset / grid.step - multiple) <= (0.1 if epsilon > 1e-4 else 0.01)
    shift = multiple if levels[0] >= 0 and near and 0 <= multiple <= LAST_PLACE - count else (LAST_PLACE - count) // 2
    return Grid(grid.offset - shift * grid.step, grid.step)
