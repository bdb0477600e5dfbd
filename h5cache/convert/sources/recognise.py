"""Find out what is to be converted, from a path or an object, or say clearly why it cannot be."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from h5cache.convert.pictures import PictureOptions
from h5cache.format.manifest import MANIFEST_NAME

from .arrays import ArrayFile, Arrays
from .class_folders import ClassFolders
from .csv_list import LIST_SUFFIXES, CsvList
from .flat_folder import FlatFolder
from .h5_dataset import H5Dataset
from .iterable import IterableSource
from .listing import PICTURE_SUFFIXES
from .pt_files import PT_SUFFIXES, SAMPLE_SUFFIXES, PtFile, PtFiles
from .source import MissingSourceError, Source, SourceError, check_samples
from .torch_dataset import MapDataset

__all__ = ["SOURCES", "SourceKind", "SourceOptions", "choose_kind", "make_source"]

AnySource: TypeAlias = "Source | IterableSource"


@dataclass(frozen=True)
class SourceOptions:
    """All that sources may be told; each takes what concerns it."""

    pictures: PictureOptions | None = None
    fields: Sequence[str] | None = None
    batched: bool | None = None
    batch_size: int = 256
    has_header: bool | None = None


@dataclass(frozen=True)
class SourceKind:
    """One row of the table: what `--source` calls it, what it is, and how it is made."""

    text: str
    make: Callable[[Any, SourceOptions], AnySource]
    #: Whether SRC is a path or an object; arrays may be either.
    takes_path: bool = True
    takes_object: bool = False
    #: Picture files: picture options decide over their samples; `fields=` does not, they are always `image`, `label`.
    holds_pictures: bool = False


SOURCES: dict[str, SourceKind] = {
    "class-folders": SourceKind(
        "pictures in class folders: SRC/class/file.jpg",
        lambda src, o: ClassFolders(src, o.pictures),
        holds_pictures=True,
    ),
    "folder": SourceKind(
        "pictures directly in a folder, without labels",
        lambda src, o: FlatFolder(src, o.pictures),
        holds_pictures=True,
    ),
    "list": SourceKind(
        "a CSV, TSV or text list of picture paths and labels",
        lambda src, o: CsvList(src, o.pictures, o.has_header),
        holds_pictures=True,
    ),
    "arrays": SourceKind(
        "a .npy or .npz file, or arrays in memory, with one row per sample",
        lambda src, o: ArrayFile(src, o.fields) if _is_path(src) else Arrays(src, o.fields),
        takes_object=True,
    ),
    "pt-files": SourceKind(
        "a folder (of class folders) of .pt or .npy files with one sample each", lambda src, o: PtFiles(src, o.fields)
    ),
    "pt-file": SourceKind("one .pt file of tensors with one row per sample", lambda src, o: PtFile(src, o.fields)),
    "dataset": SourceKind(
        "a torch map-style Dataset, or any sequence of samples",
        lambda src, o: MapDataset(src, o.fields),
        takes_path=False,
        takes_object=True,
    ),
    "iterable": SourceKind(
        "any iterable of samples or of ready batches",
        lambda src, o: IterableSource(src, o.fields, o.batched, o.batch_size),
        takes_path=False,
        takes_object=True,
    ),
    "h5cache": SourceKind("an h5cache dataset, or another HDF5 file", lambda src, o: H5Dataset(src, o.fields)),
}


def make_source(
    src: Any,
    kind: str | None = None,
    *,
    pictures: PictureOptions | None = None,
    fields: Sequence[str] | None = None,
    batched: bool | None = None,
    batch_size: int = 256,
    has_header: bool | None = None,
    indices: Sequence[int] | np.ndarray[Any, Any] | None = None,
) -> AnySource:
    """Return the source that `src` is, of the kind named or else recognised.

    Args:
        src: a path, or an object: a Dataset, a sequence, arrays, an iterable.
        kind: a name in `SOURCES`; None: recognised.
        pictures: how picture files become samples.
        fields: names of the fields; for dicts, datasets and `.npz`, which of theirs.
        batched, batch_size: for iterables, see `IterableSource`.
        has_header: for lists, whether the first line names the columns.
        indices: take only these samples, in this order.
    """
    kind = choose_kind(src, kind, batched)
    row = SOURCES[kind]
    if fields is not None and row.holds_pictures:
        raise SourceError(f"fields= does not apply to source {kind!r}: its fields are image and label")
    source = row.make(src, SourceOptions(pictures, fields, batched, batch_size, has_header))
    if indices is None:
        return source
    if isinstance(source, IterableSource):
        raise SourceError("samples of an iterable cannot be chosen by number")
    return source.take(check_samples(np.asarray(indices), len(source)))


def choose_kind(src: Any, kind: str | None, batched: bool | None = None) -> str:
    """Return the kind named, if `src` can be one, or else the kind recognised; SourceError where there is none."""
    if kind is None:
        kind = recognise(src, batched)
    if kind not in SOURCES:
        raise SourceError(f"there is no source {kind!r}; use one of {', '.join(SOURCES)}")
    row = SOURCES[kind]
    if not (row.takes_path if _is_path(src) else row.takes_object):
        got = f"the path {os.fspath(src)!r}" if _is_path(src) else f"an object, {type(src).__name__}"
        raise SourceError(f"source {kind!r} is {row.text}; got {got}")
    return kind


def recognise(src: Any, batched: bool | None = None) -> str:
    """Return the kind of a path or object; SourceError says why it has none."""
    if _is_path(src):
        path = os.fspath(src)
        if not os.path.exists(path):
            raise MissingSourceError(errno.ENOENT, "there is no such file or folder", path)
        return _recognise_folder(path) if os.path.isdir(path) else _recognise_file(path)
    if batched or _is_loader(src):
        return "iterable"
    if _is_array(src) or _is_columns(src):
        return "arrays"
    if hasattr(src, "__len__") and hasattr(src, "__getitem__") and not isinstance(src, Mapping | set | frozenset):
        return "dataset"
    if isinstance(src, Iterable) and not isinstance(src, Mapping):
        return "iterable"
    raise SourceError(f"cannot convert a {type(src).__name__}: give a path, a Dataset, arrays or an iterable")


def _recognise_file(path: str) -> str:
    name = path.lower()
    endings = {("arrays"): (".npy", ".npz"), "pt-file": PT_SUFFIXES, "list": LIST_SUFFIXES, "h5cache": (".h5", ".hdf5")}
    for kind, suffixes in endings.items():
        if name.endswith(suffixes):
            return kind
    if name.endswith(PICTURE_SUFFIXES):
        raise SourceError(f"{path}: is one picture; give the folder that holds the pictures")
    known = ", ".join(suffix for suffixes in endings.values() for suffix in suffixes)
    raise SourceError(f"{path}: a folder was expected, or a file that ends in {known}")


def _recognise_folder(path: str) -> str:
    if os.path.exists(os.path.join(path, MANIFEST_NAME)):
        return "h5cache"
    in_root, in_folders = _kinds_in(path)
    found = {f"{what} in {where}" for where, kinds in (("it", in_root), ("its folders", in_folders)) for what in kinds}
    if len(found) > 1:
        raise SourceError(
            f"{path}: holds {' and '.join(sorted(found))}; say which to convert by --source (kind=): "
            "class-folders, folder or pt-files"
        )
    if "pictures" in in_folders:
        return "class-folders"
    if "pictures" in in_root:
        return "folder"
    if found:
        return "pt-files"
    if not os.listdir(path):
        raise SourceError(f"{path}: the folder is empty")
    endings = ", ".join(suffix[1:] for suffix in (*PICTURE_SUFFIXES, *SAMPLE_SUFFIXES))
    raise SourceError(f"{path}: no pictures or tensors in the folder or the folders in it ({endings})")


def _kinds_in(path: str) -> tuple[set[str], set[str]]:
    """What lies directly in a folder, and what in its folders: one telling file of each kind is enough."""
    in_root: set[str] = set()
    in_folders: set[str] = set()
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                in_root |= _kind_of_name(entry.name)
            elif len(in_folders) < 2:
                in_folders |= _first_kind_below(entry.path)
    return in_root, in_folders


def _first_kind_below(folder: str) -> set[str]:
    """The kind of the first telling file: folders of a million files are not listed twice."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            kind = set() if name.startswith(".") else _kind_of_name(name)
            if kind:
                return kind
    return set()


def _kind_of_name(name: str) -> set[str]:
    lower = name.lower()
    if lower.endswith(PICTURE_SUFFIXES):
        return {"pictures"}
    return {"tensor files"} if lower.endswith(SAMPLE_SUFFIXES) else set()


def _is_path(src: Any) -> bool:
    return isinstance(src, str | os.PathLike)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and len(value.shape) > 0


def _is_columns(src: Any) -> bool:
    """A dict or tuple of arrays of equal length. A list of arrays is a sequence of samples."""
    if not isinstance(src, Mapping | tuple) or not src:
        return False
    columns = list(src.values()) if isinstance(src, Mapping) else list(src)
    return all(_is_array(column) for column in columns) and len({len(column) for column in columns}) == 1


def _is_loader(src: Any) -> bool:
    """A torch DataLoader has a length, but no samples by number."""
    return hasattr(src, "batch_sampler") and hasattr(src, "dataset")
