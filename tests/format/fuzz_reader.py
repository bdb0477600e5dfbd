"""Flip bytes of a dataset anywhere, metadata included, and read everything. Run in a process of its own.

usage: fuzz_reader.py FILE SEED FIRST COUNT. Prints the number of each trial before it, so that a crash has a name, and
ends with code 1 and a traceback where an error is not h5cache's own or data is wrong.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import numpy as np

from h5cache import H5TensorDataset
from h5cache.errors import H5CacheError
from h5cache.format.verify import iter_damage


def flip(data: bytes, seed: int, trial: int) -> bytes:
    rng = np.random.default_rng((seed, trial))
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        changed[int(rng.integers(len(changed)))] ^= int(rng.integers(1, 256))
    return bytes(changed)


def read_all(path: Path, order: np.ndarray) -> dict[str, object]:
    with H5TensorDataset(path, as_dict=True) as dataset:
        read = {name: tensor.numpy() for name, tensor in dataset[order].items()}
        return {**read, "key": dataset.index["key"][order], "classes": dataset.classes}


def main(path: Path, seed: int, first: int, count: int) -> int:
    original = path.read_bytes()
    with H5TensorDataset(path) as dataset:
        order = np.random.default_rng(seed).permutation(len(dataset))
    expected = read_all(path, order)
    outcomes = {"right": 0, "refused": 0, "reported": 0}
    for trial in range(first, first + count):
        print(f"trial {trial}", flush=True)
        path.write_bytes(flip(original, seed, trial))
        try:
            outcomes["reported"] += bool(list(iter_damage(path)))
            read = read_all(path, order)
        except H5CacheError:
            outcomes["refused"] += 1
            continue
        except Exception:
            traceback.print_exc()
            return 1
        for name, value in expected.items():
            if not np.array_equal(read[name], value):
                print(f"trial {trial}: {name} is wrong", file=sys.stderr)
                return 1
        outcomes["right"] += 1
    print(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:5])))
