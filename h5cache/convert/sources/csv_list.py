"""A list of pictures in a text file: one path, and perhaps one label, per line."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5cache.convert.pictures import PictureOptions

from .listing import PICTURE_SUFFIXES, FileList
from .picture_files import PictureFiles
from .source import MissingSourceError, Numbers, SourceError, digest

__all__ = ["LIST_SUFFIXES", "CsvList"]

LIST_SUFFIXES = (".csv", ".tsv", ".txt")

#: Names that tell a header from a first sample, in any case.
PATH_COLUMNS = ("path", "filepath", "file_path", "file", "filename", "file_name", "image", "image_path", "img")
LABEL_COLUMNS = ("label", "class", "target", "category", "class_name", "label_name", "y")


class CsvList(PictureFiles):
    """Field `image`, and `label` where the list has a second column. Samples keep the order of the list.

    Paths are relative to the list's folder; keys are the paths as written. Comma or semicolon, tab or (in .txt)
    white space separate the columns; names with separators are quoted. A first line of column names is recognised
    (`path,label` and the like), or said by `has_header`; columns are then found by name.
    Labels that are all whole numbers of 0 or more are taken as they are; any others are class names, numbered in
    sorted order. A file that is missing is a bad sample when it is read, not an error of the list.
    """

    kind = "list"

    def __init__(
        self,
        path: str | os.PathLike[str],
        pictures: PictureOptions | None = None,
        has_header: bool | None = None,
    ) -> None:
        name = os.path.abspath(path)
        columns = _read_columns(name, has_header)
        labels, classes = _number_labels(columns.labels)
        super().__init__(_stat_files(name, columns.paths), pictures, classes, labels)

    def fingerprint(self) -> Mapping[str, Any]:
        return {**super().fingerprint(), "classes": list(self._classes), "labels": digest(self._labels)}


@dataclass(frozen=True)
class _Columns:
    paths: Sequence[str]
    labels: Sequence[str] | None


def _read_columns(name: str, has_header: bool | None) -> _Columns:
    rows = _read_rows(name)
    if not rows:
        raise SourceError(f"{name}: the list is empty")
    head = [cell.strip().lower() for cell in rows[0][1]]
    if has_header is None:
        is_sample = any(cell.endswith(PICTURE_SUFFIXES) for cell in head)
        has_header = not is_sample and any(cell in PATH_COLUMNS + LABEL_COLUMNS for cell in head)
    path_at, label_at = 0, 1 if len(head) > 1 else None
    if has_header:
        path_at = next((head.index(cell) for cell in PATH_COLUMNS if cell in head), 0)
        named = next((head.index(cell) for cell in LABEL_COLUMNS if cell in head), None)
        label_at = named if named is not None else 1 if len(head) == 2 and path_at == 0 else None
        rows = rows[1:]
    elif len(head) > 2:
        raise SourceError(
            f"{name}: {len(head)} columns and no names above them; give path and label, or a first line of names"
        )
    if not rows:
        raise SourceError(f"{name}: the list has a header and no samples")
    for line, row in rows:
        if len(row) != len(head):
            raise SourceError(f"{name}, line {line}: {len(row)} columns where the first line has {len(head)}: {row}")
    paths = [row[path_at].strip() for _, row in rows]
    _check_paths(name, [line for line, _ in rows], paths)
    if label_at is None:
        return _Columns(paths, None)
    labels = [row[label_at].strip() for _, row in rows]
    if "" in labels:
        raise SourceError(f"{name}, line {rows[labels.index('')][0]}: the label is empty")
    return _Columns(paths, labels)


def _read_rows(name: str) -> list[tuple[int, list[str]]]:
    try:
        with open(name, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except FileNotFoundError as exc:
        raise MissingSourceError(errno.ENOENT, "there is no such list", name) from exc
    except IsADirectoryError as exc:
        raise SourceError(f"{name}: is a folder; a list of files was expected") from exc
    except UnicodeDecodeError as exc:
        raise SourceError(f"{name}: the list is not UTF-8 text ({exc.reason} at byte {exc.start})") from exc
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = _separator(name, first)
    if separator is None:
        # The last word is the label: paths with spaces stay whole.
        split = [(number, line.rsplit(None, 1)) for number, line in enumerate(text.splitlines(), 1)]
        return [(number, row) for number, row in split if row]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as exc:
        raise SourceError(f"{name}, line {reader.line_num}: {exc}") from exc


def _separator(name: str, first: str) -> str | None:
    if name.lower().endswith(".tsv") or "\t" in first:
        return "\t"
    if "," in first or not name.lower().endswith(".txt"):
        return ";" if ";" in first and "," not in first else ","
    return None


def _check_paths(name: str, lines: Sequence[int], paths: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for line, path in zip(lines, paths, strict=True):
        if not path or "\0" in path:
            raise SourceError(f"{name}, line {line}: the path is empty or holds a NUL character")
        if path in seen:
            raise SourceError(f"{name}: {path!r} is listed twice, in lines {seen[path]} and {line}")
        seen[path] = line


def _stat_files(name: str, paths: Sequence[str]) -> FileList:
    root = os.path.dirname(name)
    nbytes = np.zeros(len(paths), np.int64)
    mtimes_ns = np.zeros(len(paths), np.int64)
    for number, path in enumerate(paths):
        try:
            status = os.stat(os.path.join(root, path))
        except OSError:
            continue  # said when the sample is read
        nbytes[number], mtimes_ns[number] = status.st_size, status.st_mtime_ns
    return FileList(root, np.array([os.fsencode(path) for path in paths], np.bytes_), nbytes, mtimes_ns)


def _number_labels(labels: Sequence[str] | None) -> tuple[Numbers | None, tuple[str, ...]]:
    if labels is None:
        return None, ()
    if all(label.isascii() and label.isdigit() and len(label) < 19 for label in labels):
        return np.array([int(label) for label in labels], np.int64), ()
    classes = tuple(sorted(set(labels)))
    numbers = {label: number for number, label in enumerate(classes)}
    return np.array([numbers[label] for label in labels], np.int64), classes
