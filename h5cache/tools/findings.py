"""What is wrong with a dataset, judged from values that were collected before. Pure: reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.terminal import format_count, format_nbytes, format_ratio
from h5cache.tools.duplicates import Duplicates
from h5cache.tools.inspect import ClassFacts, Inspection
from h5cache.tools.mixing import ShuffleSurvey, window_nbytes
from h5cache.tools.survey import FieldValues

__all__ = ["CHECKED", "Finding", "find_problems"]

#: A class with so many times the samples of another is worth a word.
IMBALANCE = 10
#: Label entropy of batches, relative to a true shuffle, below which training may suffer.
ENOUGH_ENTROPY = 0.9
#: Keys that are compared with each other: sorting more takes gigabytes.
MOST_KEYS = 2_000_000
#: Samples that a finding shows or names.
NAMED = 8

#: What is looked for, told where nothing was found.
CHECKED = (
    "class balance and labels without a name",
    "duplicates",
    "blank samples",
    "NaN and infinity",
    "damaged samples",
    "samples skipped at conversion",
    "chunks that libhdf5 must read",
    "shuffle quality",
    "keys",
)


@dataclass(frozen=True)
class Finding:
    """One thing a person should know. `level` is "bad" (wrong data), "warn" (look at it) or "note"."""

    level: str
    title: str
    detail: str
    #: Samples to look at, by number.
    samples: tuple[int, ...] = ()


def find_problems(
    inspection: Inspection,
    values: Sequence[FieldValues],
    duplicates: Duplicates | None,
    shuffle: ShuffleSurvey | None,
    labels: npt.NDArray[Any] | None,
    keys: npt.NDArray[Any] | None,
) -> tuple[Finding, ...]:
    """Return what was found, worst first. `labels` and `keys` are of all samples."""
    found = [
        *_damaged(values),
        *_not_finite(values),
        *_labels(inspection, labels),
        *_blank(values),
        *(_duplicates(duplicates, labels) if duplicates is not None else ()),
        *_classes(inspection.classes),
        *_skipped(inspection),
        *_through_hdf5(inspection),
        *(_shuffle(shuffle) if shuffle is not None else ()),
        *_keys(inspection, keys),
    ]
    return tuple(sorted(found, key=lambda one: ("bad", "warn", "note").index(one.level)))


def _damaged(values: Sequence[FieldValues]) -> list[Finding]:
    return [
        Finding(
            "bad",
            f"{format_count(len(field.damaged), 'sample')} of {field.name} damaged",
            f"Stored bytes have changed since they were written: {field.damaged[0][1]}. "
            "`h5cache verify` names every damaged sample.",
        )
        for field in values
        if field.damaged
    ]


def _not_finite(values: Sequence[FieldValues]) -> list[Finding]:
    found = []
    for field in values:
        if field.not_finite:
            what = " and ".join(
                words
                for words in (
                    f"{field.num_nan:,} NaN" if field.num_nan else "",
                    f"{field.num_inf:,} infinite values" if field.num_inf else "",
                )
                if words
            )
            count = format_count(len(field.not_finite), "sample")
            found.append(
                Finding(
                    "bad",
                    f"{field.name} has values that are not finite",
                    f"{what or 'NaN or infinity'} in {count} of {field.num_looked_at:,} looked at: one such batch "
                    "makes the loss NaN. Look at the preprocessing (division by a zero deviation, log of zero).",
                    field.not_finite[:NAMED] if field.is_picture else (),
                )
            )
    return found


def _labels(inspection: Inspection, labels: npt.NDArray[Any] | None) -> list[Finding]:
    named = [one for one in inspection.classes if one.name]
    if labels is None or not named:
        return []
    outside = np.flatnonzero((labels < 0) | (labels >= len(named)))
    if not len(outside):
        return []
    worst = sorted({int(one) for one in labels[outside]})
    shown = ", ".join(map(str, worst[:5])) + (", ..." if len(worst) > 5 else "")
    return [
        Finding(
            "bad",
            f"{format_count(len(outside), 'label')} out of range",
            f"There are {format_count(len(named), 'class', 'classes')} (labels 0 to {len(named) - 1}); found "
            f"{shown}. Cross-entropy fails on them.",
            tuple(outside[:NAMED].tolist()),
        )
    ]


def _blank(values: Sequence[FieldValues]) -> list[Finding]:
    found = []
    for field in values:
        for samples, what in ((field.zeros, "all zero"), (field.constant, "of a single value")):
            if samples:
                count = format_count(len(samples), "sample")
                found.append(
                    Finding(
                        "warn",
                        f"{count} of {field.name} {'is' if len(samples) == 1 else 'are'} {what}",
                        "A blank picture teaches nothing; it is often a file that failed to load."
                        if field.is_picture
                        else "Samples without any variation are often failures of the preprocessing.",
                        samples[:NAMED] if field.is_picture else (),
                    )
                )
    return found


def _duplicates(duplicates: Duplicates, labels: npt.NDArray[Any] | None) -> list[Finding]:
    if not duplicates.groups:
        return []
    surplus = format_count(duplicates.num_surplus, "sample")
    words = "is a copy of another" if duplicates.num_surplus == 1 else "are copies of others"
    groups = format_count(len(duplicates.groups), "group")
    torn = [group for group in duplicates.groups if labels is not None and len(np.unique(labels[list(group)])) > 1]
    detail = (
        f"{groups} of samples whose {duplicates.field} is the same byte for byte (of {duplicates.num_looked_at:,} "
        "compared). If a split puts one copy into training and one into validation, the score is too good."
    )
    found = []
    if torn:
        count = len(torn)
        found.append(
            Finding(
                "bad",
                f"The same {duplicates.field} under different labels, {count:,} times"
                if count > 1
                else f"The same {duplicates.field} under two labels",
                "At least one of the labels is wrong.",
                _first_of(torn),
            )
        )
    found.append(Finding("warn", f"{surplus} {words}", detail, _first_of(duplicates.groups)))
    return found


def _first_of(groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return pairs of the first groups: two copies side by side show it best."""
    return tuple(sample for group in groups[: NAMED // 2] for sample in group[:2])


def _classes(classes: Sequence[ClassFacts]) -> list[Finding]:
    found = []
    named = [one for one in classes if one.name] or classes  # labels out of range are told of already
    empty = [one for one in named if one.count == 0]
    counts = sorted((one for one in named if one.count), key=lambda one: one.count)
    if not counts:
        return []
    if empty:
        names = ", ".join(one.name for one in empty[:5])
        more = f" and {len(empty) - 5:,} more" if len(empty) > 5 else ""
        found.append(
            Finding(
                "warn",
                f"{format_count(len(empty), 'class', 'classes')} without a sample",
                f"Nothing of {names}{more}.",
            )
        )
    least, most = counts[0], counts[-1]
    if most.count >= IMBALANCE * least.count:
        found.append(
            Finding(
                "warn",
                f"Unbalanced: the largest class has {format_ratio(most.count / least.count)} the samples of the least",
                f"{_name(most)} has {most.count:,}, {_name(least)} {least.count:,}. Weigh the loss by class, or draw "
                "rare classes more often.",
            )
        )
    return found


def _name(one: ClassFacts) -> str:
    return one.name or f"label {one.label}"


def _skipped(inspection: Inspection) -> list[Finding]:
    skipped = inspection.provenance.get("skipped")
    if not isinstance(skipped, list | tuple | dict) or not skipped:
        return []
    entries = list(skipped.items()) if isinstance(skipped, dict) else list(skipped)
    named = "; ".join(": ".join(map(str, one)) if isinstance(one, list | tuple) else str(one) for one in entries[:3])
    more = f"; and {len(entries) - 3:,} more" if len(entries) > 3 else ""
    count = format_count(len(entries), "sample")
    return [Finding("warn", f"{count} of the source skipped", f"They could not be read: {named}{more}.")]


def _through_hdf5(inspection: Inspection) -> list[Finding]:
    if inspection.is_foreign:
        smaller = (
            f", and make about {format_nbytes(inspection.converted_nbytes)} of {format_nbytes(inspection.disk_nbytes)}"
            if inspection.conversion and inspection.converted_nbytes < inspection.disk_nbytes
            else ""
        )
        return [
            Finding(
                "note",
                "Not written by h5cache",
                "It is read through libhdf5: right, but slower (one thread at a time, a whole chunk for each sample), "
                f"and without checksums, keys or class names. `h5cache convert` would end that{smaller}.",
            )
        ]
    return [
        Finding(
            "warn",
            f"{field.name}: {field.num_chunks_through_hdf5:,} of {field.num_chunks:,} chunks are read through libhdf5",
            f"Another program changed the file: {field.changed}. Reading is right, but slower; `h5cache convert` of "
            "the dataset makes it fast again.",
        )
        for field in inspection.fields
        if field.num_chunks_through_hdf5
    ]


def _shuffle(shuffle: ShuffleSurvey) -> list[Finding]:
    share = shuffle.default.label_ratio
    if share is None or share >= ENOUGH_ENTROPY:
        return []
    memory = format_nbytes(window_nbytes(shuffle, shuffle.default_window))
    return [
        Finding(
            "warn",
            'The window of shuffle="chunk" is too small for this dataset',
            f"Samples lie sorted by label: batches of {shuffle.batch_size} have {share:.0%} of the label entropy of a "
            f'true shuffle with the default window ({memory}). Use shuffle="full", give a larger window_nbytes, or '
            "convert again without --no-shuffle.",
        )
    ]


def _keys(inspection: Inspection, keys: npt.NDArray[Any] | None) -> list[Finding]:
    if inspection.is_foreign or keys is None or not len(keys):
        return []
    missing = int(np.count_nonzero(keys == ""))
    if missing == len(keys):
        return [
            Finding(
                "note",
                "Samples have no keys",
                "Nothing says where a sample came from, so a bad one cannot be traced; Writer.append(key=...) gives "
                "them.",
            )
        ]
    found = []
    if missing:
        found.append(Finding("warn", f"{format_count(missing, 'sample')} without a key", "The others have one."))
    if len(keys) > MOST_KEYS:
        return found
    named, counts = np.unique(keys[keys != ""], return_counts=True)
    if (counts > 1).any():
        twice = named[counts > 1]
        found.append(
            Finding(
                "warn",
                f"{format_count(len(twice), 'key')} given more than once",
                f"For instance {twice[0]}: the same source was converted twice, or keys are not full paths.",
            )
        )
    return found
