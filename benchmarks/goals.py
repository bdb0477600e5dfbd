"""What loading is meant to reach, and whether it did. Pure: works on the results alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from limits import CODEC, MEMORY, PREADV
from own import COMPRESSED, FLOATS, UNCOMPRESSED, own_name
from peers import PEERS
from peers.ffcv import JPEG, NDARRAY, RAW, RESIZED
from peers.h5py import RECIPE
from peers.lmdb import LMDB
from small import SMALL_CHUNK, SMALL_CODEC, SMALL_FROM_DISK, SMALL_IN_MEMORY

__all__ = ["Goal", "check_goals"]

Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Goal:
    """`got` is None where a contestant was left out."""

    what: str
    sign: str
    wanted: float
    got: float | None
    #: The same ratio of CPU seconds: what it would be on a machine where nothing else runs or waits.
    by_cpu: float | None = None

    @property
    def reached(self) -> bool:
        if self.got is None:
            return False
        return self.got >= self.wanted if self.sign == ">=" else self.got <= self.wanted


def check_goals(results: Results, opening: Mapping[str, Mapping[str, float]]) -> list[Goal]:
    def rate(name: str) -> float | None:
        return results.get(name, {}).get("samples_per_s")

    def nbytes(name: str) -> float | None:
        return results.get(name, {}).get("stored_nbytes")

    def faster(what: str, wanted: float, name: str, *others: str) -> Goal:
        """Compare with the fastest of the others."""
        other = max(others, key=lambda one: rate(one) or 0.0)
        by_cpu = _ratio(results.get(other, {}).get("cpu_s_per_1000"), results.get(name, {}).get("cpu_s_per_1000"))
        return Goal(what, ">=", wanted, _ratio(rate(name), rate(other)), by_cpu)

    compressed, uncompressed = own_name(COMPRESSED, "Loader", "full"), own_name(UNCOMPRESSED, "Loader", "full")
    mapped = own_name(UNCOMPRESSED, "Loader mmap", "full")
    plain, plain_raw = own_name(COMPRESSED, "DataLoader", "full"), own_name(UNCOMPRESSED, "DataLoader", "full")
    floats = own_name(FLOATS, "Loader", "full")
    in_memory = [SMALL_IN_MEMORY.format(workers) for workers in (0, 2)]
    others = [peer.name for peer in PEERS if peer.name not in (RAW, NDARRAY, RESIZED)]

    goals = [
        faster("compressed, full, Loader / limit of the codec", 0.9, compressed, CODEC),
        faster("compressed, full, Loader / usual h5py recipe", 30, compressed, RECIPE),
        faster("compressed, full, Loader / best peer but FFCV uncompressed", 1, compressed, *others),
        Goal("compressed bytes / LMDB's", "<=", 0.65, _ratio(nbytes(compressed), nbytes(LMDB))),
        faster("uncompressed, full, Loader / limit of preadv", 0.8, uncompressed, PREADV),
        faster("uncompressed, full, Loader mmap / limit of memory", 0.6, mapped, MEMORY),
        faster("uncompressed, full, Loader mmap / FFCV's best", 2, mapped, RAW, NDARRAY, JPEG),
        faster("uncompressed, full, DataLoader / LMDB", 1, plain_raw, LMDB),
        faster("compressed, full, DataLoader / LMDB", 0.75, plain, LMDB),
        faster("exact float32, full, Loader / limit of the codec", 0.65, floats, CODEC),
        faster("32 px, chunk, Loader / limit of the codec", 0.8, SMALL_CHUNK, SMALL_CODEC),
        faster("32 px, chunk, Loader / TensorDataset in memory (best)", 2, SMALL_CHUNK, *in_memory),
        Goal("32 px, full from disk, samples/s of one thread", ">=", 40_000, rate(SMALL_FROM_DISK)),
    ]
    for plain_row in (compressed, uncompressed):
        augmented = f"{plain_row}, crop, flip"
        goals.append(faster(f"{_short(plain_row)}: crop, flip / without", 0.9, augmented, plain_row))
    for plain_row in (compressed, uncompressed):
        resized = f"{plain_row}, random resized crop, flip"
        goals.append(faster(f"{_short(plain_row)}: random resized crop / FFCV's", 1, resized, RESIZED))
    for kind, row in opening.items():
        beyond = row["open_s"] - row["libhdf5_open_s"]
        goals.append(Goal(f"opening {row['samples']:,} samples, {kind}: s beyond libhdf5", "<=", 0.3, beyond))
        pickled = row["pickled_nbytes_per_sample"]
        goals.append(Goal(f"opening, {kind}: pickled bytes a sample", "<=", 40, pickled))
    return goals


def _short(name: str) -> str:
    return name.removeprefix("h5cache ")


def _ratio(value: float | None, other: float | None) -> float | None:
    return None if not value or not other else value / other
