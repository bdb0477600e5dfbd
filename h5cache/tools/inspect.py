"""What a dataset holds, as one value: gathered from its tables, the index and the labels; no picture is decoded.

`inspect_text.py` turns the value into words for people, `to_json` into a document for programs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from h5cache.codecs import CODECS, Blosc, Blosc2, Codec, CodecChoice, Zstd
from h5cache.format import hdf5
from h5cache.format.open import open_dataset, read_dataset_index
from h5cache.format.root import FORMAT_VERSION
from h5cache.format.storage import THROUGH_HDF5, DatasetInfo, FieldStorage
from h5cache.tools.trial import FieldTrial, check_field_names, try_codecs, try_conversion

__all__ = [
    "ClassFacts",
    "FieldFacts",
    "IndexFacts",
    "Inspection",
    "ShardFacts",
    "codec_words",
    "inspect_dataset",
    "to_json",
]

#: Of a `.pt` file besides the tensors' bytes, per file and per tensor: torch 2.13, `torch.save((image, label))`.
PT_FILE_NBYTES = 1360
PT_TENSOR_NBYTES = 210

#: Labels without class names are counted up to this many different ones; more are numbers, not classes.
MAX_UNNAMED_CLASSES = 1000

#: Registered HDF5 filters that one meets in files of others.
FILTER_NAMES = {
    1: "gzip",
    2: "shuffle",
    3: "fletcher32",
    4: "szip",
    5: "nbit",
    6: "scale-offset",
    32000: "lzf",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
} | {codec.filter_id: codec.name for codec in CODECS.values() if codec.filter_id is not None}


@dataclass(frozen=True)
class FieldFacts:
    """One field. Sizes are of the whole dataset; `raw` is what the user's tensors take in memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str | None
    stored_dtype: str
    #: Floats stored as 8-bit codes that come back bit for bit.
    exact_codes: bool
    codec: Mapping[str, Any] | None
    codec_words: str
    stored_nbytes: int
    raw_nbytes: int
    chunk_samples: int | None
    block_samples: int | None
    num_chunks: int
    #: Chunks that libhdf5 must read, because the file is foreign or was changed.
    num_chunks_through_hdf5: int
    #: What was changed since h5cache wrote the field; empty: nothing.
    changed: str = ""

    @property
    def ratio(self) -> float:
        return self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 1.0


@dataclass(frozen=True)
class ShardFacts:
    """One file of the dataset."""

    path: str
    num_samples: int
    nbytes: int


@dataclass(frozen=True)
class ClassFacts:
    """How many samples have a label; `name` is empty for labels without class names."""

    label: int
    name: str
    count: int


@dataclass(frozen=True)
class IndexFacts:
    """Columns of the index table (name, dtype) and its first rows."""

    columns: tuple[tuple[str, str], ...]
    first: tuple[Mapping[str, Any], ...]
    has_keys: bool


@dataclass(frozen=True)
class Inspection:
    """All that `h5cache inspect` tells of a dataset."""

    path: str
    #: "file", "folder", or "foreign": an HDF5 file that h5cache did not write.
    kind: str
    format_version: int | None
    num_samples: int
    shards: tuple[ShardFacts, ...]
    #: All files, the manifest included.
    disk_nbytes: int
    raw_nbytes: int
    #: The same tensors as one `.pt` file per sample, each properly cloned.
    pt_nbytes: int
    fields: tuple[FieldFacts, ...]
    classes: tuple[ClassFacts, ...]
    index: IndexFacts
    provenance: Mapping[str, Any]
    #: For foreign files: what h5cache would make of the first samples.
    conversion: tuple[FieldTrial, ...] = ()
    #: For `--codecs`: the candidates by field.
    choices: Mapping[str, CodecChoice] | None = None

    @property
    def is_foreign(self) -> bool:
        return self.kind == "foreign"

    @property
    def converted_nbytes(self) -> int:
        """What a foreign file's fields would take, going by their first samples."""
        ratios = {trial.name: trial.ratio for trial in self.conversion}
        return round(sum(field.raw_nbytes / ratios.get(field.name, 1.0) for field in self.fields))


