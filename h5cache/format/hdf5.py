"""The literal floor over h5py: files, datasets, chunks, attributes. The only module that imports h5py.

Readers close every file before they return: nothing of libhdf5 outlives a call, so that a later fork, a pickle or
a thread meets no handle. Paths are walked component by component: a link or a storage that leaves the file is
refused before anything is read through it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  registers the filters with libhdf5
import numpy as np
import numpy.typing as npt

from h5cache.errors import FormatError, H5CacheError, MissingDatasetError, UnsafeFileError

__all__ = ["ChunkTable", "create_file", "open_file"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: 'latest' under HDF5 2.x writes files that HDF5 1.14 and 1.10 refuse; v110 also checksums all metadata.
LIBVER = h5py.h5f.LIBVER_V110
MAX_SOFT_LINKS = 16
#: What a small file may claim for a table that is compressed (gzip reaches 1032 to 1, others more on zeros).
MAX_CLAIM_NBYTES = 64 * 1024 * 1024
MAX_CLAIM_RATIO = 1100
NOT_THE_FILES_FAULT = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE)
#: What h5py raises where a file is damaged or hostile, besides what it documents.
H5PY_ERRORS = (OSError, KeyError, IndexError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError)


@dataclass(frozen=True)
class ChunkTable:
    """Where libhdf5 put the chunks of a dataset: byte offset and stored size in chunk order; -1 where there is none."""

    offsets: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    #: A non-zero mask means that a filter was skipped for this chunk.
    filter_masks: npt.NDArray[np.uint32]


@contextmanager
def create_file(path: str) -> Iterator[h5py.File]:
    """Create (truncate) a file for writing whose bytes depend on nothing but what is written.

    The caller holds its own lock on the path: libhdf5's flock would collide with it.
    """
    fcpl = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    # The root group would keep the time of its creation, and every run's bytes would differ.
    fcpl.set_obj_track_times(False)
    fapl = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    fapl.set_libver_bounds(LIBVER, LIBVER)
    fapl.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    fapl.set_file_locking(False, True)
    fid = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fcpl=fcpl, fapl=fapl)
    file = h5py.File(fid)
    try:
        yield file
    finally:
        with _clear_os_error(path):
            file.close()


@contextmanager
def _clear_os_error(path: str) -> Iterator[None]:
    """Say what the system said. libhdf5 wraps it in a page of text, and h5py makes a RuntimeError of it in close."""
    try:
        yield
    except (OSError, RuntimeError) as exc:
        found = re.search(r"errno = (\d+)", str(exc))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number) if found else str(exc), path) from exc


@contextmanager
def open_file(path: str) -> Iterator[h5py.File]:
    """Open a file for reading; MissingDatasetError or FormatError, naming it, where it cannot be.

    What h5py raises inside the `with` block is a FormatError too: the block must do nothing but read the file.
    """
    check_is_hdf5(path)
    try:
        file = h5py.File(path, "r", locking="best-effort")
    except OSError as exc:
        if exc.errno in NOT_THE_FILES_FAULT:
            raise
        raise FormatError(f"{path}: the HDF5 file is damaged or truncated and cannot be opened ({exc})") from exc
    except H5PY_ERRORS as exc:
        raise FormatError(f"{path}: the HDF5 file is damaged and cannot be opened ({exc})") from exc
    with file, errors_named(path):
        yield file


@contextmanager
def errors_named(path: str) -> Iterator[None]:
    """Turn what h5py raises while the file at `path` is read into FormatError."""
    try:
        yield
    except H5CacheError:
        raise
    except H5PY_ERRORS as exc:
        if isinstance(exc, OSError) and exc.errno in NOT_THE_FILES_FAULT:
            raise
        raise FormatError(f"{path}: the HDF5 file is damaged or is not of this format ({exc})") from exc


def check_is_hdf5(path: str) -> None:
    try:
        with open(path, "rb") as stream:
            head = stream.read(len(SIGNATURE))
            nbytes = os.fstat(stream.fileno()).st_size
    except FileNotFoundError as exc:
        raise MissingDatasetError(errno.ENOENT, "no such dataset", path) from exc
    except IsADirectoryError as exc:
        raise FormatError(f"{path}: is a folder, expected an HDF5 file") from exc
    if nbytes == 0:
        raise FormatError(f"{path}: the file is empty (0 bytes); convert it again")
    if head != SIGNATURE and not h5py.is_hdf5(path):
        raise FormatError(f"{path}: not an HDF5 file (it starts with {head!r})")


# Walking


def find_object(file: h5py.File, path: str) -> Any:
    """Return the group or dataset at `path`, following hard links and soft links inside the file only."""
    return _walk(file, [part for part in path.split("/") if part], MAX_SOFT_LINKS)


def _walk(file: h5py.File, parts: list[str], links_left: int) -> Any:
    here: Any = file["/"]
    for depth, part in enumerate(parts):
        where = "/" + "/".join(parts[: depth + 1])
        name = part.encode()
        if not isinstance(here, h5py.Group) or name not in here.id:
            raise FormatError(f"{file.filename}: has no {where}")
        link = here.id.links.get_info(name)
        if link.type == h5py.h5l.TYPE_EXTERNAL:
            raise UnsafeFileError(f"{file.filename}: {where} is an external link to another file; refused")
        if link.type == h5py.h5l.TYPE_SOFT:
            if links_left == 0:
                raise UnsafeFileError(f"{file.filename}: {where} is a chain of too many soft links; refused")
            target = here.id.links.get_val(name).decode()
            base = [] if target.startswith("/") else parts[:depth]
            rest = [step for step in target.split("/") if step and step != "."]
            return _walk(file, base + rest + parts[depth + 1 :], links_left - 1)
        if link.type != h5py.h5l.TYPE_HARD:
            raise UnsafeFileError(f"{file.filename}: {where} is a link of an unknown kind; refused")
        here = here[part]
    if isinstance(here, h5py.Dataset):
        _check_storage_is_inside(file, here)
    return here


def find_dataset(file: h5py.File, path: str) -> h5py.Dataset:
    found = find_object(file, path)
    if not isinstance(found, h5py.Dataset):
        raise FormatError(f"{file.filename}: {path} is not a dataset")
    return found


def root_datasets(file: h5py.File) -> list[str]:
    """Name the datasets at the root; links that leave the file are not followed, nor listed."""
    root = file["/"]
    names = []
    for name in root:
        link = root.id.links.get_info(name.encode())
        if link.type == h5py.h5l.TYPE_HARD and root.get(name, getclass=True) is h5py.Dataset:
            names.append(name)
    return names


def stored_nbytes(dataset: h5py.Dataset) -> int:
    return int(dataset.id.get_storage_size())


def has_object(file: h5py.File, name: str) -> bool:
    return name.encode() in file["/"].id


def _check_storage_is_inside(file: h5py.File, dataset: h5py.Dataset) -> None:
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        raise UnsafeFileError(f"{file.filename}: {dataset.name} is a virtual dataset over other files; refused")
    if properties.get_external_count():
        raise UnsafeFileError(f"{file.filename}: {dataset.name} keeps its data in another file; refused")


# Writing


def create_group(parent: h5py.Group, name: str) -> h5py.Group:
    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5py.Group(h5py.h5g.create(parent.id, name.encode(), gcpl=properties))


def create_chunked(
    file: h5py.File,
    name: str,
    dtype: np.dtype[Any],
    chunk_shape: tuple[int, ...],
    filter_id: int | None,
    filter_options: tuple[int, ...],
) -> h5py.Dataset:
    """Create an empty dataset that grows along its first axis, for `append_chunk`."""
    properties = _creation_properties()
    properties.set_chunk(chunk_shape)
    if filter_id is not None:
        properties.set_filter(filter_id, h5py.h5z.FLAG_OPTIONAL, filter_options)
    space = h5py.h5s.create_simple((0, *chunk_shape[1:]), (h5py.h5s.UNLIMITED, *chunk_shape[1:]))
    made = h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype, logical=True), space, dcpl=properties)
    return h5py.Dataset(made)


def append_chunk(dataset: h5py.Dataset, start: int, stop: int, data: bytes) -> None:
    """Grow `dataset` to `stop` samples, then store the encoded chunk that begins at sample `start`.

    Never call it after the edge chunk: growing later would make libhdf5 re-encode that chunk in another form.
    """
    with _clear_os_error(dataset.file.filename):
        dataset.id.set_extent((stop, *dataset.shape[1:]))
        dataset.id.write_direct_chunk((start, *(0 for _ in dataset.shape[1:])), data)


def write_contiguous(parent: h5py.Group, name: str, rows: npt.NDArray[Any]) -> h5py.Dataset:
    """Store an array in one piece."""
    space = h5py.h5s.create_simple(rows.shape)
    kind = h5py.h5t.py_create(rows.dtype, logical=True)
    with _clear_os_error(parent.file.filename):
        made = h5py.h5d.create(parent.id, name.encode(), kind, space, dcpl=_creation_properties())
        if rows.size:
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(rows))
    return h5py.Dataset(made)


def create_contiguous(file: h5py.File, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> h5py.Dataset:
    """Create a dataset in one piece whose rows come later, by `write_rows`."""
    made = h5py.h5d.create(
        file.id,
        name.encode(),
        h5py.h5t.py_create(dtype, logical=True),
        h5py.h5s.create_simple(shape),
        dcpl=_creation_properties(),
    )
    return h5py.Dataset(made)


def write_rows(dataset: h5py.Dataset, start: int, rows: npt.NDArray[Any]) -> None:
    with _clear_os_error(dataset.file.filename):
        dataset[start : start + len(rows)] = rows


def _creation_properties() -> Any:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


def write_attributes(target: h5py.Group, attributes: Mapping[str, Any]) -> None:
    """Store numbers, strings, lists of strings and uint8 arrays. Strings are fixed-length UTF-8: no global heap."""
    for name, value in attributes.items():
        if isinstance(value, str):
            raw = value.encode()
            target.attrs.create(name, raw, dtype=h5py.string_dtype("utf-8", max(1, len(raw))))
        elif isinstance(value, tuple):
            texts = [text.encode() for text in value]
            width = max([1, *(len(text) for text in texts)])
            target.attrs.create(name, np.array(texts, f"S{width}"), dtype=h5py.string_dtype("utf-8", width))
        else:
            target.attrs.create(name, value)


# Reading


def read_attributes(target: h5py.Group) -> dict[str, Any]:
    """Return the attributes as Python values; strings decoded, arrays of strings as tuples. Other kinds are skipped."""
    found: dict[str, Any] = {}
    for name in target.attrs:
        if not _is_plain(target.attrs.get_id(name).get_type()):
            continue
        value = target.attrs[name]
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, np.ndarray) and value.dtype.kind == "S" and value.ndim == 1:
            value = tuple(text.decode() for text in value)
        elif isinstance(value, np.generic):
            value = value.item()
            value = value.decode() if isinstance(value, bytes) else value
        found[name] = value
    return found


def _is_plain(kind: h5py.h5t.TypeID) -> bool:
    """True for fixed-length strings and numbers: the format has no others.

    Reading variable-length ones may follow heap pointers of a hostile file; what somebody else noted is not ours.
    """
    if isinstance(kind, h5py.h5t.TypeStringID):
        return not kind.is_variable_str()
    return isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID)


def read_array(dataset: h5py.Dataset) -> npt.NDArray[Any]:
    """Read a whole small dataset; FormatError where its size and its stored bytes disagree."""
    expected = dataset.size * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    repacked = dataset.chunks is not None and stored > 0
    if (expected > MAX_CLAIM_NBYTES + MAX_CLAIM_RATIO * stored) if repacked else expected != stored:
        raise FormatError(f"{dataset.file.filename}: {dataset.name} claims {expected} bytes, {stored} are stored")
    if dataset.dtype.hasobject:
        raise FormatError(f"{dataset.file.filename}: {dataset.name} is of a variable-length type; refused")
    return np.asarray(dataset[()])


def read_rows(path: str, name: str, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
    """Read rows, in any order and with repeats, through libhdf5 into `out`. Opens and closes the file."""
    wanted, back = np.unique(rows, return_inverse=True)
    with open_file(path) as file:
        dataset = find_dataset(file, name)
        if dataset.shape[1:] != out.shape[1:] or (len(wanted) and wanted[-1] >= dataset.shape[0]):
            raise FormatError(f"{path}: /{name} is now of shape {dataset.shape}; open the dataset again")
        try:
            # Ranges are read in one go: h5py's list selection costs a hyperslab per row.
            if len(wanted) and wanted[-1] - wanted[0] == len(wanted) - 1:
                values = dataset[wanted[0] : wanted[-1] + 1]
            else:
                values = dataset[wanted]
        except OSError as exc:
            raise _unreadable(path, dataset, exc) from exc
    np.copyto(out, values[back], casting="equiv")  # the byte order may differ, nothing else


def _unreadable(path: str, dataset: h5py.Dataset, exc: OSError) -> FormatError:
    missing = [str(number) for number in filter_ids(dataset) if not h5py.h5z.filter_avail(number)]
    if missing:
        return FormatError(
            f"{path}: {dataset.name} needs the HDF5 filter {', '.join(missing)}, which is not installed here; "
            "find its name at https://portal.hdfgroup.org/documentation/hdf5-docs/registered_filter_plugins.html"
        )
    return FormatError(f"{path}: {dataset.name} cannot be read; it is damaged, or a filter failed ({exc})")


def chunk_table(dataset: h5py.Dataset) -> ChunkTable:
    """List the chunks in one pass. Chunks must span whole samples."""
    step = dataset.chunks[0]
    count = -(-dataset.shape[0] // step)
    offsets = np.full(count, -1, np.int64)
    nbytes = np.full(count, -1, np.int64)
    masks = np.zeros(count, np.uint32)

    def note(info: Any) -> None:
        index = info.chunk_offset[0] // step
        offsets[index], nbytes[index], masks[index] = info.byte_offset, info.size, info.filter_mask

    if count:
        dataset.id.chunk_iter(note)
    return ChunkTable(offsets, nbytes, masks)


def filter_ids(dataset: h5py.Dataset) -> tuple[int, ...]:
    properties = dataset.id.get_create_plist()
    return tuple(properties.get_filter(position)[0] for position in range(properties.get_nfilters()))


def byte_offset(dataset: h5py.Dataset) -> int | None:
    """Where a contiguous dataset begins in the file; None where it is chunked or nothing is stored."""
    offset = dataset.id.get_offset() if dataset.chunks is None else None
    return None if offset is None else int(offset)


def userblock_nbytes(file: h5py.File) -> int:
    return int(file.userblock_size)
