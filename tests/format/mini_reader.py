"""A reader written from FORMAT.md alone: h5py for the tables, then one block at a time by offset. No h5cache."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import blosc2
import h5py
import numpy as np
import xxhash
from numcodecs import zstd

ITEMS = {"bfloat16": "<u2", "bool": "?"}


class MiniReader:
    """Read samples of one shard straight from its bytes."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        with h5py.File(path) as file:
            if file.attrs["format"] != b"h5cache" or file.attrs["format_version"] != 1:
                raise ValueError("another format")
            texts = [file.attrs[name] for name in ("schema", "provenance")] + list(file.attrs.get("classes", ()))
            self.check(b"\n".join(texts), file.attrs["checksum"])
            self.fields = {field["name"]: field for field in json.loads(file.attrs["schema"])["fields"]}
            self.tables = {name: self.read_tables(file, name) for name in self.fields}
            self.offsets = {name: self.chunk_offsets(file[name]) for name in self.fields}
            self.index = file["index"][()]
            step, tables = file["h5cache/index"].attrs["block_samples"], file["h5cache/index/blocks"][()]
        for number, row in enumerate(tables):
            self.check(self.index[number * step : (number + 1) * step].tobytes(), row["checksum"])

    def check(self, data, expected):
        if xxhash.xxh3_64_intdigest(data) != int(expected):
            raise ValueError("damaged")

    def read_tables(self, file, name):
        group = file["h5cache"][name]
        tables = {part: group[part][()] for part in group}
        for part, rows in tables.items():
            self.check(rows.tobytes(), group.attrs[f"{part}_checksum"])
        tables["header"] = bytes(group.attrs.get("block_header", b""))
        return tables

    def chunk_offsets(self, dataset):
        if dataset.chunks is None:
            return [dataset.id.get_offset()]
        return [dataset.id.get_chunk_info(i).byte_offset for i in range(dataset.id.get_num_chunks())]

    def sample(self, name, i):
        """Return sample `i` of a field."""
        field, tables = self.fields[name], self.tables[name]
        item = np.dtype("u1" if field["codes"] else ITEMS.get(field["dtype"], field["dtype"]))
        sample_nbytes = int(np.prod(field["shape"], dtype=int)) * item.itemsize
        block_nbytes = field["block_samples"] * sample_nbytes
        block, place = divmod(i, field["block_samples"])
        row = tables["blocks"][block]
        chunk = 0 if field["contiguous"] else i // field["chunk_samples"]
        in_chunk = block if field["contiguous"] else block % (field["chunk_samples"] // field["block_samples"])
        if field["codec"]["name"] == "none":
            last = len(self.index) - block * field["block_samples"]
            offset = in_chunk * block_nbytes
            nbytes = min(block_nbytes, last * sample_nbytes) if field["contiguous"] else block_nbytes
        else:
            offset, nbytes = int(row["offset"]), int(row["nbytes"])
        start = self.offsets[name][chunk] + offset
        stored = self.data[start : start + nbytes]
        self.check(stored, row["checksum"])
        raw = self.decode(field["codec"]["name"], tables["header"], stored, block_nbytes)
        values = np.frombuffer(raw, item, sample_nbytes // item.itemsize, place * sample_nbytes).reshape(field["shape"])
        if not field["codes"]:
            return values
        axis = {"CHW": 0, "HWC": -1}[field["layout"]]
        planes = [tables["values"][k][plane] for k, plane in enumerate(np.moveaxis(values, axis, 0))]
        return np.stack(planes, axis)

    def decode(self, codec, header, stored, block_nbytes):
        if len(stored) == 0:
            return bytes(block_nbytes)
        if len(stored) == block_nbytes or codec == "none":
            return stored
        if codec == "zstd":
            return bytes(zstd.decompress(stored))
        start = len(header) + 4
        prefix = header[:12] + struct.pack("<i", start + len(stored)) + header[16:] + struct.pack("<i", start)
        return blosc2.decompress2(prefix + stored)
