"""The report as one HTML page: no scripts, nothing from the network, light and dark, from telephone to wide screen."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from h5cache import __version__
from h5cache.errors import DatasetExistsError
from h5cache.format.publish import check_kind, check_parent, partial_path, publish_file, remove
from h5cache.load.notebook import class_bars
from h5cache.load.show import Tile
from h5cache.markup import (
    PIECES_CSS,
    Bar,
    Series,
    bars,
    columns_chart,
    escape,
    figure,
    histogram_chart,
    line_chart,
    table,
)
from h5cache.terminal import format_count, format_nbytes, format_ratio
from h5cache.tools.findings import CHECKED, Finding
from h5cache.tools.inspect import FieldFacts
from h5cache.tools.mixing import Rate, ShuffleSurvey, window_nbytes
from h5cache.tools.report import ROW, SHOWN_CLASSES, ClassPictures, Report
from h5cache.tools.report_style import PAGE_CSS
from h5cache.tools.survey import CHANNEL_NAMES, FieldValues

__all__ = ["check_output", "render_page", "write_page"]

#: Nothing may be loaded or run, whatever names a file somebody sent brings along.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

#: Programs for each core from which measured rates are said to be too low.
BUSY = 1.2


def write_page(page: str, path: str | os.PathLike[str]) -> int:
    """Write the page atomically, over an older one; return its bytes. A folder of that name is never touched."""
    name = os.fspath(path)
    check_output(name)
    data = page.encode()
    partial = partial_path(name)
    try:
        with open(partial, "wb") as stream:
            stream.write(data)
        publish_file(partial, name)
    except BaseException:
        remove(partial)
        raise
    return len(data)


def check_output(name: str) -> None:
    """Raise where the page cannot be written to that name: better before the work than after."""
    check_parent(name)
    check_kind(name, folder=False)
    with_magic = False
    if os.path.isfile(name):
        with open(name, "rb") as stream:
            with_magic = stream.read(8) == b"\x89HDF\r\n\x1a\n"
    if with_magic:
        raise DatasetExistsError(errno.EEXIST, "the output is an HDF5 file; give the page another name", name)


def render_page(report: Report, name: str) -> str:
    """Return the whole page. `name` is the dataset's path as the user gave it."""
    title = os.path.basename(os.path.normpath(name)) or name
    sections = [
        _problems(report),
        _pictures(report),
        *_beside(_classes(report), _values(report.values), report),
        _sizes(report),
        _shuffle(report.shuffle),
        _speed(report.rates, report.load_per_core),
        _extremes(report),
        _provenance(report, name),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}: h5cache report</title>\n<style>{PIECES_CSS}{PAGE_CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{_header(report, title)}\n{body}\n"
        f"<footer>Made by h5cache {escape(__version__)}. The page holds all it shows and loads nothing.</footer>\n"
        "</main>\n</body>\n</html>\n"
    )


def _beside(classes: str, values: str, report: Report) -> list[str]:
    """Put two sections side by side where both are narrow."""
    narrow = sum(bool(one.channels) for one in report.values) == 1
    return [f'<div class="duo">{classes}{values}</div>'] if classes and values and narrow else [classes, values]


def _section(name: str, title: str, body: str, lead: str = "") -> str:
    about = f'<p class="h5c-muted">{escape(lead)}</p>' if lead else ""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{about}{body}</section>'


def _header(report: Report, title: str) -> str:
    found = report.inspection
    kind = {
        "file": f"An h5cache dataset in one file, format version {found.format_version}",
        "folder": f"An h5cache dataset in a folder of {format_count(len(found.shards), 'shard')}, format version "
        f"{found.format_version}",
        "foreign": "An HDF5 file that h5cache did not write",
    }[found.kind]
    holds = ", ".join(f"{field.name} {field.dtype} {_shape(field)}" for field in found.fields)
    facts = [("samples", f"{found.num_samples:,}")]
    num_classes = sum(bool(one.name) for one in found.classes) or len(found.classes)
    if num_classes:
        facts.append(("class" if num_classes == 1 else "classes", f"{num_classes:,}"))
    facts.append(("on disk", format_nbytes(found.disk_nbytes)))
    if report.rates:
        full = max(one.samples_per_s for one in report.rates if one.shuffle == "full")
        facts.append(("samples/s, true shuffle", f"{full:,.0f}"))
    if found.num_samples and found.disk_nbytes:
        for nbytes, words in ((found.raw_nbytes, "the tensors in memory"), (found.pt_nbytes, ".pt files")):
            ratio = nbytes / found.disk_nbytes
            facts.append(
                (
                    f"smaller than {words}" if ratio >= 1 else f"the size of {words}",
                    format_ratio(ratio if ratio >= 1 else 1 / ratio),
                )
            )
    listed = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in facts)
    return (
        f'<header><h1>{escape(title)}</h1><p class="h5c-muted">{escape(kind)}: {escape(holds)}</p>'
        f'<dl class="facts">{listed}</dl></header>'
    )


