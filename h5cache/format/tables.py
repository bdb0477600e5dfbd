"""The group /h5cache: the tables that readers need, as they lie on disk. Each is checksummed.

/h5cache/<field>/blocks   per block: offset in its chunk, stored bytes, checksum (raw fields: checksum only)
/h5cache/<field>/chunks   per chunk of a coded field: stored bytes, checksum (in a manifest: offset in the shard)
/h5cache/<field>/values   exact codes: the value of each code, per channel; `values_used` says which occur
/h5cache/index/blocks     checksums of the index table, of `block_samples` rows each
/shards                   in a manifest: name, samples and bytes of each shard; its checksum is its attribute
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from h5cache.errors import ChecksumError, FormatError, H5CacheError
from h5cache.format import hdf5
from h5cache.format.encode import checksum, checksum_blocks
from h5cache.format.layout import FieldLayout, plan_block_samples
from h5cache.quantise import Quantiser
from h5cache.value_table import ValueTable

__all__ = ["FieldTables", "read_index", "read_tables", "write_index", "write_tables"]

#: A structured array with a column `key` of UTF-8 bytes.
IndexRows: TypeAlias = "npt.NDArray[Any]"

REMEDY = "Restore the file or convert it again"

GROUP = "h5cache"
INDEX = "index"
SHARDS = "shards"

CODED_BLOCK = np.dtype([("offset", "<u4"), ("nbytes", "<u4"), ("checksum", "<u8")])
RAW_BLOCK = np.dtype([("checksum", "<u8")])
CHUNK = np.dtype([("nbytes", "<u4"), ("checksum", "<u8")])
PLACED_CHUNK = np.dtype([("offset", "<i8"), ("nbytes", "<i8"), ("checksum", "<u8")])


@dataclass(frozen=True, eq=False)
class FieldTables:
    """The tables of one field in one file. `chunks` is empty, and not stored, for raw fields, but for a manifest's."""

    blocks: npt.NDArray[Any]
    chunks: npt.NDArray[Any]
    header: bytes = b""
    table: ValueTable | None = None
    #: Chose the codes; lets a later part of the same run choose the same.
    quantiser: Quantiser | None = None


def write_tables(file: Any, name: str, tables: FieldTables) -> None:
    group = hdf5.create_group(_own_group(file), name)
    parts = {"blocks": tables.blocks}
    if len(tables.chunks):  # h5repack cannot filter a file that holds an empty dataset
        parts["chunks"] = tables.chunks
    if tables.table is not None:
        parts["values"] = tables.table.bits.view(tables.table.dtype)
        parts["values_used"] = tables.table.used.astype(np.uint8)
    for part, rows in parts.items():
        hdf5.write_contiguous(group, part, rows)
    attributes: dict[str, Any] = {f"{part}_checksum": _table_checksum(rows) for part, rows in parts.items()}
    if tables.header:
        attributes["block_header"] = np.frombuffer(tables.header, np.uint8)
    if tables.quantiser is not None:
        attributes["quantiser"] = json.dumps(tables.quantiser.to_config(), sort_keys=True)
    hdf5.write_attributes(group, attributes)


def read_tables(file: Any, name: str, layout: FieldLayout) -> FieldTables:
    """Read and check the tables of a field; ChecksumError or FormatError names the file and the table."""
    group = hdf5.find_object(file, f"{GROUP}/{name}")
    attributes = hdf5.read_attributes(group)
    blocks = _read_checked(file, name, "blocks", attributes)
    has_chunks = "chunks_checksum" in attributes
    chunks = _read_checked(file, name, "chunks", attributes) if has_chunks else np.zeros(0, CHUNK)
    expected = RAW_BLOCK if layout.is_raw else CODED_BLOCK
    if blocks.dtype != expected or chunks.dtype not in (CHUNK, PLACED_CHUNK) or blocks.ndim != 1 or chunks.ndim != 1:
        raise FormatError(f"{file.filename}: the tables of field {name!r} are not of this format version")
    table = None
    if layout.codes:
        values = _read_checked(file, name, "values", attributes)
        used = _read_checked(file, name, "values_used", attributes)
        table = _value_table(file.filename, name, layout, values, used)
    quantiser = attributes.get("quantiser")
    header = attributes.get("block_header")
    return FieldTables(
        blocks=blocks,
        chunks=chunks,
        header=b"" if header is None else np.asarray(header, np.uint8).tobytes(),
        table=table,
        quantiser=None if quantiser is None else Quantiser.from_config(json.loads(quantiser)),
    )


def _value_table(
    path: str, name: str, layout: FieldLayout, values: npt.NDArray[Any], used: npt.NDArray[Any]
) -> ValueTable:
    empty = layout.empty_table()
    if values.shape != empty.bits.shape or used.shape != empty.used.shape or values.dtype.name != layout.field.dtype:
        raise FormatError(f"{path}: the value table of field {name!r} has the wrong shape or dtype")
    return ValueTable(dtype=layout.field.dtype, bits=values.view(empty.bits.dtype), used=used.astype(bool))


def write_rows(file: Any, name: str, rows: npt.NDArray[Any], layout: FieldLayout) -> None:
    """Store a small field in one piece, with the checksums of its row ranges."""
    hdf5.write_contiguous(file, name, rows)
    write_tables(file, name, FieldTables(row_blocks(rows, layout.block_samples), np.zeros(0, CHUNK)))


