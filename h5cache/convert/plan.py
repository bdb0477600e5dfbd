"""Decide, before anything is written, which samples make which part, and how holes are filled. Pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from h5cache.codecs import Codec
from h5cache.errors import SchemaError
from h5cache.format.build import plan_part_samples
from h5cache.format.layout import RESIDENT_NBYTES, is_resident, plan_chunking
from h5cache.format.parts import is_file_output
from h5cache.schema import Field, Schema

__all__ = ["PartPlan", "RunPlan", "parse_size", "plan_fill", "plan_output", "plan_run", "plan_schema"]

#: Samples of a part of a file: what a kill loses at most, some 90 MB and a second or two of pictures.
PART_SAMPLES = 1024
#: Parts of small samples hold more of them: opening, checking and joining a part costs some 20 ms.
PART_NBYTES = 16 * 1024 * 1024
#: Stored bytes of a shard of a folder: a few files, each quick to copy.
SHARD_NBYTES = 512_000_000
#: Small datasets have smaller parts, so that many workers find work: so many parts, of so many samples at least.
MIN_PARTS = 32
MIN_PART_SAMPLES = 64
#: A folder has at least so many shards (of PART_SAMPLES or more), so that as many workers find work.
MIN_SHARDS = 16

#: For all fields but numbers and the like, or by name of the field.
CodecChoice: TypeAlias = "str | Codec | Mapping[str, str | Codec]"

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


@dataclass(frozen=True)
class PartPlan:
    """The places [start, stop) of the dataset's order that one part holds."""

    number: int
    start: int
    stop: int

    @property
    def num_samples(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class RunPlan:
    """The parts of one dataset. Their bounds depend on samples and options alone, never on workers."""

    output: str
    num_samples: int
    part_samples: int

    @property
    def parts(self) -> list[PartPlan]:
        return [
            PartPlan(number, start, min(self.num_samples, start + self.part_samples))
            for number, start in enumerate(range(0, self.num_samples, self.part_samples))
        ]

    @property
    def num_parts(self) -> int:
        return -(-self.num_samples // self.part_samples)

    def __str__(self) -> str:
        kind = "parts" if is_file_output(self.output) else "shards"
        return f"{self.output}: {self.num_samples} samples in {self.num_parts} {kind} of {self.part_samples}"


def plan_run(
    output: str,
    num_samples: int,
    schema: Schema,
    stored_nbytes: float,
    part_samples: int | None = None,
    shard_size: int | str | None = None,
) -> RunPlan:
    """Return the parts of a dataset whose samples take about `stored_nbytes` each.

    `shard_size` is for folders: samples (a number) or bytes on disk ("512MB").
    """
    if is_file_output(output):
        wanted = part_samples or min(plan_small_parts(schema), max(MIN_PART_SAMPLES, -(-num_samples // MIN_PARTS)))
    else:
        wanted = plan_shard_samples(stored_nbytes, shard_size)
        if shard_size is None:
            wanted = min(wanted, max(plan_small_parts(schema), -(-num_samples // MIN_SHARDS)))
    return RunPlan(output, num_samples, plan_part_samples(schema, max(1, wanted)))


def plan_shard_samples(sample_nbytes: float, shard_size: int | str | None) -> int:
    """Return the samples of a shard of the size asked for."""
    if isinstance(shard_size, int):
        return shard_size
    nbytes = SHARD_NBYTES if shard_size is None else parse_size(shard_size)
    return max(1, int(nbytes // max(1.0, sample_nbytes)))


def plan_small_parts(schema: Schema) -> int:
    sample_nbytes = sum(field.sample_nbytes for field in schema.values())
    return max(PART_SAMPLES, PART_NBYTES // max(1, sample_nbytes))


def plan_schema(schema: Schema, codec: CodecChoice, part_samples: int | None) -> Schema:
    """Return the schema with the codec asked for, and chunks no larger than a part.

    A box of four numbers beside each picture would otherwise get chunks of 65,536 samples, and parts with it.
    """
    wanted = part_samples or plan_small_parts(schema)
    largest = 2 ** (wanted.bit_length() - 1)
    return Schema(tuple((name, _plan_field(name, field, codec, largest)) for name, field in schema.items()))


def _plan_field(name: str, field: Field, codec: CodecChoice, largest: int) -> Field:
    if isinstance(codec, Mapping):
        field = replace(field, codec=codec.get(name, "auto"))
    elif field.sample_nbytes > RESIDENT_NBYTES:
        field = replace(field, codec=codec)
    else:
        field = replace(field, codec="auto")
    if is_resident(field) or field.chunk_samples is not None:
        return field
    chunks = [plan_chunking(field, codes, True, None)[1] for codes in {False, field.may_be_coded_exactly}]
    return replace(field, chunk_samples=largest) if max(chunks) > largest else field


def plan_fill(num_samples: int, holes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return, for each place of the final dataset, the place its sample was converted at.

    Holes are filled in order, each with the last sample that is left; everything else stays where it is, so that
    only chunks with holes are touched.

    >>> plan_fill(6, np.array([1, 4])).tolist()
    [0, 5, 2, 3]
    """
    bad = np.zeros(num_samples, bool)
    bad[holes] = True
    kept = num_samples - int(bad.sum())
    filled = np.arange(kept)
    tail = np.flatnonzero(~bad[kept:])[::-1] + kept
    filled[np.flatnonzero(bad[:kept])] = tail
    return filled


def plan_output(output: str, split: str | None) -> str:
    """Return where a split goes: `data.h5` becomes `data-train.h5`, a folder `data` becomes `data/train`.

    >>> plan_output("/x/data.h5", "train"), plan_output("/x/data", "val"), plan_output("/x/data", None)
    ('/x/data-train.h5', '/x/data/val', '/x/data')
    """
    if split is None:
        return output
    if is_file_output(output):
        stem, suffix = os.path.splitext(output)
        return f"{stem}-{split}{suffix}"
    return os.path.join(output, split)


def parse_size(text: str) -> int:
    """Return the bytes of "512MB", "1.5 GB" or "64MiB"; SchemaError where it is no size.

    >>> parse_size("512MB"), parse_size("1 KiB")
    (512000000, 1024)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not math.isfinite(float(match[1])) or float(match[1]) <= 0:
        raise SchemaError(f"a size is a number of samples (4096) or of bytes (512MB, 2GB), got {text!r}")
    return int(float(match[1]) * unit)