def _shape(field: FieldFacts) -> str:
    return "x".join(map(str, field.shape)) or "scalar"


def _problems(report: Report) -> str:
    if not report.findings:
        words = f"Looked for {', '.join(CHECKED[:-1])} and {CHECKED[-1]}."
        return _section(
            "problems",
            "Problems found",
            f'<div class="finding good"><p><b>None.</b> {escape(words)}</p></div>',
        )
    parts = [_finding(finding, tiles) for finding, tiles in report.findings]
    return _section("problems", "Problems found", "".join(parts))


def _finding(finding: Finding, tiles: Sequence[Tile]) -> str:
    word = {"bad": "Wrong", "warn": "Look at this", "note": "Note"}[finding.level]
    pictures = _row(tiles, caption=True) if tiles else ""
    return (
        f'<div class="finding {finding.level}"><p><b>{word}:</b> <strong>{escape(finding.title)}</strong></p>'
        f"<p>{_with_code(finding.detail)}</p>{pictures}</div>"
    )


def _with_code(text: str) -> str:
    """Escape text; what stands in backquotes is code."""
    parts = text.split("`")
    return "".join(f"<code>{escape(part)}</code>" if place % 2 else escape(part) for place, part in enumerate(parts))


def _row(tiles: Sequence[Tile], caption: bool = False, loose: bool = False) -> str:
    kind = "row loose" if loose else "row"
    return f'<ul class="{kind}">{"".join(tile.to_html(caption=caption) for tile in tiles)}</ul>'


def _pictures(report: Report) -> str:
    rows = [row for row in report.rows if row.tiles]
    if not rows:
        return ""
    if len(rows) == 1 and not rows[0].name:
        lead = f"{len(rows[0].tiles)} of {rows[0].count:,}, drawn at random"
        return _section("pictures", "Pictures", _row(rows[0].tiles, loose=True), lead)
    many = len(report.inspection.classes) > SHOWN_CLASSES
    some = f"the {SHOWN_CLASSES} largest of {len(report.inspection.classes):,} classes; " if many else ""
    body = "".join(_class_row(row) for row in rows)
    return _section("pictures", "Pictures by class", body, f"{some}up to {ROW} of each, drawn at random")


def _class_row(row: ClassPictures) -> str:
    return (
        f'<div class="class"><div><h3>{escape(row.name)}</h3>'
        f'<span class="h5c-muted">{format_count(row.count, "sample")}</span></div>{_row(row.tiles)}</div>'
    )


def _classes(report: Report) -> str:
    classes = report.inspection.classes
    counts = [one.count for one in classes]
    if not classes or not any(counts):
        return ""
    same = min(counts) == max(counts)
    spread = f"{format_count(counts[0], 'sample')} each" if same else f"{min(counts):,} to {max(counts):,} samples each"
    named = [(one.name or f"label {one.label}", one.count) for one in classes]
    num_classes = sum(bool(one.name) for one in classes) or len(classes)
    lead = f"{format_count(num_classes, 'class', 'classes')}, {spread}"
    return _section("classes", "Class histogram", class_bars(named, shown=SHOWN_CLASSES + 1), lead)


def _sizes(report: Report) -> str:
    found = report.inspection
    if not found.num_samples:
        return ""
    compared = [
        Bar("one .pt per sample", found.pt_nbytes, format_nbytes(found.pt_nbytes), quiet=True),
        Bar("tensors in memory", found.raw_nbytes, format_nbytes(found.raw_nbytes), quiet=True),
        Bar("this dataset", found.disk_nbytes, format_nbytes(found.disk_nbytes)),
    ]
    pt_of_field = found.pt_nbytes / max(1, found.raw_nbytes)
    rows = []
    for field in found.fields:
        how = f"exact 8-bit codes, {field.codec_words}" if field.exact_codes else field.codec_words
        shape = f"{_shape(field)} {field.layout}" if field.layout else _shape(field)
        sizes = (format_nbytes(field.stored_nbytes), format_nbytes(field.raw_nbytes))
        ratios = (format_ratio(field.ratio), format_ratio(field.ratio * pt_of_field))
        rows.append((field.name, field.dtype, shape, *sizes, *ratios, how))
    titles = ("field", "dtype", "shape", "stored", "raw", "against raw", "against .pt", "stored as")
    lead = (
        "A .pt file per sample as torch.save writes it, each tensor properly cloned; its overhead is shared out by size"
    )
    return _section("sizes", "Size", bars(compared) + table(titles, rows, numeric=(3, 4, 5, 6)), lead)