def write_index(file: Any, index: IndexRows) -> None:
    """Store the index table."""
    block_samples = plan_block_samples(index.dtype.itemsize)
    hdf5.write_contiguous(file, INDEX, index)
    write_tables(file, INDEX, FieldTables(row_blocks(index, block_samples), np.zeros(0, CHUNK)))
    hdf5.write_attributes(file[GROUP][INDEX], {"block_samples": block_samples})


def read_index(file: Any) -> IndexRows:
    """Read the index table, keys as UTF-8 bytes; ChecksumError names the samples that are damaged."""
    rows, bad = read_index_unchecked(file)
    if bad:
        raise _bad_rows_error(file, INDEX, bad[0])
    return rows


def read_index_unchecked(file: Any) -> tuple[IndexRows, list[range]]:
    """Read the index table, and say which of its rows are damaged."""
    rows = hdf5.read_array(hdf5.find_dataset(file, INDEX))
    if rows.ndim != 1 or rows.dtype.names is None or "key" not in rows.dtype.names or rows.dtype["key"].kind != "S":
        raise FormatError(f"{file.filename}: /index is not a table with a column 'key' of text")
    attributes = hdf5.read_attributes(hdf5.find_object(file, f"{GROUP}/{INDEX}"))
    blocks = _read_checked(file, INDEX, "blocks", attributes)
    if blocks.dtype != RAW_BLOCK:
        raise FormatError(f"{file.filename}: the tables of /index are not of this format version")
    return rows, find_bad_rows(file.filename, INDEX, rows, attributes.get("block_samples"), blocks["checksum"])


def write_shards(file: Any, rows: npt.NDArray[Any]) -> None:
    """Store the list of shards in a manifest."""
    hdf5.write_attributes(hdf5.write_contiguous(file, SHARDS, rows), {"checksum": _table_checksum(rows)})


def read_shards(file: Any) -> npt.NDArray[Any]:
    """Read and check the list of shards: rows of name, num_samples, nbytes."""
    dataset = hdf5.find_dataset(file, SHARDS)
    rows = hdf5.read_array(dataset)
    if rows.ndim != 1 or rows.dtype.names != ("name", "num_samples", "nbytes") or rows.dtype["name"].kind != "S":
        raise FormatError(f"{file.filename}: /{SHARDS} is not a list of shards")
    if hdf5.read_attributes(dataset).get("checksum") != int(_table_checksum(rows)):
        raise ChecksumError(f"{file.filename}: the table /{SHARDS} is damaged: its checksum differs. {REMEDY}")
    return rows


def row_blocks(rows: npt.NDArray[Any], block_samples: int) -> npt.NDArray[Any]:
    return checksum_blocks(rows, block_samples).astype("<u8").view(RAW_BLOCK)


def check_rows(
    file: Any, name: str, rows: npt.NDArray[Any], block_samples: int, checksums: npt.NDArray[np.uint64]
) -> None:
    """ChecksumError names the first rows that differ from their checksum."""
    bad = find_bad_rows(file.filename, name, rows, block_samples, checksums)
    if bad:
        raise _bad_rows_error(file, name, bad[0])


def find_bad_rows(
    path: str, name: str, rows: npt.NDArray[Any], block_samples: Any, checksums: npt.NDArray[np.uint64]
) -> list[range]:
    """Return the runs of rows that differ from their checksum; FormatError where the checksums are for other rows."""
    if not isinstance(block_samples, int) or block_samples < 1 or -(-len(rows) // block_samples) != len(checksums):
        raise FormatError(f"{path}: /{name} has {len(rows)} rows, its checksums are for another number")
    bad = np.flatnonzero(checksum_blocks(rows, block_samples) != checksums)
    starts = (bad * block_samples).tolist()
    return [range(start, min(len(rows), start + block_samples)) for start in starts]


def _bad_rows_error(file: Any, name: str, bad: range) -> ChecksumError:
    try:
        with hdf5.errors_named(file.filename):
            keys = hdf5.read_array(hdf5.find_dataset(file, INDEX))["key"]
            first, last = (bytes(keys[row]).decode("utf-8", "replace") for row in (bad[0], bad[-1]))
    except H5CacheError:
        first, last = "", ""
    named = f" (key {first!r} to {last!r})" if first or last else ""
    return ChecksumError(
        f"{file.filename}: field {name!r}, chunk 0, samples {bad[0]} to {bad[-1]}{named} are damaged or were changed: "
        f"their checksum differs. {REMEDY}"
    )


def _own_group(file: Any) -> Any:
    return file[GROUP] if hdf5.has_object(file, GROUP) else hdf5.create_group(file, GROUP)


def _table_checksum(rows: npt.NDArray[Any]) -> np.uint64:
    return np.uint64(checksum(np.ascontiguousarray(rows).tobytes()))


def _read_checked(file: Any, name: str, part: str, attributes: dict[str, Any]) -> npt.NDArray[Any]:
    rows = hdf5.read_array(hdf5.find_dataset(file, f"{GROUP}/{name}/{part}"))
    if attributes.get(f"{part}_checksum") != int(_table_checksum(rows)):
        raise ChecksumError(
            f"{file.filename}: the table /{GROUP}/{name}/{part} is damaged: its checksum differs. {REMEDY}"
        )
    return rows
