"""An inspection in words, for people at a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from h5cache.codecs import format_choice
from h5cache.terminal import (
    PIPE_WIDTH,
    PLAIN,
    Column,
    Style,
    display_width,
    format_bar,
    format_count,
    format_nbytes,
    format_ratio,
    format_table,
    printable,
    shorten,
)
from h5cache.tools.inspect import ClassFacts, FieldFacts, Inspection, codec_words

__all__ = ["format_inspection"]

#: Up to this many classes are all shown, in their order; of more, the largest.
SHOWN_CLASSES = 20
SHOWN_OF_MANY = 10
SHOWN_SKIPPED = 5
BAR_WIDTH = 30
KEY_WIDTH = 60


def format_inspection(
    inspection: Inspection, style: Style = PLAIN, *, width: int = PIPE_WIDTH, unicode: bool = True
) -> str:
    """Return what a person wants to know, most wanted first."""
    sections = [
        _heading(inspection, style),
        _sizes(inspection, style),
        _fields(inspection, style, width),
        _changes(inspection, style),
        _conversion(inspection, style),
        _classes(inspection.classes, style, unicode),
        _index(inspection, style, width),
        _provenance(inspection.provenance, style),
        _choices(inspection, style),
    ]
    return "\n\n".join(section for section in sections if section)


def _heading(inspection: Inspection, style: Style) -> str:
    shards = format_count(len(inspection.shards), "shard")
    kind = {
        "file": f"an h5cache dataset in one file, format version {inspection.format_version}",
        "folder": f"an h5cache dataset in a folder of {shards}, format version {inspection.format_version}",
        "foreign": "an HDF5 file that h5cache did not write",
    }[inspection.kind]
    return f"{style.bold(printable(inspection.path))}\n{style.dim(kind)}"


def _sizes(inspection: Inspection, style: Style) -> str:
    lines = [("samples", style.bold(f"{inspection.num_samples:,}"))]
    if len(inspection.shards) > 1:
        sizes = [shard.nbytes for shard in inspection.shards]
        lines.append(("shards", f"{len(sizes):,} of {format_nbytes(min(sizes))} to {format_nbytes(max(sizes))}"))
    lines.append(("on disk", style.bold(format_nbytes(inspection.disk_nbytes))))
    if inspection.num_samples:
        lines.append(("", _compare("the tensors in memory", inspection.raw_nbytes, inspection.disk_nbytes, style)))
        lines.append(("", _compare("one .pt file per sample", inspection.pt_nbytes, inspection.disk_nbytes, style)))
    return "\n".join(f"  {style.dim(f'{name:<8}')}  {value}" for name, value in lines)


def _compare(what: str, nbytes: int, disk_nbytes: int, style: Style) -> str:
    if nbytes >= disk_nbytes:
        return f"{style.green(format_ratio(nbytes / disk_nbytes) + ' smaller')} than {what} ({format_nbytes(nbytes)})"
    more = f"{format_ratio(disk_nbytes / nbytes)} the size"
    return f"{style.yellow(more)} of {what} ({format_nbytes(nbytes)})"


def _fields(inspection: Inspection, style: Style, width: int) -> str:
    columns = [
        Column("field", paint=style.cyan),
        Column("dtype"),
        Column("shape"),
        Column("layout"),
        Column("stored", ">"),
        Column("raw", ">"),
        Column("ratio", ">", paint=style.green),
        Column("chunk", ">"),
        Column("block", ">"),
        Column("stored as"),
    ]
    rows = [_field_row(field) for field in inspection.fields]
    text = f"{style.bold('Fields')}\n{format_table(columns, rows, style, width=width)}"
    if any(field.chunk_samples for field in inspection.fields):
        meaning = "samples that HDF5 stores together; a block is what one read decodes"
        text += "\n  " + style.dim(
            f"chunk: {meaning}" if not inspection.is_foreign else "chunk: samples per HDF5 chunk"
        )
    return text


def _field_row(field: FieldFacts) -> list[str]:
    return [
        field.name,
        field.dtype,
        "x".join(map(str, field.shape)) or "scalar",
        field.layout or "-",
        format_nbytes(field.stored_nbytes),
        format_nbytes(field.raw_nbytes),
        format_ratio(field.ratio),
        f"{field.chunk_samples:,}" if field.chunk_samples else "-",
        f"{field.block_samples:,}" if field.block_samples else "-",
        _stored_as(field.exact_codes, field.dtype, field.stored_dtype, field.codec_words),
    ]


def _stored_as(exact_codes: bool, dtype: str, stored_dtype: str, words: str) -> str:
    if exact_codes:
        return f"exact 8-bit codes, {words}"
    return f"{stored_dtype} bits, {words}" if dtype != stored_dtype else words


def _changes(inspection: Inspection, style: Style) -> str:
    if inspection.is_foreign:
        return ""
    changed = [field for field in inspection.fields if field.num_chunks_through_hdf5]
    if not changed:
        return ""
    lines = [style.yellow("Changed since h5cache wrote it")]
    lines += [f"  {field.name}: {field.changed}" for field in changed]
    lines.append(
        "  What was changed is read through libhdf5: right, but slower: it decodes a whole chunk for each sample\n"
        f"  and lets in one thread at a time. Fast again after: {_convert_command(inspection.path)}"
    )
    return "\n".join(lines)


def _conversion(inspection: Inspection, style: Style) -> str:
    if not inspection.is_foreign:
        return ""
    lines = [
        style.yellow("Foreign file"),
        "  It is read through libhdf5: right, but slower (one thread at a time, a whole chunk for each sample), and",
        "  without checksums, keys or class names.",
    ]
    if inspection.conversion:
        lines.append("  Converting it would give, going by its first samples:")
        lines += [
            f"    {style.cyan(trial.name)}: {format_ratio(trial.ratio)} smaller than raw, stored as "
            + _stored_as(
                trial.layout.codes,
                trial.layout.field.dtype,
                trial.layout.field.stored_dtype.name,
                codec_words(trial.layout.codec),
            )
            for trial in inspection.conversion
            if not trial.layout.resident
        ]
        about = format_nbytes(inspection.converted_nbytes)
        lines.append(f"    about {style.bold(about)} instead of {format_nbytes(inspection.disk_nbytes)}")
        lines.append(f"  {_convert_command(inspection.path)}")
    return "\n".join(lines)


def _convert_command(path: str) -> str:
    stem = os.path.splitext(path.rstrip("/"))[0]
    out = f"{os.path.basename(stem)}-new" + (".h5" if not os.path.isdir(path) else "")
    return f"h5cache convert {shlex.quote(printable(path))} {shlex.quote(printable(out))}"


def _classes(classes: Sequence[ClassFacts], style: Style, unicode: bool) -> str:
    if not classes:
        return ""
    many = len(classes) > SHOWN_CLASSES
    shown = sorted(classes, key=lambda one: -one.count)[:SHOWN_OF_MANY] if many else classes
    counts = [one.count for one in classes]
    spread = (
        f"{min(counts):,} to {max(counts):,} samples each"
        if min(counts) != max(counts)
        else f"{format_count(counts[0], 'sample')} each"
    )
    title = f"{format_count(len(classes), 'class', 'classes')}, {spread}"
    names = [shorten(printable(one.name), KEY_WIDTH // 2) if one.name else f"label {one.label}" for one in shown]
    longest, most = max(map(display_width, names)), max(1, *counts)
    digits = len(f"{most:,}")
    lines = [f"{style.bold('Classes')}  {title}"]
    for name, one in zip(names, shown, strict=True):
        padding = " " * (longest - display_width(name))
        bar = style.cyan(format_bar(one.count / most, BAR_WIDTH, unicode))
        lines.append(f"  {name}{padding}  {one.count:>{digits},}  {bar}".rstrip())
    if many:
        rest = sum(counts) - sum(one.count for one in shown)
        lines.append(style.dim(f"  and {len(classes) - len(shown):,} smaller ones with {format_count(rest, 'sample')}"))
    return "\n".join(lines)


def _index(inspection: Inspection, style: Style, width: int) -> str:
    index = inspection.index
    if not index.columns:
        return ""
    title = f"{style.bold('Index')}  columns {', '.join(name for name, _ in index.columns)}"
    if not index.has_keys:
        title = f"{title}; samples have no keys (Writer.append(key=...) gives them)"
    if not index.first:
        return title
    titles = ["sample", *(name for name, _ in index.columns)]
    key_width = max(20, min(KEY_WIDTH, width - 40))
    rows = [
        [str(number), *(_index_cell(name, value, key_width) for name, value in row.items())]
        for number, row in enumerate(index.first)
    ]
    columns = [Column(name, ">" if name == "sample" else "<") for name in titles]
    more = inspection.num_samples - len(rows)
    tail = [style.dim(f"  and {more:,} more")] if more > 0 else []
    return "\n".join([title, format_table(columns, rows, style), *tail])


def _index_cell(name: str, value: Any, key_width: int) -> str:
    if name.endswith("mtime_ns") and isinstance(value, int) and value > 0:
        return datetime.fromtimestamp(value / 1e9, timezone.utc).strftime("%Y-%m-%d %H:%M")
    if name.endswith("nbytes") and isinstance(value, int):
        return format_nbytes(value)
    return shorten(printable(value), key_width)


def _provenance(provenance: Mapping[str, Any], style: Style) -> str:
    rest = dict(provenance)
    lines = []
    versions = rest.pop("versions", None)
    skipped = rest.pop("skipped", None)
    if isinstance(versions, Mapping):
        own = sorted(versions.items(), key=lambda item: item[0] != "h5cache")
        lines.append(("written by", ", ".join(f"{name} {version}" for name, version in own)))
    lines += [
        (name.replace("_", " "), _words(value)) for name, value in rest.items() if value not in (None, {}, [], "")
    ]
    if not lines and not skipped:
        return ""
    longest = max((display_width(printable(name)) for name, _ in lines), default=0)
    text = [style.bold("Provenance")]
    for name, value in lines:
        label = printable(name) + " " * (longest - display_width(printable(name)))
        text.append(f"  {style.dim(label)}  {printable(value)}")
    if skipped:
        text += _skipped(skipped, style)
    return "\n".join(text)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_words(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_words(one) for one in value)
    return str(value)


def _skipped(skipped: Any, style: Style) -> list[str]:
    """Tell which samples of the source are not in the dataset: {key: reason} or a list."""
    entries = [f"{key}: {_words(why)}" for key, why in skipped.items()] if isinstance(skipped, Mapping) else skipped
    if not isinstance(entries, list):
        return [f"  skipped  {printable(_words(skipped))}"]
    count = format_count(len(entries), "sample")
    lines = [style.yellow(f"  skipped: {count} of the source could not be read")]
    lines += [f"    {printable(_words(one))}" for one in entries[:SHOWN_SKIPPED]]
    if len(entries) > SHOWN_SKIPPED:
        lines.append(style.dim(f"    and {len(entries) - SHOWN_SKIPPED:,} more (--json lists all)"))
    return lines


def _choices(inspection: Inspection, style: Style) -> str:
    if inspection.choices is None:
        return ""
    if not inspection.choices:
        return f"{style.bold('Codecs')}  no field is compressed"
    parts = [
        f"{style.bold('Codecs')}  tried on the first chunk; * is what 'auto' takes: least s/GB, the modelled time to\n"
        "  read and decode 1 GB (fixed rates, the same choice everywhere). Speeds measured here, one thread."
    ]
    parts += [f"  {style.cyan(name)}\n{format_choice(choice)}" for name, choice in inspection.choices.items()]
    return "\n\n".join(parts)
