"""The order of an epoch as arithmetic: which samples make batch g of a rank. Pure: no torch, no files, no clock.

An epoch is one sequence of samples, fixed by (seed, epoch) and by the values of an `Order`. With B samples in a global
batch (batch_size x world_size), global batch g is rows [gB, (g+1)B) of the sequence, and a rank takes its slice of
them. So position determines element: resuming is a batch number, and neither threads nor DataLoader workers matter.

`False` and `"full"`: the sequence is the samples as they are, or a permutation of them.

`"chunk"`: the chunks are permuted and their samples laid in a row, which is cut into `lanes x groups` lanes of exactly
the length that the batches need. A lane is mixed inside windows of `window` chunks. Global batch g takes B/lanes rows
of each lane of group g mod groups; a rank has lanes/world_size lanes of each group. Thus with k DataLoader workers and
`groups` a multiple of k, dealing every k-th batch to a worker gives each worker lanes, and so chunks, of its own.

- Lanes are cut by samples, not by chunks: that alone lets every lane end together and all ranks have equal batches. An
  owner (a rank's worker) holds neighbouring lanes, so a chunk is decoded by one owner only, unless the border of two
  owners falls inside it: C chunks are decoded at most C + owners - 1 times over all ranks and workers, and with one
  owner exactly C times. For this every second lane runs backwards: the two parts of a cut chunk come at the same time,
  both in the first windows of their lanes or both in the last.
- The first windows of the lanes have different lengths, so that windows end one after the other: decoding is spread
  evenly, and memory stays near one window per lane rather than two.

The tail, N mod B samples: dropped with `drop_last`; else a last batch that is as short, shared evenly. Where ranks do
not divide it, those that lack a sample get one from the start of the epoch, as with DistributedSampler: all ranks
always have equally many batches, of equal sizes.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "MOST_LANES",
    "ChunkSpans",
    "EpochOrder",
    "Order",
    "Population",
    "Shuffle",
    "choose_lanes",
    "normalise_shuffle",
]

Integers = npt.NDArray[np.int64]
#: Sample numbers: int32 where that is enough, else int64.
Samples = npt.NDArray[Any]
Shuffle = Literal[False, "chunk", "full"]

#: More lanes split among more ranks, fewer leave longer windows for the same memory; 16 has many divisors.
MOST_LANES = 16
#: Rows that `EpochOrder.check` looks at: enough to tell any two permutations apart.
_CHECKED_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Population:
    """Which samples an epoch consists of, and how they lie in chunks. Chunks begin anew with each shard."""

    #: First sample of each shard, and after the last the number of samples of the dataset.
    starts: Integers
    #: Samples in a chunk of the field that costs most to decode.
    chunk_samples: int
    #: Samples of a subset, in the subset's order (any order, repeats allowed); None: all of the dataset.
    selected: Integers | None = None

    def __post_init__(self) -> None:
        if self.chunk_samples < 1:
            raise ValueError(f"a chunk has at least one sample, got chunk_samples={self.chunk_samples}")
        if len(self.starts) < 2 or self.starts[0] != 0 or np.any(np.diff(self.starts) < 0):
            raise ValueError("starts must begin with 0, ascend, and end with the number of samples")
        if self.selected is not None and len(self.selected):
            least, most = int(self.selected.min()), int(self.selected.max())
            if least < 0 or most >= int(self.starts[-1]):
                wrong = least if least < 0 else most
                raise IndexError(f"sample {wrong} is out of range: the dataset has {int(self.starts[-1])} samples")

    @classmethod
    def of(cls, num_samples: int, chunk_samples: int, selected: Integers | None = None) -> Population:
        """Describe a dataset of one shard."""
        return cls(np.array([0, num_samples], np.int64), chunk_samples, selected)

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, before padding."""
        return int(self.starts[-1]) if self.selected is None else len(self.selected)

    @property
    def samples(self) -> Integers:
        """Sample numbers in their own order."""
        return np.arange(self.starts[-1], dtype=np.int64) if self.selected is None else self.selected

    @property
    def num_stored_chunks(self) -> int:
        """Chunks of the dataset, those without a selected sample included."""
        return int(self._chunk_starts()[-1])

    def chunks_of(self, samples: Samples) -> Integers:
        """Return the chunk that each sample lies in, numbered over all shards."""
        if len(self.starts) == 2:
            return np.asarray(samples // self.chunk_samples, np.int64)
        shards = np.searchsorted(self.starts, samples, side="right") - 1
        local = samples - self.starts[shards]
        return np.asarray(self._chunk_starts()[shards] + local // self.chunk_samples, np.int64)

    def fingerprint(self, shuffle: Shuffle) -> str:
        """Return a digest of what the order depends on: the samples and, for "chunk", how they lie in chunks."""
        digest = hashlib.blake2b(digest_size=8)
        parts = [np.array([self.starts[-1]]), self.selected]
        if shuffle == "chunk":
            parts += [self.starts, np.array([self.chunk_samples])]
        for part in parts:
            data = b"all" if part is None else np.ascontiguousarray(part, "<i8").tobytes()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def _chunk_starts(self) -> Integers:
        counts = -(-np.diff(self.starts) // self.chunk_samples)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Order:
    """Everything but the epoch that decides the order. Small and picklable; `epoch(n)` gives the order itself.

    `lanes`, `groups` and `window` (chunks of one lane that are mixed) matter to "chunk" alone. The sequence depends on
    the global batch, not on how it is split among ranks.
    """

    population: Population
    #: Samples per rank and batch.
    batch_size: int
    shuffle: Shuffle = False
    seed: int = 0
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    lanes: int = 1
    groups: int = 1
    window: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size", "lanes", "groups", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must lie in 0 to {self.world_size - 1} (world_size - 1), got {self.rank}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")
        if self.shuffle not in (False, "chunk", "full"):
            raise ValueError(f'shuffle must be False, "chunk" or "full", got {self.shuffle!r}')
        if self.shuffle == "chunk":
            self._check_lanes()

    def _check_lanes(self) -> None:
        if self.lanes % self.world_size:
            fitting = [ranks for ranks in range(1, self.lanes + 1) if self.lanes % ranks == 0]
            raise ValueError(
                f'shuffle="chunk" with {self.lanes} lanes cannot be split among {self.world_size} ranks: use one of '
                f"{fitting} ranks, or a number of lanes that {self.world_size} divides (lanes=None chooses one), or "
                'shuffle="full"'
            )
        if self.global_batch % self.lanes:
            raise ValueError(
                f"a global batch of {self.global_batch} samples cannot be taken evenly from {self.lanes} lanes: "
                f"lanes must divide it (lanes=None chooses {choose_lanes(self.batch_size, self.world_size)})"
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def num_batches(self) -> int:
        """Batches of an epoch: the same on every rank, whatever the epoch."""
        full, tail = divmod(self.population.num_samples, self.global_batch)
        return full + (tail > 0 and not self.drop_last)

    def epoch(self, epoch: int) -> EpochOrder:
        """Compute the sequence of an epoch: about 20 ms a million samples, and 4 bytes of memory each."""
        if epoch < 0:
            raise ValueError(f"epoch must be 0 or more, got {epoch}")
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        fits = int(self.population.starts[-1]) <= np.iinfo(np.int32).max
        samples: Samples = self.population.samples.astype(np.int32 if fits else np.int64)
        if self.shuffle == "full":
            rng.shuffle(samples)
        elif self.shuffle == "chunk":
            samples = _mix_lanes(self, samples, rng)
        samples.flags.writeable = False
        return EpochOrder(self, epoch, samples)


@dataclass(frozen=True, eq=False)
class ChunkSpans:
    """When an owner needs which chunks: chunk `chunks[i]` from batch `first[i]` to batch `last[i]`, both included.

    Sorted by first use, so decoding in this order, and forgetting a chunk after its last batch, decodes each once.
    """

    chunks: Integers
    first: Integers
    last: Integers

    @property
    def most_at_once(self) -> int:
        """Chunks that are needed by one and the same batch at most: the decoded memory to provide for."""
        if not len(self.chunks):
            return 0
        begin, end = int(self.first.min()), int(self.last.max()) + 1
        change = np.bincount(self.first - begin, minlength=end - begin + 1)
        change = change - np.bincount(self.last + 1 - begin, minlength=end - begin + 1)
        return int(np.cumsum(change).max())


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The order of one epoch: any batch of this rank by its number, at the cost of a slice. Thread-safe."""

    order: Order
    epoch: int
    #: Sample numbers of the whole epoch, all ranks, before padding and before `drop_last`. Read-only.
    sequence: Samples

    @property
    def num_batches(self) -> int:
        return self.order.num_batches

    @property
    def check(self) -> int:
        """Return a checksum of the sequence: it changes where another numpy would shuffle differently."""
        return zlib.crc32(np.ascontiguousarray(self.sequence[:_CHECKED_ROWS], "<i8").tobytes())

    def batch(self, g: int) -> Integers:
        """Return the sample numbers of this rank's batch g, padding last. A copy."""
        start, stop, padding = self._bounds(g)
        rows = self.sequence[start:stop].astype(np.int64)
        if not padding:
            return rows
        # The ranks before this one that lacked a sample took the first ones of the epoch.
        taken = self.order.rank * (stop - start + padding) - (start - g * self.order.global_batch)
        return np.append(rows, np.int64(self.sequence[taken % len(self.sequence)]))

    def num_rows(self, g: int) -> int:
        """Samples in batch g, padding included: batch_size but for the last; the same on every rank."""
        start, stop, padding = self._bounds(g)
        return stop - start + padding

    def num_padding(self, g: int) -> int:
        """How many of the last rows of batch g repeat samples of the epoch's start: 0 or 1."""
        return self._bounds(g)[2]

    def worker_batches(self, worker: int, num_workers: int, start: int = 0) -> range:
        """Return the batches that a DataLoader worker delivers, of those from `start` on: every k-th.

        DataLoader takes from its workers in turn, so the batches reach the user in the order of their numbers. For
        "chunk" no chunk is decoded by two workers, but at borders, where `num_workers` divides `groups`.
        """
        if not 0 <= worker < num_workers:
            raise ValueError(f"worker must lie in 0 to {num_workers - 1}, got {worker}")
        if not 0 <= start <= self.num_batches:
            raise ValueError(f"an epoch of {self.num_batches} batches cannot begin at batch {start}")
        return range(start + worker, self.num_batches, num_workers)

    def chunk_spans(self, batches: range | None = None) -> ChunkSpans:
        """Return when this rank needs which chunk in `batches` (all by default), padding left out. Vectorised."""
        batches = range(self.num_batches) if batches is None else batches
        per_rank, rank = self.order.batch_size, self.order.rank
        full = len(self.sequence) // self.order.global_batch
        whole = np.arange(batches.start, min(batches.stop, full), batches.step)
        table = self.sequence[: full * self.order.global_batch].reshape(full, self.order.global_batch)
        rows = table[whole, rank * per_rank : (rank + 1) * per_rank].ravel()
        numbers = np.repeat(whole, per_rank)
        if full in batches:
            start, stop, _ = self._bounds(full)
            rows = np.concatenate([rows, self.sequence[start:stop]])
            numbers = np.concatenate([numbers, np.full(stop - start, full)])
        chunks = self.order.population.chunks_of(rows)
        # Of assignments to one place the last stands: no sort of all rows.
        size = self.order.population.num_stored_chunks
        first, last = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
        first[chunks[::-1]] = numbers[::-1]
        last[chunks] = numbers
        used = np.flatnonzero(first >= 0)
        used = used[np.argsort(first[used], kind="stable")]
        return ChunkSpans(used, first[used], last[used])

    def _bounds(self, g: int) -> tuple[int, int, int]:
        """Return start and stop of batch g in the sequence, and the samples it lacks."""
        if not 0 <= g < self.num_batches:
            raise IndexError(f"batch {g} is out of range: the epoch has {self.num_batches} batches")
        size, ranks, rank = self.order.batch_size, self.order.world_size, self.order.rank
        begin = g * self.order.global_batch
        tail = len(self.sequence) - begin
        if tail >= self.order.global_batch:
            return begin + rank * size, begin + (rank + 1) * size, 0
        # floor, so that in chunk order each rank keeps the ends of its own lanes.
        start, stop = begin + rank * tail // ranks, begin + (rank + 1) * tail // ranks
        return start, stop, -(-tail // ranks) - (stop - start)


def normalise_shuffle(shuffle: bool | str | None) -> Shuffle:
    """Return the kind of shuffle that a user's argument means: True is "full", None is False."""
    if shuffle is None or shuffle is False:
        return False
    if shuffle is True or shuffle == "full":
        return "full"
    if shuffle == "chunk":
        return "chunk"
    raise ValueError(f'shuffle must be False, "chunk", "full" or True (the same as "full"), got {shuffle!r}')


def choose_lanes(batch_size: int, world_size: int = 1) -> int:
    """Choose the most lanes, up to 16, that divide the global batch and that the ranks divide; at least one a rank."""
    room = max(MOST_LANES // world_size, 1)
    return world_size * max(lanes for lanes in range(1, room + 1) if batch_size % lanes == 0)


def _mix_lanes(order: Order, samples: Samples, rng: np.random.Generator) -> Samples:
    """Return the samples in chunk order: chunks permuted, cut into lanes, mixed in windows, woven into batches."""
    row, stops = _permute_chunks(order.population, samples, rng)
    starts = np.concatenate([[0], stops[:-1]]) if len(stops) else stops
    full, tail = divmod(len(samples), order.global_batch)
    share = order.global_batch // order.lanes
    result = np.empty_like(row)
    batches = result[: full * order.global_batch].reshape(full, order.lanes, share)
    begin = 0
    for group in range(order.groups):
        turns = len(range(group, full, order.groups))
        has_tail = group == full % order.groups
        for lane in range(order.lanes):
            tail_start = lane * tail // order.lanes if has_tail else 0
            tail_stop = (lane + 1) * tail // order.lanes if has_tail else 0
            end = begin + turns * share + tail_stop - tail_start
            backwards = (group * order.lanes + lane) % 2 == 1
            rows = row[begin:end][::-1].copy() if backwards else row[begin:end]
            touched = slice(np.searchsorted(stops, begin, side="right"), np.searchsorted(starts, end, side="left"))
            if backwards:
                ends = (end - np.maximum(starts[touched], begin))[::-1]
            else:
                ends = np.minimum(stops[touched], end) - begin
            cuts = [0, *ends[_first_window(lane, order.window) - 1 :: order.window].tolist(), end - begin]
            for start, stop in itertools.pairwise(cuts):
                rng.shuffle(rows[start:stop])
            batches[group :: order.groups, lane] = rows[: turns * share].reshape(turns, share)
            result[full * order.global_batch :][tail_start:tail_stop] = rows[turns * share :]
            begin = end
    return result


def _permute_chunks(population: Population, samples: Samples, rng: np.random.Generator) -> tuple[Samples, Integers]:
    """Lay the samples in a row, chunk after chunk in random order; return it and the stops of the chunks in it."""
    chunks = population.chunks_of(samples)
    if np.any(chunks[1:] < chunks[:-1]):
        by_chunk = np.argsort(chunks, kind="stable")
        samples, chunks = samples[by_chunk], chunks[by_chunk]
    begins = np.concatenate([np.zeros(min(len(chunks), 1), np.int64), np.flatnonzero(np.diff(chunks)) + 1])
    counts = np.diff(begins, append=len(chunks))
    chosen = rng.permutation(len(counts))
    counts = counts[chosen]
    stops = np.cumsum(counts)
    return samples[np.repeat(begins[chosen] - (stops - counts), counts) + np.arange(len(samples))], stops


def _first_window(lane: int, window: int) -> int:
    """Return the chunks of a lane's first window: half of `window` to all, different for neighbouring lanes."""
    # Multiples of the golden ratio modulo 1. Not below half: the first batches should be as mixed as the others.
    return window - ((lane * 0x9E3779B1 % 2**32) * (window // 2 + 1) >> 32)