def inspect_dataset(
    path: str | os.PathLike[str], fields: Sequence[str] | None = None, *, num_rows: int = 5, codecs: bool = False
) -> Inspection:
    """Look at a file, a folder of shards or a foreign HDF5 file, and close it again.

    `fields` chooses which are told of (of a foreign file: which datasets are fields), `num_rows` how many rows of the
    index. `codecs` also decodes a first chunk and tries every candidate on it: a second or so.
    """
    info = open_dataset(path, fields)
    names = list(info.storage)
    if fields is not None and not info.is_foreign:
        check_field_names(info, fields)
        names = list(dict.fromkeys(fields))
    raw_nbytes = sum(field.sample_nbytes for field in info.schema.values()) * info.num_samples
    return Inspection(
        path=info.path,
        kind="foreign" if info.is_foreign else "folder" if os.path.isdir(info.path) else "file",
        format_version=None if info.is_foreign else FORMAT_VERSION,
        num_samples=info.num_samples,
        shards=tuple(ShardFacts(shard.path, shard.num_samples, shard.identity.nbytes) for shard in info.shards),
        disk_nbytes=sum({file.path: file.identity.nbytes for file in (*info.shards, info.index_file) if file}.values()),
        raw_nbytes=raw_nbytes,
        pt_nbytes=raw_nbytes + info.num_samples * (PT_FILE_NBYTES + PT_TENSOR_NBYTES * len(info.storage)),
        fields=tuple(_field_facts(info, name, info.storage[name]) for name in names),
        classes=_count_classes(info),
        index=_index_facts(info, num_rows),
        provenance=info.provenance,
        conversion=try_conversion(info) if info.is_foreign else (),
        choices=try_codecs(info, names) if codecs else None,
    )


def codec_words(codec: Codec) -> str:
    """Return a codec as people say it, in the order in which bytes go through it.

    >>> codec_words(Blosc2(filter="bytedelta", typesize=2)), codec_words(Zstd(level=3))
    ('bytedelta, zstd level 1 (Blosc2)', 'zstd level 3')
    """
    if isinstance(codec, Blosc2 | Blosc):
        first = codec.filter if isinstance(codec, Blosc2) else codec.shuffle
        steps = [] if first == "none" else [first.replace("+", " and ")]
        family = "Blosc2" if isinstance(codec, Blosc2) else "Blosc"
        return f"{', '.join([*steps, f'{codec.cname} level {codec.clevel}'])} ({family})"
    if isinstance(codec, Zstd):
        return f"zstd level {codec.level}"
    return "uncompressed"


def to_json(inspection: Inspection) -> dict[str, Any]:
    """Return the inspection as JSON values. Keys are only ever added, never renamed."""
    document: dict[str, Any] = {
        "path": inspection.path,
        "kind": inspection.kind,
        "format_version": inspection.format_version,
        "num_samples": inspection.num_samples,
        "num_shards": len(inspection.shards),
        "disk_nbytes": inspection.disk_nbytes,
        "raw_nbytes": inspection.raw_nbytes,
        "pt_nbytes": inspection.pt_nbytes,
        "fields": [{**asdict(field), "shape": list(field.shape), "ratio": field.ratio} for field in inspection.fields],
        "classes": [asdict(one) for one in inspection.classes],
        "index": {
            "columns": [{"name": name, "dtype": dtype} for name, dtype in inspection.index.columns],
            "first": [dict(row) for row in inspection.index.first],
            "has_keys": inspection.index.has_keys,
        },
        "shards": [asdict(shard) for shard in inspection.shards],
        "provenance": dict(inspection.provenance),
        "conversion": None,
        "codecs": None,
    }
    if inspection.is_foreign:
        trials = [
            {"name": trial.name, "codec": trial.layout.codec.to_config(), "exact_codes": trial.layout.codes}
            | {"num_samples": trial.num_samples, "ratio": trial.ratio}
            for trial in inspection.conversion
        ]
        document["conversion"] = {"nbytes": inspection.converted_nbytes, "fields": trials}
    if inspection.choices is not None:
        document["codecs"] = {
            name: [{**asdict(row), "codec": row.codec.to_config()} for row in choice.rows]
            for name, choice in inspection.choices.items()
        }
    return document


