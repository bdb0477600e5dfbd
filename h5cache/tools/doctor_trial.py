"""What h5cache makes of samples, measured: write some to a temporary dataset, read them back, compare, project."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5cache.convert.decide import sample_schema_of
from h5cache.convert.sources import BadSampleError, Source
from h5cache.convert.sources.arrays import as_numpy
from h5cache.errors import SchemaError
from h5cache.format.writer import Writer
from h5cache.load.dataset import H5TensorDataset
from h5cache.tools.inspect import PT_FILE_NBYTES, PT_TENSOR_NBYTES, inspect_dataset

__all__ = ["TRIAL_NBYTES", "TRIAL_SAMPLES", "FieldTrial", "Trial", "try_samples", "try_source"]

#: A trial ends with whichever comes first: enough to choose a codec and see its ratio, a second or two of work.
TRIAL_SAMPLES = 128
TRIAL_NBYTES = 64_000_000
#: Of the files themselves: slices saved without clone() are hundreds of times larger than what they show.
TRIAL_FILE_NBYTES = 500_000_000
MIN_SAMPLES = 4
#: Index, table and checksum of a sample: FORMAT.md.
INDEX_NBYTES = 100


@dataclass(frozen=True)
class FieldTrial:
    """How one field was stored."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: Floats stored as 8-bit codes.
    exact_codes: bool
    codec: str
    ratio: float


@dataclass(frozen=True)
class Trial:
    """Samples written to a temporary dataset, read back and compared; sizes are projected to all samples."""

    num_samples: int
    num_tried: int
    num_bad: int
    raw_nbytes: int
    #: The same tensors, properly cloned, in files as there are now.
    pt_nbytes: int
    h5cache_nbytes: int
    #: Whether every sample tried came back bit for bit.
    is_exact: bool
    fields: tuple[FieldTrial, ...]


def try_source(source: Source, is_folder: bool) -> tuple[Trial | None, list[str]]:
    """Try samples spread over a source; return the trial, None where no sample is good, and why samples are bad."""
    spread = np.unique(np.linspace(0, len(source) - 1, min(TRIAL_SAMPLES, len(source))).astype(np.int64))
    samples: list[dict[str, Any]] = []
    bad: list[str] = []
    taken, file_nbytes = 0, 0
    sizes = source.files.nbytes
    # Spread over the whole even where the budget ends early: every so many first, the rest later.
    for number in sorted(spread.tolist(), key=lambda number: (number * 0.6180339887) % 1):
        if len(samples) >= MIN_SAMPLES and (taken > TRIAL_NBYTES or file_nbytes > TRIAL_FILE_NBYTES):
            break
        file_nbytes += 0 if sizes is None else int(sizes[number])
        try:
            values = dict(source.load(int(number)))
        except BadSampleError as exc:
            bad.append(str(exc))
            continue
        samples.append(values)
        taken += sum(_nbytes(value) for value in values.values())
    trial = try_samples(samples, len(source), bad, num_files=len(source) if is_folder else 1)
    return trial, bad


def try_samples(samples: Sequence[Mapping[str, Any]], num_samples: int, bad: list[str], num_files: int) -> Trial | None:
    """Write samples with `Writer`, read them back, compare, and project. Reasons of bad ones are added to `bad`."""
    if not samples:
        return None
    try:
        schema = sample_schema_of(samples[0])
    except SchemaError as exc:
        bad.append(str(exc))
        return None
    written = []
    with tempfile.TemporaryDirectory(prefix="h5cache-doctor-") as folder:
        path = os.path.join(folder, "trial.h5")
        with Writer(path, schema) as writer:
            for values in samples:
                try:
                    writer.append(**values)
                    written.append(values)
                except SchemaError as exc:
                    bad.append(str(exc))
        facts = inspect_dataset(path, num_rows=0)
        is_exact = _is_exact(path, written)
    stored = sum(one.stored_nbytes for one in facts.fields) / len(written)
    raw = facts.raw_nbytes / len(written)
    headers = num_files * (PT_FILE_NBYTES + len(facts.fields) * PT_TENSOR_NBYTES)
    return Trial(
        num_samples,
        len(written),
        len(bad),
        round(num_samples * raw),
        round(num_samples * raw) + headers,
        round(num_samples * (stored + INDEX_NBYTES)),
        is_exact,
        tuple(
            FieldTrial(one.name, one.dtype, one.shape, one.exact_codes, one.codec_words, one.ratio)
            for one in facts.fields
        ),
    )


def _is_exact(path: str, written: Sequence[Mapping[str, Any]]) -> bool:
    dataset = H5TensorDataset(path, as_dict=True)
    for number, values in enumerate(written):
        for name, tensor in dataset[number].items():
            # Pictures come out as (C, H, W), whatever way they are stored.
            own = tensor.permute(1, 2, 0) if dataset.schema[name].layout == "HWC" else tensor
            if as_numpy(own).tobytes() != _stored(values[name], dataset.schema[name].stored_dtype).tobytes():
                return False
    return True


def _stored(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return as_numpy(value) if hasattr(value, "dtype") else np.asarray(value, dtype)


def _nbytes(value: Any) -> int:
    return int(np.prod(value.shape, dtype=np.int64)) * value.dtype.itemsize if hasattr(value, "dtype") else 8
