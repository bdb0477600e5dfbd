"""Problems of tensor files, one function each, with what they cost. Pure: from what was seen to findings.

Every wasted byte is counted once: what no tensor shows, then bits that no value needs, then zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.terminal import format_duration, format_nbytes
from h5cache.tools.narrow import CODES, dtype_nbytes, fits_codes, union_dtype
from h5cache.tools.tensor_files import ArrayLook, FileLook
from h5cache.tools.tensor_listing import TensorFiles

__all__ = ["FieldLooks", "Finding", "find_problems", "gather"]

#: Elements of a field that are kept to try exact 8-bit codes on.
POOL_NBYTES = 32_000_000
#: Waste below this part of the tensors is no problem worth a line.
WORTH_PART = 0.05
ZERO_PART = 0.3
#: From here on, and below this size on average, files are many and small.
MANY_FILES = 1000
SMALL_NBYTES = 1_000_000
SHOWN_EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """One problem: what it is, why, what it costs in all, how to end it."""

    #: storage, dtype, zeros, small-files, strides, shapes, objects, damaged
    kind: str
    title: str
    cause: str
    #: Of all files; projected where not all were opened. 0: it costs something else than bytes.
    waste_nbytes: int
    waste: str
    cure: str
    #: Of the files opened.
    num_files: int
    examples: tuple[str, ...]


@dataclass
class FieldLooks:
    """One array of every file, gathered over the files opened."""

    looks: list[ArrayLook] = field(default_factory=list)
    rows: list[npt.NDArray[Any]] = field(default_factory=list)
    pooled_nbytes: int = 0

    @property
    def nbytes(self) -> int:
        return sum(look.nbytes for look in self.looks)

    @property
    def is_packed(self) -> bool:
        return any(look.packed_nbytes is not None for look in self.looks)

    @cached_property
    def narrowest(self) -> str:
        """The smallest dtype that holds all values exactly, or CODES; once all files are gathered."""
        dtypes = {look.dtype for look in self.looks}
        narrow = self.looks[0].narrowest
        if len(dtypes) > 1 or not narrow or "bfloat16" in dtypes:
            return self.looks[0].dtype
        for look in self.looks[1:]:
            narrow = union_dtype(narrow, look.narrowest)
        return CODES if dtype_nbytes(narrow) > 1 and fits_codes(self.rows) else narrow


def gather(
    fields: dict[str, FieldLooks], look: FileLook, values: Mapping[str, npt.NDArray[Any]], is_rows: bool
) -> None:
    """Add one file's arrays to those seen before. `is_rows`: each row of an array is a sample."""
    for array in look.arrays:
        gathered = fields.setdefault(array.name, FieldLooks())
        gathered.looks.append(array)
        rows = values.get(array.name)
        if rows is None or rows.dtype.kind != "f":
            continue
        for row in list(rows) if is_rows and rows.ndim else [rows]:
            if gathered.pooled_nbytes + row.nbytes > POOL_NBYTES and gathered.rows:
                break
            if not gathered.rows or (row.shape, row.dtype) == (gathered.rows[0].shape, gathered.rows[0].dtype):
                gathered.rows.append(np.array(row))
                gathered.pooled_nbytes += row.nbytes


def find_problems(fields: Mapping[str, FieldLooks], looks: Sequence[FileLook], files: TensorFiles) -> list[Finding]:
    """Return all problems, the most expensive first; costs are projected from the files opened to all."""
    opened_nbytes = sum(look.nbytes for look in looks)
    scale = files.total_nbytes / opened_nbytes if opened_nbytes else 1.0
    found = [
        *_storage(looks, scale),
        *_dtypes(fields, scale),
        *_zeros(fields, scale),
        *_small_files(files, looks, scale),
        *_unreadable(looks),
        *_strides(fields, looks),
        *_shapes(fields, files),
    ]
    found.sort(key=lambda one: (-one.waste_nbytes, one.kind != "damaged", one.kind != "objects"))
    return found


