"""The root attributes of a file: format, version, schema, classes, provenance; as they lie on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5cache.errors import ChecksumError, FormatError
from h5cache.format import hdf5, tables
from h5cache.format.encode import checksum
from h5cache.format.layout import FieldLayout
from h5cache.schema import check_field_name

__all__ = ["FORMAT_NAME", "FORMAT_VERSION", "Root", "read_root", "root_attributes"]

FORMAT_NAME = "h5cache"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Root:
    """What the root attributes of a file of ours say."""

    kind: str
    layouts: Mapping[str, FieldLayout]
    classes: tuple[str, ...]
    provenance: Mapping[str, Any]


def root_attributes(root: Root) -> dict[str, Any]:
    """Return the root's attributes as they are stored."""
    schema = [{"name": name, **layout.to_config()} for name, layout in root.layouts.items()]
    attributes: dict[str, Any] = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "kind": root.kind,
        "schema": json.dumps({"fields": schema}, sort_keys=True),
        "provenance": json.dumps(root.provenance, sort_keys=True),
    }
    if root.classes:
        attributes["classes"] = root.classes
    return attributes | {"checksum": _root_checksum(attributes)}


def _root_checksum(attributes: Mapping[str, Any]) -> np.uint64:
    """libhdf5 checksums what lies in object headers; long attributes (a thousand classes) lie elsewhere."""
    texts = [attributes["schema"], attributes["provenance"], *attributes.get("classes", ())]
    return np.uint64(checksum("\n".join(texts).encode()))


def read_root(file: Any) -> Root | None:
    """Return the root attributes; None where the file is not h5cache's; FormatError where it is and cannot be read."""
    attributes = hdf5.read_attributes(file)
    if attributes.get("format") != FORMAT_NAME:
        return None
    version = attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{file.filename}: is of format version {version}, this h5cache reads {FORMAT_VERSION}; "
            "install a newer h5cache"
        )
    try:
        if int(_root_checksum(attributes)) != attributes["checksum"]:
            raise ChecksumError(
                f"{file.filename}: schema, provenance or classes are damaged or were changed: their checksum differs. "
                + tables.REMEDY
            )
        fields = json.loads(attributes["schema"])["fields"]
        layouts = {entry["name"]: FieldLayout.from_config(entry) for entry in fields}
        for name in layouts:
            check_field_name(name)
        provenance = dict(json.loads(attributes["provenance"]))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise FormatError(f"{file.filename}: the schema of the dataset cannot be read ({exc})") from exc
    if not layouts:
        raise FormatError(f"{file.filename}: the dataset has no fields")
    return Root(str(attributes.get("kind")), layouts, attributes.get("classes", ()), provenance)
