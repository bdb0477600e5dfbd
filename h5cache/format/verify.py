"""Check every stored byte of a dataset against its checksum, and go on after what is damaged.

Reads the files anew, whatever their state: a dataset that cannot be opened any more can still be looked through.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.errors import H5CacheError
from h5cache.format import hdf5, tables
from h5cache.format.chunks import is_rewritten, num_rows
from h5cache.format.encode import checksum, pad_chunk
from h5cache.format.layout import FieldLayout
from h5cache.format.locate import read_num_samples, read_resident_unchecked, read_storage
from h5cache.format.manifest import MANIFEST_NAME, read_placed
from h5cache.format.open import read_foreign
from h5cache.format.root import read_root
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage, split_storage
from h5cache.store.local import LocalFile, LocalStore

__all__ = ["Damage", "iter_damage"]

Progress = Callable[[int], None]

#: Bytes of a contiguous field, or of rows through libhdf5, that are read at once.
STEP_NBYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Damage:
    """One piece of a dataset that is not as it was written."""

    path: str
    #: None: the file as a whole. "index" is the index table, "shards" a manifest's list.
    field: str | None
    chunk: int | None
    #: Numbers within the dataset.
    samples: range
    keys: tuple[str, ...]
    reason: str
    #: Whole and readable, but written anew by another program: its samples have no checksum any more.
    rewritten: bool = False

    def __str__(self) -> str:
        parts = [self.path]
        if self.field is not None:
            parts.append(f"field {self.field!r}" if self.field not in (tables.INDEX, tables.SHARDS) else self.field)
        if self.chunk is not None:
            parts.append(f"chunk {self.chunk}")
        if len(self.samples):
            first, last = self.samples[0], self.samples[-1]
            parts.append(f"sample {first}" if first == last else f"samples {first} to {last}")
        named = [key for key in (self.keys[:1] + self.keys[-1:]) if key]
        if named:
            parts.append(f"key {named[0]!r}" + (f" to {named[-1]!r}" if named[-1] != named[0] else ""))
        return f"{', '.join(parts)}: {self.reason}"


@dataclass
class _File:
    """What could be read of a file's tables, and what could not."""

    path: str
    #: Number of the file's first sample in the dataset.
    first: int
    num_samples: int = 0
    keys: npt.NDArray[Any] | None = None
    layouts: dict[str, FieldLayout] = field(default_factory=dict)
    storage: dict[str, FieldStorage] = field(default_factory=dict)
    resident: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)

    def damaged(self, name: str | None, chunk: int | None, rows: range, reason: str, rewritten: bool = False) -> Damage:
        """Describe rows of this file."""
        rows = range(min(rows.start, self.num_samples), min(rows.stop, self.num_samples))
        keys = () if self.keys is None else tuple(self.keys[rows.start : rows.stop].tolist())
        texts = tuple(bytes(key).decode("utf-8", "replace") for key in keys)
        samples = range(self.first + rows.start, self.first + rows.stop)
        return Damage(self.path, name, chunk, samples, texts, reason, rewritten)

    def note(self, name: str | None, reason: str, rows: range | None = None, rewritten: bool = False) -> None:
        rows = range(self.num_samples) if rows is None else rows
        self.damage.append(self.damaged(name, None, rows, reason, rewritten))


def iter_damage(dataset: DatasetInfo | str | os.PathLike[str], progress: Progress | None = None) -> Iterator[Damage]:
    """Yield every damaged piece of a dataset; nothing where all is as it was written. `progress` gets bytes read.

    Takes a path as well, for datasets that do not open any more. A file of somebody else's has no checksums: it is
    read through. MissingDatasetError, or PermissionError, where there is nothing to read.
    """
    path = os.path.abspath(dataset.path if isinstance(dataset, DatasetInfo) else os.fspath(dataset))
    report = progress or _ignore
    if os.path.isdir(path):
        yield from _check_folder(path, report)
        return
    names = [store.name for store in dataset.storage.values()] if isinstance(dataset, DatasetInfo) else None
    found = _read_file(path, 0, names)
    yield from found.damage
    yield from _check_fields(found, report)


def _ignore(nbytes: int) -> None:
    pass


# Folders