def _storage(looks: Sequence[FileLook], scale: float) -> Iterator[Finding]:
    bad = [look for look in looks if look.wasted_nbytes > 0.01 * look.nbytes and look.wasted_nbytes > 4096]
    if not bad:
        return
    wasted, whole = sum(look.wasted_nbytes for look in bad), sum(look.nbytes for look in bad)
    shown = sum(look.array_nbytes for look in bad)
    yield Finding(
        "storage",
        "slices saved without clone()",
        "torch.save(batch[i]) writes the whole storage that batch[i] is a view of, not only its own elements: "
        f"files of {format_nbytes(whole / len(bad))} hold tensors of {format_nbytes(shown / len(bad))}",
        round(scale * wasted),
        f"{100 * wasted / whole:.1f} % of these files is data that no tensor in them shows",
        "torch.save(batch[i].clone(), path); h5cache stores exactly the elements of a view, whatever its storage",
        len(bad),
        _examples(bad),
    )


def _dtypes(fields: Mapping[str, FieldLooks], scale: float) -> Iterator[Finding]:
    total = sum(one.nbytes for one in fields.values())
    by_kind: dict[tuple[str, str], list[tuple[str, FieldLooks]]] = {}
    for name, one in fields.items():
        own, narrow = one.looks[0].dtype, one.narrowest
        if one.nbytes and _itemsize(narrow) < _itemsize(own) and not one.is_packed:
            by_kind.setdefault((own, narrow), []).append((name, one))
    for (own, narrow), members in by_kind.items():
        saved = sum(one.nbytes * (1 - dtype_nbytes(narrow) / _itemsize(own)) for _, one in members)
        if saved < WORTH_PART * total:
            continue
        which = _field_words([name for name, _ in members])
        if narrow == CODES:
            title = f"{own} where 8 bits hold every value exactly"
            cause = (
                f"{which} has at most 256 different values per channel, as a normalised 8-bit picture has, "
                f"but spends {8 * _itemsize(own)} bits on each"
            )
            cure = (
                "keep uint8 and normalise on the fly; or do nothing: h5cache stores 8-bit codes and a table "
                f"of the {own} values, which come back bit for bit"
            )
        else:
            title = f"{own} where {narrow} holds every value exactly"
            cause = f"no value of {which} needs more than {8 * dtype_nbytes(narrow)} bits"
            cure = f"x.to(torch.{narrow}) before saving; h5cache keeps {own} and compresses the idle bits away"
        yield Finding(
            "dtype",
            title,
            cause,
            round(scale * saved),
            f"{100 * (1 - dtype_nbytes(narrow) / _itemsize(own)):.0f} % of the bytes of {which} say nothing",
            cure,
            max(len(one.looks) for _, one in members),
            (),
        )


def _zeros(fields: Mapping[str, FieldLooks], scale: float) -> Iterator[Finding]:
    total = sum(one.nbytes for one in fields.values())
    wasted, elements, names, num_files = 0.0, 0.0, [], 0
    for name, one in fields.items():
        itemsize = _itemsize(one.looks[0].dtype)
        zeros = sum(look.zero_part * look.nbytes for look in one.looks) / itemsize
        if not one.nbytes or zeros * itemsize < ZERO_PART * one.nbytes or one.is_packed:
            continue
        # Only what is left of them once needless bits are gone: those were counted with the dtype.
        wasted += zeros * _itemsize(one.narrowest)
        elements += one.nbytes / itemsize
        names.append((name, zeros * itemsize / one.nbytes))
        num_files = max(num_files, len(one.looks))
    if wasted < WORTH_PART * total:
        return
    which = _field_words([name for name, _ in names])
    parts = ", ".join(f"{100 * part:.0f} %" for _, part in names)
    yield Finding(
        "zeros",
        "zeros stored one by one",
        f"{parts} of the elements of {which} are zero, and neither torch.save nor np.save compresses",
        round(scale * wasted),
        "a compressor stores runs of zeros in next to nothing",
        "compress them: h5cache does, sample by sample, and decodes in threads",
        num_files,
        (),
    )


def _small_files(files: TensorFiles, looks: Sequence[FileLook], scale: float) -> Iterator[Finding]:
    count = len(files.names)
    good = [look for look in looks if look.arrays]
    held = sum(look.array_nbytes for look in good) / len(good) if good else files.total_nbytes / count
    if count < MANY_FILES or held > SMALL_NBYTES:
        return
    overhead = sum(max(0, look.nbytes - look.array_nbytes - look.wasted_nbytes) for look in good) * scale
    slack = int(np.maximum(0, files.disk_nbytes - files.nbytes).sum())
    load_s = float(np.median([look.load_s for look in looks]))
    yield Finding(
        "small-files",
        f"{count:,} small files",
        f"one file per sample of {format_nbytes(held)}: every epoch opens each of them, in random order",
        round(overhead + slack),
        "headers and half-filled disk blocks; and time: "
        f"{format_duration(load_s)} to open and load one, measured here: {format_duration(load_s * count)} an epoch",
        "one file for all samples; h5cache writes one .h5, or a folder of a few shards",
        len(looks),
        (),
    )


