"""Check a dataset against its checksums: the result as one value, in words, and as JSON."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5cache.errors import H5CacheError, MissingDatasetError
from h5cache.format import hdf5
from h5cache.format.manifest import MANIFEST_NAME
from h5cache.format.open import open_dataset
from h5cache.format.storage import DatasetInfo
from h5cache.format.verify import Damage, iter_damage
from h5cache.terminal import (
    PIPE_WIDTH,
    PLAIN,
    Column,
    Style,
    format_count,
    format_duration,
    format_nbytes,
    format_table,
    printable,
    shorten,
)

__all__ = ["Verification", "format_verification", "plan_nbytes", "to_json", "verify_dataset"]

#: Rows of a list for people; --json has all.
SHOWN_ROWS = 20
KEY_WIDTH = 52


@dataclass(frozen=True)
class Verification:
    """What came of checking a dataset."""

    path: str
    #: None where the dataset does not open any more.
    num_samples: int | None
    is_foreign: bool
    checked_nbytes: int
    damaged: tuple[Damage, ...]
    #: Whole, but written anew by another program: without checksums.
    rewritten: tuple[Damage, ...]

    @property
    def status(self) -> str:
        """One of "good", "damaged", "changed" (whole, but not all has a checksum), "readable" (a foreign file)."""
        if self.damaged:
            return "damaged"
        if self.rewritten:
            return "changed"
        return "readable" if self.is_foreign else "good"

    @property
    def num_damaged_samples(self) -> int:
        return count_samples(self.damaged)


def verify_dataset(path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Verification:
    """Read every stored byte of a dataset, also of one that does not open any more. `progress` gets bytes read.

    FormatError or FileNotFoundError where there is no dataset to check: that is not damage.
    """
    name = os.path.abspath(os.fspath(path))
    _check_is_there(name)
    info = _open(name)
    checked = 0

    def count(nbytes: int) -> None:
        nonlocal checked
        checked += nbytes
        if progress is not None:
            progress(nbytes)

    found = tuple(iter_damage(name, count))
    return Verification(
        path=name,
        num_samples=None if info is None else info.num_samples,
        is_foreign=info is not None and info.is_foreign,
        checked_nbytes=checked,
        damaged=tuple(damage for damage in found if not damage.rewritten),
        rewritten=tuple(damage for damage in found if damage.rewritten),
    )


def plan_nbytes(path: str | os.PathLike[str]) -> int:
    """Return about how many bytes `verify_dataset` will read."""
    name = os.path.abspath(os.fspath(path))
    _check_is_there(name)
    info = _open(name)
    if info is not None and info.is_foreign:
        return sum(field.sample_nbytes for field in info.schema.values()) * info.num_samples
    if info is not None:
        return sum(storage.stored_nbytes for storage in info.storage.values())
    if not os.path.isdir(name):
        return os.path.getsize(name)
    with os.scandir(name) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())


def _check_is_there(path: str) -> None:
    manifest = os.path.join(path, MANIFEST_NAME)
    if not os.path.isdir(path):
        hdf5.check_is_hdf5(path)
    elif not os.path.exists(manifest):
        reason = f"the folder has no {MANIFEST_NAME}: it is no dataset, or its conversion is unfinished"
        raise MissingDatasetError(errno.ENOENT, reason, path)


def _open(path: str) -> DatasetInfo | None:
    try:
        return open_dataset(path)
    except H5CacheError:
        # Too damaged to open: the check itself says where.
        return None


def count_samples(found: Sequence[Damage]) -> int:
    """Return how many samples are touched; one damaged in two fields counts once."""
    touched = np.zeros(max((one.samples.stop for one in found), default=0), bool)
    for one in found:
        touched[one.samples.start : one.samples.stop] = True
    return int(np.count_nonzero(touched))


def to_json(verification: Verification) -> dict[str, Any]:
    """Return the result as JSON values. Keys are only ever added, never renamed."""
    return {
        "path": verification.path,
        "status": verification.status,
        "num_samples": verification.num_samples,
        "num_damaged_samples": verification.num_damaged_samples,
        "checked_nbytes": verification.checked_nbytes,
        "damaged": [_damage_json(damage) for damage in verification.damaged],
        "rewritten": [_damage_json(damage) for damage in verification.rewritten],
    }


def _damage_json(damage: Damage) -> dict[str, Any]:
    return {
        "path": damage.path,
        "field": damage.field,
        "chunk": damage.chunk,
        "start": damage.samples.start,
        "stop": damage.samples.stop,
        "keys": list(damage.keys),
        "reason": damage.reason,
    }


def format_verification(
    verification: Verification, style: Style = PLAIN, *, seconds: float | None = None, width: int = PIPE_WIDTH
) -> str:
    """Return lists of what is damaged and what was changed, with remedies; the verdict is the last line."""
    sections = [
        _section("Damaged", verification.damaged, verification, style.red, style, width),
        _section("Written anew by another program", verification.rewritten, verification, style.yellow, style, width),
        _verdict(verification, style, seconds),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(
    title: str,
    found: Sequence[Damage],
    verification: Verification,
    paint: Callable[[str], str],
    style: Style,
    width: int,
) -> str:
    if not found:
        return ""
    in_shards = any(damage.path != verification.path for damage in found)
    columns = [Column("sample", ">"), Column("key"), Column("field", paint=style.cyan), Column("chunk", ">")]
    columns += [*([Column("shard")] if in_shards else []), Column("what")]
    rows = [
        [
            _span(damage.samples),
            _keys(damage.keys),
            printable(damage.field or "-"),
            "-" if damage.chunk is None else str(damage.chunk),
            *([printable(os.path.basename(damage.path))] if in_shards else []),
            printable(" ".join(damage.reason.split())),
        ]
        for damage in found[:SHOWN_ROWS]
    ]
    lines = [paint(title), format_table(columns, rows, style, width=width)]
    if len(found) > SHOWN_ROWS:
        lines.append(style.dim(f"  and {len(found) - SHOWN_ROWS:,} more (--json lists all)"))
    return "\n".join(lines)


def _span(samples: range) -> str:
    if not len(samples):
        return "-"
    return f"{samples[0]}" if len(samples) == 1 else f"{samples[0]} to {samples[-1]}"


def _keys(keys: Sequence[str]) -> str:
    if not keys or not keys[0]:
        return "-"
    first = shorten(printable(keys[0]), KEY_WIDTH)
    return first if len(keys) == 1 else f"{first} and {len(keys) - 1:,} more"


def _verdict(verification: Verification, style: Style, seconds: float | None) -> str:
    total, name = verification.num_samples, printable(verification.path)
    took = "" if seconds is None else f" in {format_duration(seconds)}"
    checked = f"{format_nbytes(verification.checked_nbytes)} read{took}"
    if verification.status == "damaged":
        count = verification.num_damaged_samples
        whole = f"The other {format_count(total - count, 'sample')} can be read.\n" if total and count < total else ""
        return (
            f"{whole}Remedy: restore {_files(verification.damaged)} from a copy, or convert the source again "
            "(h5cache convert SRC OUT --overwrite).\n\n"
            f"{style.red('damaged')}: {_part(count, total)} of {name} ({checked})"
        )
    if verification.status == "changed":
        trusted = _part(count_samples(verification.rewritten), total)
        return (
            f"{style.yellow('changed')}: nothing is damaged in {name}, but {trusted} were written anew or moved "
            f"and cannot be checked in full ({checked})"
        )
    samples = format_count(total or 0, "sample")
    if verification.status == "readable":
        return f"{style.green('readable')}: all {samples} of {name}; a foreign file has no checksums ({checked})"
    return f"{style.green('good')}: all {samples} of {name} match their checksums ({checked})"


def _part(count: int, total: int | None) -> str:
    return format_count(count, "sample") if total is None else f"{count:,} of {format_count(total, 'sample')}"


def _files(found: Sequence[Damage]) -> str:
    names = list(dict.fromkeys(printable(os.path.basename(damage.path)) for damage in found))
    return names[0] if len(names) == 1 else f"{len(names)} files"