def _field_facts(info: DatasetInfo, name: str, storage: FieldStorage) -> FieldFacts:
    layout, field = storage.layout, storage.layout.field
    if info.is_foreign:
        words, chunk_samples = _foreign_storage(info.path, storage.name)
        block_samples, num_chunks = None, -(-info.num_samples // (chunk_samples or max(1, info.num_samples)))
        through, changed = num_chunks, ""
    else:
        words = codec_words(layout.codec)
        chunk_samples = None if layout.contiguous else layout.chunk_samples
        block_samples = None if layout.contiguous else layout.block_samples
        num_chunks = len(storage.chunk_offsets)
        # Small fields are in memory from the moment of opening: how they were read does not matter.
        displaced = storage.chunk_offsets == THROUGH_HDF5
        through = 0 if layout.resident or not info.num_samples else int(np.count_nonzero(displaced))
        changed = _why_changed(info, storage) if through else ""
    return FieldFacts(
        name=name,
        dtype=field.dtype,
        shape=field.shape,
        layout=field.layout,
        stored_dtype=layout.stored_dtype.name,
        exact_codes=layout.codes,
        codec=None if info.is_foreign else layout.codec.to_config(),
        codec_words=words,
        stored_nbytes=storage.stored_nbytes,
        raw_nbytes=info.num_samples * field.sample_nbytes,
        chunk_samples=chunk_samples,
        block_samples=block_samples,
        num_chunks=num_chunks,
        num_chunks_through_hdf5=through,
        changed=changed,
    )


def _foreign_storage(path: str, name: str) -> tuple[str, int | None]:
    """Return the filters of a dataset in words, and the samples of its chunks (None: in one piece)."""
    with hdf5.open_file(path) as file:
        dataset = hdf5.find_dataset(file, name)
        filters = hdf5.filter_ids(dataset)
        return _filter_words(filters) or "uncompressed", None if dataset.chunks is None else int(dataset.chunks[0])


def _filter_words(filters: Sequence[int]) -> str:
    return ", ".join(FILTER_NAMES.get(number, f"HDF5 filter {number}") for number in filters)


def _why_changed(info: DatasetInfo, storage: FieldStorage) -> str:
    """Say what somebody did to a field after h5cache wrote it, going by the first shard where it shows."""
    changed = np.flatnonzero(storage.chunk_offsets == THROUGH_HDF5)
    shard = info.shards[int(np.searchsorted(storage.chunk_starts, changed[0], side="right")) - 1]
    layout = storage.layout
    with hdf5.open_file(shard.path) as file:
        dataset = hdf5.find_dataset(file, storage.name)
        filters, chunks, userblock = hdf5.filter_ids(dataset), dataset.chunks, hdf5.userblock_nbytes(file)
    written = () if layout.is_raw else (layout.codec.filter_id,)
    if filters != written:
        return f"its codec is now {_filter_words(filters) or 'none'}"
    if chunks != (None if layout.contiguous else layout.chunk_shape):
        return f"its chunks are now {' x '.join(map(str, chunks)) if chunks else 'one piece'}"
    if userblock:
        return f"a user block of {userblock} bytes was put in front of the file"
    return f"{len(changed):,} of its {len(storage.chunk_offsets):,} chunks written anew by another program"


def _count_classes(info: DatasetInfo) -> tuple[ClassFacts, ...]:
    labels = _read_labels(info)
    if labels is None:
        return tuple(ClassFacts(label, name, 0) for label, name in enumerate(info.classes))
    values, counts = np.unique(labels, return_counts=True)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    if not info.classes and len(found) > MAX_UNNAMED_CLASSES:
        return ()
    named = [ClassFacts(label, name, found.pop(label, 0)) for label, name in enumerate(info.classes)]
    return (*named, *(ClassFacts(label, "", count) for label, count in found.items()))


def _read_labels(info: DatasetInfo) -> npt.NDArray[Any] | None:
    """Return the field `label`, or else the only scalar whole-number field: what H5TensorDataset calls targets."""
    whole = [name for name, field in info.schema.items() if not field.shape and "int" in field.dtype]
    name = "label" if "label" in whole else whole[0] if len(whole) == 1 else None
    if name is None:
        return None
    if name in info.resident:
        return info.resident[name]
    if not info.is_foreign:
        return None
    labels = np.empty(info.num_samples, info.schema[name].stored_dtype)
    hdf5.read_rows(info.path, info.storage[name].name, np.arange(info.num_samples), labels)
    return labels


def _index_facts(info: DatasetInfo, num_rows: int) -> IndexFacts:
    if info.is_foreign:
        return IndexFacts((), (), has_keys=False)
    rows = read_dataset_index(info)
    names = rows.dtype.names or ()
    columns = tuple((name, "text" if name == "key" else rows.dtype[name].name) for name in names)
    first = tuple(dict(zip(names, row.tolist(), strict=True)) for row in rows[: max(0, num_rows)])
    return IndexFacts(columns, first, has_keys=bool(np.any(rows["key"] != "")))