def _check_folder(folder: str, progress: Progress) -> Iterator[Damage]:
    manifest, shards = _read_manifest(os.path.join(folder, MANIFEST_NAME))
    yield from manifest.damage
    if shards is None:
        # Shard names are numbered, so their order is known without the list.
        names = sorted(name for name in os.listdir(folder) if name.startswith("shard-") and name.endswith(".h5"))
        counts = [None] * len(names)
    else:
        names = [os.path.basename(bytes(name).decode("utf-8", "replace")) for name in shards["name"]]
        counts = shards["num_samples"].tolist()
    placed = {name: split_storage(storage) for name, storage in manifest.storage.items() if not storage.layout.resident}
    first = 0
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            samples = range(first, first + (count or 0))
            keys = () if manifest.keys is None else tuple(manifest.keys[samples.start : samples.stop].tolist())
            texts = tuple(bytes(key).decode("utf-8", "replace") for key in keys)
            yield Damage(path, None, None, samples, texts, "the shard is missing; restore it or convert again")
        else:
            found = _read_file(path, first, None)
            yield from found.damage
            if count is not None:
                yield from _compare(found, count, {name: parts[number] for name, parts in placed.items()}, manifest)
            yield from _check_fields(found, progress)
        first += found.num_samples if count is None else count


def _read_manifest(path: str) -> tuple[_File, npt.NDArray[Any] | None]:
    found = _File(path, 0)
    LocalFile.at(path)
    shards = None
    try:
        with hdf5.open_file(path) as file:
            root = read_root(file)
            if root is None or root.kind != "manifest":
                found.note(None, "is not the manifest of an h5cache dataset")
                return found, None
            _read_index(file, found)
            try:
                with hdf5.errors_named(path):
                    shards = tables.read_shards(file)
            except H5CacheError as exc:
                found.note(tables.SHARDS, _reason(path, exc))
            for name, layout in root.layouts.items():
                if shards is not None:
                    _read_field(file, found, name, layout, read_placed, shards["num_samples"].tolist())
    except H5CacheError as exc:
        found.note(None, _reason(path, exc))
    return found, shards


def _compare(found: _File, count: int, placed: dict[str, FieldStorage], manifest: _File) -> Iterator[Damage]:
    """Say where a shard is not the one that its manifest was written for."""
    everything = range(found.num_samples)
    if found.num_samples and found.num_samples != count:
        reason = f"has {found.num_samples} samples, the manifest counts {count}; convert the dataset again"
        yield found.damaged(None, None, everything, reason)
        return
    for name, own in found.storage.items():
        rows = manifest.resident.get(name)
        if rows is not None and name in found.resident:
            differ = not np.array_equal(rows[found.first : found.first + count], found.resident[name])
        else:
            differ = name in placed and not np.array_equal(placed[name].block_checksums, own.block_checksums)
        if differ:
            yield found.damaged(name, None, everything, "differs from the manifest; convert the dataset again")
        elif name in placed and not np.array_equal(placed[name].chunk_offsets, own.chunk_offsets):
            reason = "was moved in its file after the manifest was written; it reads right"
            yield found.damaged(name, None, everything, reason, rewritten=True)


# Files


def _read_file(path: str, first: int, names: list[str] | None) -> _File:
    """Read all tables of a file, and close it."""
    found = _File(path, first)
    nbytes = LocalFile.at(path).identity.nbytes
    try:
        with hdf5.open_file(path) as file:
            root = read_root(file)
            if root is not None and root.kind == "shard":
                found.num_samples = read_num_samples(file)
                _read_index(file, found)
                for name, layout in root.layouts.items():
                    _read_field(file, found, name, layout, read_storage, found.num_samples, nbytes)
            elif root is not None:
                found.note(None, f"is a {root.kind}, not a shard; check its folder")
        if root is None:
            info = read_foreign(path, names)
            found.num_samples = info.num_samples
            found.layouts = {name: storage.layout for name, storage in info.storage.items()}
            found.storage = dict(info.storage)
    except H5CacheError as exc:
        found.note(None, _reason(path, exc))
    return found


def _read_index(file: Any, found: _File) -> None:
    try:
        with hdf5.errors_named(found.path):
            rows, bad = tables.read_index_unchecked(file)
            found.num_samples, found.keys = len(rows), rows["key"]
    except H5CacheError as exc:
        found.note(tables.INDEX, _reason(found.path, exc))
        return
    for samples in bad:
        found.note(tables.INDEX, "damaged or changed: the checksum of these rows differs", samples)


def _read_field(
    file: Any, found: _File, name: str, layout: FieldLayout, read: Callable[..., FieldStorage], *extent: Any
) -> None:
    found.layouts[name] = layout
    try:
        with hdf5.errors_named(found.path):
            storage = read(file, name, layout, *extent)
            if layout.resident:
                rows = read_resident_unchecked(file, name, storage)
                bad = tables.find_bad_rows(found.path, name, rows, layout.block_samples, storage.block_checksums)
                found.resident[name] = rows
                for samples in bad:
                    reason = "damaged or changed: the checksum of these rows differs"
                    found.damage.append(found.damaged(name, 0, samples, reason))
            found.storage[name] = storage
    except H5CacheError as exc:
        found.note(name, _reason(found.path, exc))


def _reason(path: str, exc: H5CacheError) -> str:
    return str(exc).removeprefix(f"{path}: ")


