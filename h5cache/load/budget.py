"""Choose the window of chunk order from a memory budget, and say how well it will mix. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["DEFAULT_WINDOW_NBYTES", "ENOUGH_CHUNKS", "WindowPlan", "expected_diversity", "plan_window"]

#: Decoded bytes of chunk order, per process: for pictures of 3x224x224 in chunks of 16 that mixes 96 chunks.
DEFAULT_WINDOW_NBYTES = 256 * 2**20
#: Chunks that a batch should be drawn from: 96 % of the label entropy of a true shuffle in scDataset's tables.
ENOUGH_CHUNKS = 64
# scDataset's tables: label entropy relative to random, data sorted by label, by blocks mixed. A rule of thumb: large
# batches of many labels get less (1,000 sorted labels, batches of 256: 96 chunks give 82 %, 1,024 give 98 %), data
# stored shuffled gets 100 % from any window. `shuffle_quality` measures the data at hand.
_BLOCKS = (1, 16, 64, 256)
_DIVERSITY = (0.0, 0.84, 0.96, 0.99)


@dataclass(frozen=True)
class WindowPlan:
    """A window for chunk order, and what comes of it."""

    #: Chunks of one lane that are mixed with each other: `Order.window`.
    window: int
    #: Chunks that a global batch is drawn from.
    chunks_mixed: int
    #: Decoded bytes that a process then holds, about; `ChunkSpans.most_at_once` counts exactly.
    nbytes: int
    #: Budget that this was planned for, and the one that would mix `ENOUGH_CHUNKS`.
    budget_nbytes: int
    enough_nbytes: int
    #: Chunks of the data.
    num_chunks: int

    @property
    def diversity(self) -> float:
        """Rule of thumb for the label entropy of a batch relative to a true shuffle, if the data is sorted by label."""
        return 1.0 if self.chunks_mixed >= self.num_chunks else expected_diversity(self.chunks_mixed)

    @property
    def too_small(self) -> bool:
        """Whether a user should hear of it: batches come from few chunks although the data has more."""
        return self.chunks_mixed < min(ENOUGH_CHUNKS, self.num_chunks)

    @property
    def over_budget(self) -> bool:
        """Whether even one chunk per lane needs more than the budget."""
        return self.nbytes > self.budget_nbytes


def plan_window(
    num_chunks: int,
    chunk_nbytes: int,
    lanes: int,
    *,
    world_size: int = 1,
    groups: int = 1,
    budget_nbytes: int = DEFAULT_WINDOW_NBYTES,
) -> WindowPlan:
    """Choose the longest window whose decoded chunks fit into `budget_nbytes` of each process (rank or worker).

    `lanes` are those of a global batch, as in `Order`. A process holds a window of each of its lanes and, while one of
    them ends, the next window of that lane: windows end one after the other.
    """
    if min(chunk_nbytes, lanes, world_size, groups) < 1 or num_chunks < 0 or budget_nbytes < 0:
        raise ValueError("sizes and counts must be positive")
    held = lanes // world_size + 1
    # A lane cut out of the row of chunks touches one more than its share.
    longest = math.ceil(num_chunks / (lanes * groups)) + 1
    window = min(max(budget_nbytes // (chunk_nbytes * held), 1), longest)
    return WindowPlan(
        window=window,
        chunks_mixed=min(window * lanes, num_chunks),
        nbytes=min(window * held, num_chunks) * chunk_nbytes,
        budget_nbytes=budget_nbytes,
        enough_nbytes=min(math.ceil(ENOUGH_CHUNKS / lanes) * held, num_chunks) * chunk_nbytes,
        num_chunks=num_chunks,
    )


def expected_diversity(chunks_mixed: int) -> float:
    """Estimate the label entropy of batches drawn from so many chunks, relative to a true shuffle of sorted data."""
    if chunks_mixed < 1:
        return 0.0
    if chunks_mixed > _BLOCKS[-1]:
        return 1 - (1 - _DIVERSITY[-1]) * _BLOCKS[-1] / chunks_mixed
    return float(np.interp(math.log2(chunks_mixed), np.log2(_BLOCKS), _DIVERSITY))
