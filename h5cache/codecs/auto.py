"""Choose a codec for a field from one of its chunks, the same one on every machine.

What decides is the number of stored bytes and a fixed table of decode rates; measured speeds are for people to see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .blosc2 import Blosc2
from .codec import ChunkGeometry, Codec
from .memory import as_chunk_bytes
from .raw import Raw

__all__ = ["CandidateRow", "CodecChoice", "choose_codec", "format_choice"]

#: What a reader's share of a disk delivers, in MB/s: a cloud volume's usual 250. Photographs are chosen alike from
#: 100 to 600 MB/s; beyond that storing them raw would be the faster way to read, at twice the size.
DISK_MB_S = 250.0

#: Decode rates in MB/s of raw data, one thread, by compressor and filter: benchmarks/codecs.py on 224 px photographs,
#: rounded. Fixed, so that the choice depends on the data alone; only their proportions matter.
DECODE_MB_S: dict[tuple[str, str], float] = {
    ("zstd", "none"): 1600.0,
    ("zstd", "bytedelta"): 1450.0,
    ("zstd", "shuffle"): 1600.0,
    ("zstd", "bitshuffle"): 1050.0,
    ("zstd", "shuffle+bytedelta"): 1050.0,
    ("lz4", "none"): 4000.0,
}
RAW_MB_S = 10_000.0


@dataclass(frozen=True)
class CandidateRow:
    """One codec as it did on the chunk. Speeds are None unless they were measured."""

    codec: Codec
    stored_nbytes: int
    ratio: float
    #: Modelled seconds to read and decode one gigabyte of raw data: what the choice is made by.
    cost_s_per_gb: float
    chosen: bool
    encode_mb_s: float | None = None
    decode_mb_s: float | None = None


@dataclass(frozen=True)
class CodecChoice:
    """The codec chosen, resolved for the field's geometry, and every candidate in the order of the table."""

    codec: Codec
    rows: tuple[CandidateRow, ...]


def choose_codec(chunk: npt.NDArray[Any], geometry: ChunkGeometry, *, measure: bool = False) -> CodecChoice:
    """Try the candidates for this geometry on one full chunk and choose the cheapest to read.

    Equal costs go to the earlier candidate. `measure` also times each: for showing, never for choosing.
    """
    codecs = list(dict.fromkeys(codec.resolve(geometry) for codec in candidates(geometry)))
    encoded = [codec.encode(chunk) for codec in codecs]
    costs = [_cost(codec, len(stored), chunk.nbytes) for codec, stored in zip(codecs, encoded, strict=True)]
    # Zeros say nothing of the chunks to come: then the first guess stands.
    best = costs.index(min(costs)) if as_chunk_bytes(chunk, geometry.block_nbytes).any() else 0
    rows = []
    for i, (codec, stored) in enumerate(zip(codecs, encoded, strict=True)):
        speeds = _measure(codec, chunk, stored) if measure else (None, None)
        rows.append(CandidateRow(codec, len(stored), chunk.nbytes / len(stored), costs[i], i == best, *speeds))
    return CodecChoice(codecs[best], tuple(rows))


def candidates(geometry: ChunkGeometry) -> tuple[Codec, ...]:
    """Return the codecs worth trying, best guess first."""
    if geometry.itemsize > 1:
        return (
            Blosc2(filter="shuffle"),
            Blosc2(filter="none"),
            Blosc2(filter="none", clevel=3),
            Blosc2(filter="bitshuffle"),
            Blosc2(filter="shuffle+bytedelta"),
            Raw(),
        )
    if geometry.channels_last > 1:
        return (
            Blosc2(filter="shuffle+bytedelta"),
            Blosc2(filter="bytedelta"),
            Blosc2(filter="none"),
            Blosc2(cname="lz4", filter="none"),
            Raw(),
        )
    return (
        Blosc2(filter="bytedelta"),
        Blosc2(filter="none"),
        Blosc2(filter="bitshuffle"),
        Blosc2(cname="lz4", filter="none"),
        Raw(),
    )


def _cost(codec: Codec, stored_nbytes: int, raw_nbytes: int) -> float:
    rate = DECODE_MB_S[codec.cname, codec.filter] if isinstance(codec, Blosc2) else RAW_MB_S
    return 1000 * (stored_nbytes / raw_nbytes / DISK_MB_S + 1 / rate)


def _measure(codec: Codec, chunk: npt.NDArray[Any], stored: bytes) -> tuple[float, float]:
    out = np.empty(chunk.nbytes, np.uint8)
    encode_s = _best_time(lambda: codec.encode(chunk))
    decode_s = _best_time(lambda: codec.decode(stored, out))
    return chunk.nbytes / encode_s / 1e6, chunk.nbytes / decode_s / 1e6


def _best_time(call: Callable[[], object], repetitions: int = 3) -> float:
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def format_choice(choice: CodecChoice) -> str:
    """Return the candidates as a table for people; the chosen one is marked."""
    lines = [f"  {'codec':<34}{'stored':>12}{'ratio':>9}{'s/GB':>8}{'encode MB/s':>13}{'decode MB/s':>13}"]
    for row in choice.rows:
        mark = "*" if row.chosen else " "
        encode, decode = (f"{v:,.0f}" if v is not None else "-" for v in (row.encode_mb_s, row.decode_mb_s))
        lines.append(
            f"{mark} {_label(row.codec):<34}{row.stored_nbytes:>12,}{row.ratio:>9.2f}{row.cost_s_per_gb:>8.2f}"
            f"{encode:>13}{decode:>13}"
        )
    return "\n".join(lines)


def _label(codec: Codec) -> str:
    if isinstance(codec, Blosc2):
        return f"{codec.name} {codec.cname} {codec.clevel} {codec.filter} ({codec.typesize})"
    return codec.name