def _values(values: Sequence[FieldValues]) -> str:
    cards = [_field_values(field) for field in values if field.channels]
    if not cards:
        return ""
    return _section("values", "Values", f'<div class="pair">{"".join(cards)}</div>')


def _field_values(field: FieldValues) -> str:
    colours = {"red": "red", "green": "green", "blue": "blue", "grey": "grey", "alpha": "grey"}
    series = [Series(one.name, one.counts, colours.get(one.name, "s0")) for one in field.channels]
    low, high = field.axis
    ticks = [(0.0, _number(low)), (0.5, _number((low + high) / 2)), (1.0, _number(high))]
    label = f"Histogram of {field.name}: {_number(low)} to {_number(high)}, {format_count(len(series), 'channel')}"
    rows = [
        (one.name, _number(one.low), _number(one.high), _number(one.mean), _number(one.std)) for one in field.channels
    ]
    how = f"{field.dtype}, stored as exact 8-bit codes" if field.exact_codes else field.dtype
    return (
        f"<div><h3>{escape(field.name)}</h3>"
        f'<p class="h5c-muted">{escape(how)}; {format_count(field.num_looked_at, "sample")} looked at</p>'
        + figure(histogram_chart(series, ticks, label), series=series)
        + table(("channel" if len(rows) > 1 else "", "min", "max", "mean", "std"), rows, numeric=(1, 2, 3, 4))
        + _normalise_hint(field)
        + "</div>"
    )


def _normalise_hint(field: FieldValues) -> str:
    """Mean and deviation in the form in which `ds.loader(normalize=...)` takes them."""
    if field.dtype != "uint8" or tuple(one.name for one in field.channels) not in CHANNEL_NAMES.values():
        return ""
    mean = ", ".join(f"{one.mean / 255:.3f}" for one in field.channels)
    std = ", ".join(f"{one.std / 255:.3f}" for one in field.channels)
    comma = "," if len(field.channels) == 1 else ""
    return f'<p class="h5c-muted">as an option: <code>normalize=(({mean}{comma}), ({std}{comma}))</code></p>'


def _number(value: float) -> str:
    """Return a number as short as it is still told apart.

    >>> _number(255.0), _number(0.4853215), _number(-2.1179), _number(1234567.0)
    ('255', '0.485', '-2.12', '1.23e+06')
    """
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e5 else f"{value:.3g}"


def _shuffle(survey: ShuffleSurvey | None) -> str:
    if survey is None:
        return ""
    found = [survey.stored, *(quality for _, quality in survey.windows), survey.full]
    names = ["stored", *(f"{window}" for window, _ in survey.windows), "full"]
    series = [Series("distinct chunks in a batch", [one.chunk_ratio for one in found], "s1")]
    if survey.has_labels:
        series.insert(0, Series("label entropy of a batch", [one.label_ratio or 0.0 for one in found], "s0"))
    label = f"Shuffle quality relative to a true shuffle, by window: {', '.join(names)}"
    memory = ["-", *(format_nbytes(window_nbytes(survey, window)) for window, _ in survey.windows), "-"]
    words = [
        "as stored",
        *(
            f"chunk, window {window}{' (default)' if window == survey.default_window else ''}"
            for window, _ in survey.windows
        ),
        "full",
    ]
    rows = [
        (
            word,
            held,
            "-" if one.label_ratio is None else _percent(one.label_ratio),
            _percent(one.chunk_ratio),
        )
        for word, held, one in zip(words, memory, found, strict=True)
    ]
    drawn = figure(
        line_chart(names, series, label),
        f"window: chunks that each of {survey.lanes} lanes mixes; 100 % is a true shuffle",
        series,
    )
    titles = ("shuffle", "memory", "labels", "chunks")
    lead = f"How near batches of {survey.batch_size} come to those of a true shuffle, reckoned from the index"
    beside = f"<div>{table(titles, rows, numeric=(1, 2, 3))}<p>{escape(_advice(survey))}</p></div>"
    body = f'<div class="pair">{drawn}{beside}</div>'
    return _section("shuffle", "Shuffle quality", body, lead)