def _unreadable(looks: Sequence[FileLook]) -> Iterator[Finding]:
    objects = [look for look in looks if look.trouble == "objects"]
    if objects:
        names = ", ".join(name for name, _ in Counter(look.reason for look in objects).most_common(3))
        is_numpy = any("numpy" in look.reason for look in objects)
        yield Finding(
            "objects",
            "pickled Python objects",
            f"beside or instead of tensors they hold {names}, which torch.load refuses with weights_only=True, "
            "because unpickling an object runs code",
            0,
            "no bytes, but whoever loads them with weights_only=False runs whatever the file says",
            ("torch.from_numpy(array) before saving" if is_numpy else "save tensors, numbers, tuples, lists and dicts")
            + "; load files of your own once more with weights_only=False and save them so",
            len(objects),
            _examples(objects),
        )
    damaged = [look for look in looks if look.trouble == "damaged"]
    flipped = [look for look in looks if look.trouble == "checksum"]
    # All of them wrong: torch.save was told to compute none (set_crc32_options).
    damaged += flipped if len(flipped) * 2 < len(looks) or len(looks) == 1 else []
    if damaged:
        silent = ", and torch.load reads some of them without noticing" if flipped else ""
        yield Finding(
            "damaged",
            "damaged files",
            f"{damaged[0].reason}{silent}",
            0,
            "these samples are lost, or wrong",
            "make them again from their source; h5cache convert lists all it cannot read, and keeps a checksum of "
            "every sample",
            len(damaged),
            _examples(damaged),
        )


def _strides(fields: Mapping[str, FieldLooks], looks: Sequence[FileLook]) -> Iterator[Finding]:
    kinds = Counter(array.layout for one in fields.values() for array in one.looks if len(array.shape) > 1)
    odd = [look for look in looks if any(a.layout != "contiguous" and len(a.shape) > 1 for a in look.arrays)]
    if not odd:
        return
    names = [name for name, one in fields.items() if any(array.layout != "contiguous" for array in one.looks)]
    formats = " and ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common())
    mixed = len(kinds) > 1 and any(len({array.layout for array in one.looks}) > 1 for one in fields.values())
    yield Finding(
        "strides",
        "mixed memory formats" if mixed else "tensors that are not contiguous",
        f"permute(), transpose() or a slice before saving: torch.save keeps the strides of {_field_words(names)}, "
        f"here {formats}",
        0,
        "no bytes, but time: batches are rearranged element by element, or layers run in a slow memory format",
        "x.contiguous() before saving; batches of h5cache are contiguous, or channels_last where asked for",
        len(odd),
        _examples(odd),
    )


def _shapes(fields: Mapping[str, FieldLooks], files: TensorFiles) -> Iterator[Finding]:
    for name, one in fields.items():
        kinds = Counter((look.dtype, look.shape) for look in one.looks)
        if len(kinds) < 2 or not files.names[0]:
            continue
        shown = ", ".join(f"{dtype} {_shape(shape)} ({count})" for (dtype, shape), count in kinds.most_common(3))
        yield Finding(
            "shapes",
            "samples of different shapes or dtypes",
            f"{_field_words([name])} is {shown}" + (" and others" if len(kinds) > 3 else ""),
            0,
            "no bytes, but they cannot be stacked to a batch as they are",
            "crop, pad or cast them alike: h5cache convert ... --transform your_module:your_function",
            len(one.looks) - kinds.most_common(1)[0][1],
            (),
        )


def _itemsize(dtype: str) -> int:
    try:
        return dtype_nbytes(dtype)
    except TypeError:  # torch has dtypes that numpy lacks
        return 1


def _field_words(names: Sequence[str]) -> str:
    shown = [f"entry {name}" if name.isdecimal() else f"'{name}'" if name else "the tensor" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "number"


def _examples(looks: Sequence[FileLook]) -> tuple[str, ...]:
    return tuple(look.path for look in looks[:SHOWN_EXAMPLES])
