"""The group /h5cache: the tables that readers need, as they lie on disk. Each is checksummed.

/h5cache/<field>/blocks   per block: offset in its chunk, stored bytes, checksum (raw fields: checksum only)
/h5cache/<field>/chunks   per chunk of a coded field: stored bytes, checksum (in a manifest: offset in the shard)
/h5cache/<field>/values   exact codes: the value of each code, per channel; `values_used` says which occur
/h5cache/index/blocks     checksums of the index table
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from h5cache.errors import ChecksumError, FormatError
from h5cache.format import hdf5
from h5cache.format.encode import checksum, checksum_blocks
from h5cache.format.layout import FieldLayout, plan_block_samples
from h5cache.quantise import Quantiser, ValueTable

__all__ = ["FieldTables", "read_index", "read_tables", "write_index", "write_tables"]

#: A structured array with a column `key` of UTF-8 bytes.
IndexRows: TypeAlias = "npt.NDArray[Any]"

GROUP = "h5cache"
INDEX = "index"

CODED_BLOCK = np.dtype([("offset", "<u4"), ("nbytes", "<u4"), ("checksum", "<u8")])
RAW_BLOCK = np.dtype([("checksum", "<u8")])
CHUNK = np.dtype([("nbytes", "<u4"), ("checksum", "<u8")])
PLACED_CHUNK = np.dtype([("offset", "<i8"), ("nbytes", "<i8"), ("checksum", "<u8")])


@dataclass(frozen=True, eq=False)
class FieldTables:
    """The tables of one field in one file. `chunks` is empty for raw fields, but for a manifest's."""

    blocks: npt.NDArray[Any]
    chunks: npt.NDArray[Any]
    header: bytes = b""
    table: ValueTable | None = None
    #: Chose the codes; lets a later part of the same run choose the same.
    quantiser: Quantiser | None = None


def write_tables(file: Any, name: str, tables: FieldTables) -> None:
    group = hdf5.create_group(_own_group(file), name)
    parts = {"blocks": tables.blocks, "chunks": tables.chunks}
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
    chunks = _read_checked(file, name, "chunks", attributes)
    expected = RAW_BLOCK if layout.is_raw else CODED_BLOCK
    if blocks.dtype != expected or chunks.dtype not in (CHUNK, PLACED_CHUNK):
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
    hdf5.write_contiguous(file, INDEX, index)
    blocks = row_blocks(index, plan_block_samples(index.dtype.itemsize))
    write_tables(file, INDEX, FieldTables(blocks, np.zeros(0, CHUNK)))


def read_index(file: Any) -> IndexRows:
    """Read the index table, keys as UTF-8 bytes; ChecksumError names the samples that are damaged."""
    rows = hdf5.read_array(hdf5.find_dataset(file, INDEX))
    if rows.dtype.names is None or "key" not in rows.dtype.names:
        raise FormatError(f"{file.filename}: /index has no column 'key'")
    attributes = hdf5.read_attributes(hdf5.find_object(file, f"{GROUP}/{INDEX}"))
    blocks = _read_checked(file, INDEX, "blocks", attributes)
    check_rows(file.filename, INDEX, rows, plan_block_samples(rows.dtype.itemsize), blocks["checksum"])
    return rows


def row_blocks(rows: npt.NDArray[Any], block_samples: int) -> npt.NDArray[Any]:
    return checksum_blocks(rows, block_samples).astype("<u8").view(RAW_BLOCK)


def check_rows(
    path: str, name: str, rows: npt.NDArray[Any], block_samples: int, checksums: npt.NDArray[np.uint64]
) -> None:
    found = checksum_blocks(rows, block_samples)
    if found.shape != checksums.shape:
        raise FormatError(f"{path}: /{name} has {len(rows)} rows, its checksums are for another number")
    bad = np.flatnonzero(found != checksums)
    if len(bad):
        start = int(bad[0]) * block_samples
        stop = min(len(rows), start + block_samples)
        raise ChecksumError(
            f"{path}: /{name} is damaged or was changed in samples {start} to {stop - 1}: their checksum differs. "
            "Restore the file or convert it again"
        )


def _own_group(file: Any) -> Any:
    return file[GROUP] if hdf5.has_object(file, GROUP) else hdf5.create_group(file, GROUP)


def _table_checksum(rows: npt.NDArray[Any]) -> np.uint64:
    return np.uint64(checksum(np.ascontiguousarray(rows).tobytes()))


def _read_checked(file: Any, name: str, part: str, attributes: dict[str, Any]) -> npt.NDArray[Any]:
    rows = hdf5.read_array(hdf5.find_dataset(file, f"{GROUP}/{name}/{part}"))
    if attributes.get(f"{part}_checksum") != int(_table_checksum(rows)):
        raise ChecksumError(
            f"{file.filename}: the table /{GROUP}/{name}/{part} is damaged: its checksum differs. "
            "Restore the file or convert it again"
        )
    return rows