def _percent(share: float) -> str:
    # A little over 100 % is chance: "random" is a mean.
    return f"{min(1.0, share):.0%}" if share > 0.995 else f"{share:.1%}"


def _advice(survey: ShuffleSurvey) -> str:
    share = survey.default.label_ratio
    if share is None:
        return 'shuffle="full" is always a true shuffle; "chunk" reads whole chunks, which suits slow disks.'
    if share >= 0.98:
        return 'Samples are stored well mixed: shuffle="chunk" is as good as "full" here.'
    return f'With the default window, shuffle="chunk" reaches {share:.0%} of a true shuffle; "full" is one.'


def _speed(rates: Sequence[Rate], load: float) -> str:
    if not rates:
        return ""
    threads = sorted({one.threads for one in rates})
    kinds = [kind for kind in ("none", "chunk", "full") if any(one.shuffle == kind for one in rates)]
    by = {(one.shuffle, one.threads): one.samples_per_s for one in rates}
    titles = {"none": "shuffle=False", "chunk": 'shuffle="chunk"', "full": 'shuffle="full"'}
    series = [
        Series(titles[kind], [by[kind, count] for count in threads], f"s{place}") for place, kind in enumerate(kinds)
    ]
    texts = [[_thousands(value) for value in one.values] for one in series]
    label = "Delivered samples per second by threads and order"
    chart = columns_chart([format_count(count, "thread") for count in threads], series, texts, label)
    rows = [(titles[kind], *(f"{by[kind, count]:,.0f}" for count in threads)) for kind in kinds]
    listed = table(
        ("order", *(format_count(count, "thread") for count in threads)), rows, tuple(range(1, len(threads) + 1))
    )
    return _section(
        "speed",
        "Delivered samples per second",
        f'<div class="pair">{figure(chart, series=series)}<div>{listed}{_busy(load)}</div></div>',
        "Measured on this machine, warm, in ready batches; h5cache bench measures your present files beside it",
    )


def _busy(load: float) -> str:
    if load < BUSY:
        return ""
    words = f"The machine was busy with other work ({load:.1f} programs for each core): left alone it delivers more."
    return f'<div class="finding warn"><p>{words}</p></div>'


def _thousands(value: float) -> str:
    return f"{value:,.0f}" if value < 1000 else f"{value / 1000:.1f}k"


def _extremes(report: Report) -> str:
    if not report.simplest:
        return ""

    def row(title: str, tiles: Sequence[tuple[Tile, int]]) -> str:
        stored = [nbytes for _, nbytes in tiles]
        sizes = f"{format_nbytes(min(stored))} to {format_nbytes(max(stored))} stored"
        return (
            f'<div class="class"><div><h3>{title}</h3><span class="h5c-muted">{sizes}</span></div>'
            f"{_row([tile for tile, _ in tiles], caption=True)}</div>"
        )

    body = row("simplest", report.simplest) + row("busiest", report.busiest)
    return _section(
        "extremes", "Simplest and busiest", body, "What compresses most and least is where odd pictures hide"
    )


def _provenance(report: Report, name: str) -> str:
    found = report.inspection
    known = dict(found.provenance)
    versions = known.pop("versions", None)
    skipped = known.pop("skipped", None)
    pairs: list[tuple[str, str]] = [("dataset", name)]
    if len(found.shards) > 1:
        sizes = [shard.nbytes for shard in found.shards]
        pairs.append(("shards", f"{len(sizes):,} of {format_nbytes(min(sizes))} to {format_nbytes(max(sizes))}"))
    if isinstance(versions, Mapping):
        own = sorted(versions.items(), key=lambda item: item[0] != "h5cache")
        pairs.append(("written by", ", ".join(f"{library} {version}" for library, version in own)))
    for key, value in known.items():
        if isinstance(value, Mapping):
            pairs += [(f"{key}: {inner}", _words(one)) for inner, one in value.items() if one not in (None, {}, [], "")]
        elif value not in (None, [], ""):
            pairs.append((key, _words(value)))
    if skipped:
        pairs.append(("skipped", f"{len(skipped):,}" if isinstance(skipped, list | dict) else str(skipped)))
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs)
    return _section("provenance", "Provenance", f'<dl class="plain">{listed}</dl>{_index(report)}')


def _index(report: Report) -> str:
    index = report.inspection.index
    if not index.has_keys or not index.first:
        return ""
    keys = [(number, row["key"]) for number, row in enumerate(index.first)]
    return f"<details><summary>First keys of the index</summary>{table(('sample', 'key'), keys)}</details>"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_words(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_words(one) for one in value)
    return str(value)