def _check_fields(found: _File, progress: Progress) -> Iterator[Damage]:
    """Check the chunks of a file whose tables have been read."""
    store = LocalStore([LocalFile.at(found.path)])
    try:
        for name, storage in found.storage.items():
            if name in found.resident:
                progress(found.resident[name].nbytes)
            elif not len(storage.block_checksums):
                yield from _check_foreign(found, storage, progress)
            elif storage.layout.contiguous:
                yield from _check_contiguous(store, found, storage, progress)
            else:
                yield from _check_chunked(store, found, storage, progress)
    finally:
        store.close()


def _check_chunked(store: LocalStore, found: _File, storage: FieldStorage, progress: Progress) -> Iterator[Damage]:
    layout = storage.layout
    for chunk in range(len(storage.chunk_offsets)):
        start = chunk * layout.chunk_samples
        rows = range(start, start + num_rows(storage, chunk, found.num_samples))
        try:
            if storage.chunk_offsets[chunk] != THROUGH_HDF5:
                data = store.read(0, int(storage.chunk_offsets[chunk]), int(storage.chunk_nbytes[chunk]))
                rewritten = is_rewritten(storage, data)
            else:
                data = pad_chunk(_read_rows(found, storage, rows), layout.chunk_samples).tobytes()
                rewritten = not layout.is_raw
            if rewritten and storage.chunk_offsets[chunk] != THROUGH_HDF5:
                _read_rows(found, storage, rows)
        except (H5CacheError, OSError) as exc:
            yield found.damaged(storage.name, chunk, rows, f"cannot be read: {exc}")
            continue
        progress(len(data))
        if rewritten:
            reason = "was written anew by another program: it reads, but has no checksum any more"
            yield found.damaged(storage.name, chunk, rows, reason, rewritten=True)
        elif layout.is_raw or checksum(data) != int(storage.chunk_checksums[chunk]):
            yield from _check_blocks(found, storage, chunk, data)


def _check_blocks(found: _File, storage: FieldStorage, chunk: int, data: bytes) -> Iterator[Damage]:
    """Name the blocks that are damaged in a chunk that is, or may be."""
    layout, view = storage.layout, memoryview(data)
    first = chunk * layout.blocks_per_chunk
    intact = True
    for place in range(layout.blocks_per_chunk):
        block = first + place
        offset, nbytes = place * layout.block_nbytes, layout.block_nbytes
        if not layout.is_raw:
            offset, nbytes = int(storage.block_offsets[block]), int(storage.block_nbytes[block])
        if checksum(view[offset : offset + nbytes]) != int(storage.block_checksums[block]):
            intact = False
            start = block * layout.block_samples
            rows = range(start, start + layout.block_samples)
            yield found.damaged(storage.name, chunk, rows, "damaged or changed: the checksum of its bytes differs")
    if intact and not layout.is_raw:
        start = chunk * layout.chunk_samples
        reason = "damaged around its samples, which are whole: the checksum of the chunk differs"
        yield found.damaged(storage.name, chunk, range(start, start + layout.chunk_samples), reason)


def _check_contiguous(store: LocalStore, found: _File, storage: FieldStorage, progress: Progress) -> Iterator[Damage]:
    layout, count = storage.layout, found.num_samples
    base = int(storage.chunk_offsets[0])
    for block, expected in enumerate(storage.block_checksums.tolist()):
        rows = range(block * layout.block_samples, min(count, (block + 1) * layout.block_samples))
        try:
            if base == THROUGH_HDF5:
                data = _read_rows(found, storage, rows).tobytes()
            else:
                data = store.read(0, base + rows.start * layout.sample_nbytes, len(rows) * layout.sample_nbytes)
        except (H5CacheError, OSError) as exc:
            yield found.damaged(storage.name, 0, rows, f"cannot be read: {exc}")
            continue
        progress(len(data))
        if checksum(data) != expected:
            yield found.damaged(storage.name, 0, rows, "damaged or changed: the checksum of its bytes differs")


def _check_foreign(found: _File, storage: FieldStorage, progress: Progress) -> Iterator[Damage]:
    step = max(1, STEP_NBYTES // storage.layout.sample_nbytes)
    for start in range(0, found.num_samples, step):
        rows = range(start, min(start + step, found.num_samples))
        try:
            progress(_read_rows(found, storage, rows).nbytes)
        except (H5CacheError, OSError) as exc:
            yield found.damaged(storage.name, None, rows, f"cannot be read: {exc}")


def _read_rows(found: _File, storage: FieldStorage, rows: range) -> npt.NDArray[Any]:
    out = np.empty((len(rows), *storage.layout.field.shape), storage.layout.stored_dtype)
    hdf5.read_rows(found.path, storage.name, np.arange(rows.start, rows.stop), out)
    return out
