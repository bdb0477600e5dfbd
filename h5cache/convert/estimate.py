"""What a conversion would come to, from a few samples: size, time and reading speed of each sensible choice."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import Blosc2, Codec
from h5cache.convert.decide import Decision, FirstSamples, decide_fields, sample_schema
from h5cache.convert.options import ConvertOptions
from h5cache.convert.plan import plan_schema
from h5cache.convert.recipe import BadSample, Recipe, Values
from h5cache.convert.sources.source import BadSampleError, Source
from h5cache.errors import H5CacheError
from h5cache.format.chunks import decode_stored
from h5cache.format.encode import encode_chunk
from h5cache.format.parts import is_file_output
from h5cache.format.shard import FieldPlan
from h5cache.schema import Field, Schema
from h5cache.value_table import expand

__all__ = ["Choice", "Estimate", "estimate_conversion"]

ESTIMATE_SAMPLES = 64
CACHE_NBYTES = 64 * 1024 * 1024
#: Timings are the best of so many: others use the machine too.
REPEATS = 3


@dataclass(frozen=True)
class Choice:
    """One way to store the largest field, and what the whole dataset then comes to."""

    #: As on the command line: `--dtype`, `--codec`.
    dtype: str
    codec: str
    nbytes: int
    ratio: float
    convert_s: float
    #: From memory, with as many threads as there are cores: a slow disk may deliver less.
    delivered_per_s: float
    #: What a conversion with the options given would do.
    chosen: bool = False
    exact: bool = True


@dataclass(frozen=True)
class Estimate:
    """All choices, the one that was asked for first."""

    num_samples: int
    num_tried: int
    field: str
    choices: tuple[Choice, ...]
    bad: tuple[BadSample, ...]
    #: Bytes of disk that the conversion needs while it runs, and those that are free.
    needed_nbytes: int
    free_nbytes: int
    is_file: bool
    workers: int

    @property
    def fits(self) -> bool:
        return self.needed_nbytes <= self.free_nbytes

    def to_config(self) -> dict[str, Any]:
        return {**asdict(self), "fits": self.fits}


def estimate_conversion(
    source: Source, out: str, recipe: Recipe, options: ConvertOptions, workers: int, threads: int
) -> Estimate:
    """Convert some samples, spread over the source, and project. Writes nothing."""
    count = min(ESTIMATE_SAMPLES, len(source))
    spread = np.unique(np.linspace(0, len(source) - 1, count).astype(np.int64)) if count else np.zeros(0, np.int64)
    started = time.perf_counter()
    results = list(recipe.iter_values(source.take(spread)))
    load_s = (time.perf_counter() - started) / max(1, len(results))
    good = tuple(values for _, values in results if not isinstance(values, BadSampleError))
    keys = source.files.keys[spread]
    bad = tuple(
        BadSample(int(spread[place]), keys[place].decode(errors="replace"), str(values))
        for place, values in results
        if isinstance(values, BadSampleError)
    )
    if not good:
        reason = f"; the first: {bad[0]}" if bad else ""
        raise H5CacheError(f"none of {len(results)} samples tried could be converted{reason}")
    first = FirstSamples(sample_schema(source, recipe, good[0]), good)
    main = max(first.schema, key=lambda name: first.schema[name].sample_nbytes)
    part_samples = options.asked_samples(os.path.abspath(out))
    project = _Projection(first, main, len(source), part_samples, load_s / max(1, workers), max(1, workers), threads)
    choices = project.all(options)
    is_file = is_file_output(os.path.abspath(out))
    return Estimate(
        num_samples=len(source),
        num_tried=len(results),
        field=main,
        choices=tuple(choices),
        bad=bad,
        needed_nbytes=choices[0].nbytes * (2 if is_file else 1),
        free_nbytes=shutil.disk_usage(os.path.dirname(os.path.abspath(out))).free,
        is_file=is_file,
        workers=workers,
    )


@dataclass(frozen=True, eq=False)
class _Projection:
    first: FirstSamples
    main: str
    num_samples: int
    part_samples: int | None
    load_s: float
    workers: int
    threads: int

    def all(self, options: ConvertOptions) -> list[Choice]:
        field = self.first.schema[self.main]
        codec = options.codec.get(self.main, "auto") if isinstance(options.codec, Mapping) else options.codec
        choices = [self.one(field, codec, chosen=True)]
        choices += [self.one(field, name) for name in ("auto", "none", "blosc2", "zstd") if name != codec]
        if field.dtype == "float32":
            # Only worth a line where the values do not fit exact 8-bit codes already.
            choices.append(self.one(replace(field, dtype="float16"), "auto"))
        return choices

    def one(self, field: Field, codec: str | Codec, chosen: bool = False) -> Choice:
        values, exact = self.first.values, True
        if field.dtype != self.first.schema[self.main].dtype:
            values = tuple({**one, self.main: np.asarray(one[self.main]).astype(field.dtype)} for one in values)
            exact = _is_exact(self.first.values, values, self.main)
        plain = Schema(tuple((name, field if name == self.main else own) for name, own in self.first.schema.items()))
        first = FirstSamples(plain, values)
        schema = plan_schema(plain, {self.main: codec}, self.part_samples)
        decision = decide_fields(first, schema, self.num_samples)
        plan = decision.plans[self.main]
        encode_s, decode_s = _measure(plan, first.rows(schema)[self.main])
        return Choice(
            dtype=field.dtype,
            codec=_label(plan) if codec == "auto" else codec if isinstance(codec, str) else codec.name,
            nbytes=int(decision.stored_nbytes * self.num_samples),
            ratio=self._ratio(decision),
            convert_s=self.num_samples * (self.load_s + encode_s / self.workers),
            delivered_per_s=self.threads / decode_s,
            chosen=chosen,
            exact=exact,
        )

    def _ratio(self, decision: Decision) -> float:
        return sum(field.sample_nbytes for field in self.first.schema.values()) / decision.stored_nbytes


def _is_exact(before: tuple[Values, ...], after: tuple[Values, ...], name: str) -> bool:
    return all(np.array_equal(np.asarray(a[name]), np.asarray(b[name])) for a, b in zip(before, after, strict=True))


def _label(plan: FieldPlan) -> str:
    codec = plan.layout.codec
    text = f"auto: {codec.name}"
    if isinstance(codec, Blosc2):
        text = f"auto: blosc2 {codec.cname} {codec.filter}"
    return text + (", exact 8-bit codes" if plan.layout.codes else "")


def _measure(plan: FieldPlan, rows: npt.NDArray[Any]) -> tuple[float, float]:
    """Return seconds per sample to encode (and verify) and to decode one chunk; small fields cost next to nothing."""
    layout = plan.layout
    if layout.resident:
        return 1e-7, 1e-7
    chunk = rows[np.arange(layout.chunk_samples) % len(rows)]
    axis = layout.field.channel_axis
    table = layout.empty_table() if layout.codes else None
    if plan.quantiser is not None:
        _, table = plan.quantiser.encode(np.ascontiguousarray(chunk), axis)

    def encode() -> bytes:
        coded = chunk if plan.quantiser is None else plan.quantiser.encode(np.ascontiguousarray(chunk), axis)[0]
        return encode_chunk(layout, coded).data

    # More chunks than caches hold: copying an uncompressed one would else seem ten times faster than it is.
    copies = max(1, CACHE_NBYTES // chunk.nbytes)
    stored = [bytes(bytearray(encode())) for _ in range(copies)]
    out = np.empty((copies, *chunk.shape), layout.field.stored_dtype)

    def decode() -> None:
        for place, data in enumerate(stored):
            rows = decode_stored(layout, data)
            if table is not None:
                expand(rows, table, out[place], axis)
            elif layout.is_raw:
                np.copyto(out[place], rows)

    return _best_s(encode) / len(chunk), _best_s(decode) / len(chunk) / copies


def _best_s(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
