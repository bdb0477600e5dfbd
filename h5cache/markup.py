"""Pieces of HTML for reports and notebooks: escaped text, tables, bars and inline SVG charts. Strings in, strings out.

Everything works without scripts, network or a stylesheet of the surroundings. Colours are CSS variables with defaults
that read well on light and dark ground alike: a notebook takes the defaults, the report's page sets both themes.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "PIECES_CSS",
    "Bar",
    "Series",
    "bars",
    "columns_chart",
    "data_uri",
    "escape",
    "figure",
    "histogram_chart",
    "in_notebook",
    "line_chart",
    "table",
]

#: Units of the charts' own coordinates; a chart is as wide as its column, up to `max-width`, so text stays readable.
CHART_WIDTH = 460
CHART_HEIGHT = 190
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 16, 30

# What the variables fall back to is chosen for 3:1 contrast on white and on near-black: notebooks have either ground.
PIECES_CSS = """
.h5c{color:inherit;font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;max-width:62rem}
.h5c h4{font-size:15px;margin:0 0 .2em;font-weight:650}
.h5c p{margin:.2em 0 .7em}
.h5c .h5c-muted,.h5c-muted{color:var(--h5c-muted,inherit);font-size:.92em}
.h5c-scroll{overflow-x:auto;margin:.4em 0 .9em}
.h5c-scroll table.h5c-table{border-collapse:collapse;width:auto;margin:0;font-size:.93em;border:0}
.h5c-scroll .h5c-table th,.h5c-scroll .h5c-table td{padding:.3em .9em .3em 0;text-align:left;border:0;
border-bottom:1px solid var(--h5c-line,rgba(128,128,128,.35));white-space:nowrap;background:none;vertical-align:top}
.h5c-scroll .h5c-table th{font-weight:600;color:var(--h5c-muted,inherit)}
.h5c-scroll .h5c-table .h5c-num{text-align:right;font-variant-numeric:tabular-nums}
.h5c-scroll .h5c-table td:last-child,.h5c-scroll .h5c-table th:last-child{padding-right:0}
.h5c-bars{display:grid;grid-template-columns:minmax(4em,max-content) minmax(5em,1fr) max-content;gap:.28em .8em;
align-items:center;margin:.4em 0 .9em;max-width:34rem;font-size:.93em;line-height:1.35}
.h5c-bars .h5c-name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:12em}
.h5c-bars .h5c-value{font-variant-numeric:tabular-nums;text-align:right;color:var(--h5c-muted,inherit)}
.h5c-track{display:block;height:.8em;border-radius:4px;background:var(--h5c-soft,rgba(128,128,128,.14))}
.h5c-fill{display:block;height:100%;min-width:2px;border-radius:4px;background:var(--h5c-accent,#3d87e0)}
.h5c-fill.h5c-quiet{background:var(--h5c-faint,rgba(128,128,128,.55))}
.h5c-figure{margin:.4em 0 .9em;padding:0}
.h5c-figure figcaption{color:var(--h5c-muted,inherit);font-size:.88em}
.h5c-chart{display:block;width:100%;max-width:34rem;height:auto;overflow:visible}
.h5c-chart text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--h5c-muted,currentColor)}
.h5c-chart text.h5c-strong{fill:var(--h5c-ink,currentColor);font-weight:600}
.h5c-chart .h5c-rule{stroke:var(--h5c-line,rgba(128,128,128,.35));stroke-width:1;fill:none}
.h5c-chart .h5c-line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.h5c-s0{--h5c-c:var(--h5c-accent,#3d87e0)}.h5c-s1{--h5c-c:var(--h5c-second,#c0792a)}
.h5c-s2{--h5c-c:var(--h5c-third,#4b9a63)}
.h5c-red{--h5c-c:var(--h5c-chan-r,#d9534a)}.h5c-green{--h5c-c:var(--h5c-chan-g,#3f9a55)}
.h5c-blue{--h5c-c:var(--h5c-chan-b,#4a86e0)}.h5c-grey{--h5c-c:var(--h5c-chan-k,#888f98)}
.h5c-chart .h5c-area{fill:var(--h5c-c);fill-opacity:.2;stroke:var(--h5c-c);stroke-width:1.5}
.h5c-chart .h5c-line{stroke:var(--h5c-c)}.h5c-chart .h5c-dot,.h5c-chart .h5c-column{fill:var(--h5c-c)}
.h5c-key{display:flex;flex-wrap:wrap;gap:.1em 1.1em;font-size:.88em;color:var(--h5c-muted,inherit)}
.h5c-key i{display:inline-block;width:.75em;height:.75em;border-radius:3px;margin-right:.4em;background:var(--h5c-c)}
.h5c-grid{display:grid;gap:10px;margin:.4em 0 .9em;padding:0;list-style:none}
.h5c-strip{display:flex;flex-wrap:wrap;gap:8px;margin:.4em 0 .9em;padding:0;list-style:none}
.h5c-tile{margin:0;padding:0;min-width:0;list-style:none;display:block}
.h5c-tile img{display:block;width:100%;height:auto;border-radius:6px;margin:0;background:var(--h5c-soft,#8882)}
.h5c-tile img.h5c-pixels{image-rendering:pixelated}
.h5c-tile span{display:block;font-size:12px;line-height:1.35;margin-top:3px;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap;color:var(--h5c-muted,inherit)}
.h5c-strip .h5c-tile{width:84px}
"""


def escape(text: object) -> str:
    r"""Return text that is safe between tags and in quoted attributes; control characters are spelt out.

    >>> escape('<b title="x">\x00')
    '&lt;b title=&quot;x&quot;&gt;\\x00'
    """
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))
    return html.escape(shown, quote=True)


def data_uri(data: bytes, kind: str) -> str:
    """Return bytes as an address that a page carries in itself; `kind` is "png" or "jpeg"."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def in_notebook(body: str) -> str:
    """Return pieces as one output of a notebook, with their style."""
    return f'<div class="h5c"><style>{PIECES_CSS}</style>{body}</div>'


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """Return a table that scrolls sideways where it is too wide. `numeric` columns go to the right."""

    def line(cells: Sequence[object], tag: str, scope: str) -> str:
        kinds = [' class="h5c-num"' if place in numeric else "" for place in range(len(cells))]
        parts = [f"<{tag}{scope}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)]
        return f"<tr>{''.join(parts)}</tr>"

    head = line(titles, "th", ' scope="col"')
    body = "".join(line(row, "td", "") for row in rows)
    return f'<div class="h5c-scroll"><table class="h5c-table"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart; `text` says the value in words."""

    name: str
    value: float
    text: str
    quiet: bool = False


def bars(rows: Sequence[Bar], most: float | None = None) -> str:
    """Return horizontal bars: names, bars and values stay readable at any width."""
    longest = max((row.value for row in rows), default=0.0) if most is None else most
    parts = []
    for row in rows:
        share = 100 * min(1.0, row.value / longest) if longest > 0 else 0.0
        fill = f'<span class="h5c-fill{" h5c-quiet" if row.quiet else ""}" style="width:{share:.2f}%"></span>'
        parts.append(
            f'<span class="h5c-name" title="{escape(row.name)}">{escape(row.name)}</span>'
            f'<span class="h5c-track" aria-hidden="true">{fill if row.value > 0 else ""}</span>'
            f'<span class="h5c-value">{escape(row.text)}</span>'
        )
    return f'<div class="h5c-bars">{"".join(parts)}</div>'


@dataclass(frozen=True)
class Series:
    """Values to draw. `colour` is a class of PIECES_CSS: s0, s1, s2, red, green, blue, grey."""

    name: str
    values: Sequence[float]
    colour: str = "s0"


def histogram_chart(
    series: Sequence[Series], ticks: Sequence[tuple[float, str]], label: str, cut_spikes: bool = True
) -> str:
    """Return overlaid histograms. `ticks` are (place from 0 to 1, text) along the axis.

    Heights are relative to the largest bin of all series, but for spikes: where one bin dwarfs the rest (black borders,
    say), it is cut so that the shape of the others shows, and marked by an arrow.
    """
    if not series or not any(len(one.values) for one in series):
        return ""
    every = sorted(value for one in series for value in one.values)
    top, full = every[-1] or 1.0, max(every[int(0.97 * (len(every) - 1))], 0.0)
    most = min(top, 1.6 * full) if full > 0 and cut_spikes else top
    parts = []
    for one in series:
        step = (CHART_WIDTH - 2 * RIGHT) / len(one.values)
        points = [f"M{RIGHT},{CHART_HEIGHT - BOTTOM}"]
        for place, value in enumerate(one.values):
            high = _height(min(value, most) / most)
            left = RIGHT + place * step
            points.append(f"L{left:.1f},{high:.1f}L{left + step:.1f},{high:.1f}")
            if value > most * 1.02:
                parts.append(f'<text x="{left + step / 2:.1f}" y="{TOP - 4}" text-anchor="middle">↑</text>')
        points.append(f"L{CHART_WIDTH - RIGHT},{CHART_HEIGHT - BOTTOM}Z")
        parts.append(f'<path class="h5c-area h5c-{one.colour}" d="{"".join(points)}"/>')
    parts.append(_rule(RIGHT, CHART_HEIGHT - BOTTOM, CHART_WIDTH - RIGHT, CHART_HEIGHT - BOTTOM))
    for share, text in ticks:
        x = RIGHT + share * (CHART_WIDTH - 2 * RIGHT)
        anchor = "start" if share <= 0 else "end" if share >= 1 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{CHART_HEIGHT - 9}" text-anchor="{anchor}">{escape(text)}</text>')
    return _svg(parts, label)


def line_chart(categories: Sequence[str], series: Sequence[Series], label: str) -> str:
    """Return lines of shares (0 to 1) over evenly spaced categories; values of a single series are written."""
    if not categories:
        return ""
    places = [_across(number, len(categories)) for number in range(len(categories))]
    parts = []
    for share in (0.0, 0.5, 1.0):
        parts.append(_rule(LEFT, _height(share), CHART_WIDTH - RIGHT, _height(share)))
        parts.append(f'<text x="{LEFT - 8}" y="{_height(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for one in series:
        heights = [_height(min(1.0, max(0.0, value))) for value in one.values]
        path = "L".join(f"{x:.1f},{y:.1f}" for x, y in zip(places, heights, strict=True))
        dots = [
            f'<circle class="h5c-dot h5c-{one.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
            for x, y in zip(places, heights, strict=True)
        ]
        parts += [f'<path class="h5c-line h5c-{one.colour}" d="M{path}"/>', *dots]
        if len(series) == 1:  # of several, numbers would lie over lines
            parts += [
                f'<text class="h5c-strong" x="{x:.1f}" y="{y - 8 if y > TOP + 8 else y + 18:.1f}" '
                f'text-anchor="middle">{value:.0%}</text>'
                for x, y, value in zip(places, heights, one.values, strict=True)
            ]
    parts += _category_texts(categories, places)
    return _svg(parts, label)


def columns_chart(
    categories: Sequence[str], series: Sequence[Series], texts: Sequence[Sequence[str]], label: str
) -> str:
    """Return groups of columns, one group per category; `texts[series][category]` stands over each."""
    if not categories or not series:
        return ""
    most = max((value for one in series for value in one.values), default=0.0) or 1.0
    room = (CHART_WIDTH - 2 * RIGHT) / len(categories)
    width = min(46.0, 0.82 * room / len(series))
    parts = []
    places = []
    for place in range(len(categories)):
        middle = RIGHT + (place + 0.5) * room
        places.append(middle)
        for number, one in enumerate(series):
            top = _height(max(0.0, one.values[place]) / most)
            x = middle + (number - len(series) / 2) * width
            height = CHART_HEIGHT - BOTTOM - top
            parts.append(
                f'<rect class="h5c-column h5c-{one.colour}" x="{x + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" '
                f'height="{height:.1f}" rx="2"/>'
                f'<text x="{x + width / 2:.1f}" y="{top - 4:.1f}" text-anchor="middle">'
                f"{escape(texts[number][place])}</text>"
            )
    parts.append(_rule(RIGHT, CHART_HEIGHT - BOTTOM, CHART_WIDTH - RIGHT, CHART_HEIGHT - BOTTOM))
    parts += _category_texts(categories, places)
    return _svg(parts, label)


def figure(chart: str, caption: str = "", series: Sequence[Series] = ()) -> str:
    """Return a chart with a key of its series, where there are several, and a line below."""
    keys = "".join(f'<span class="h5c-{one.colour}"><i></i>{escape(one.name)}</span>' for one in series)
    key = f'<div class="h5c-key">{keys}</div>' if len(series) > 1 else ""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="h5c-figure">{key}{chart}{below}</figure>'


def _height(share: float) -> float:
    return CHART_HEIGHT - BOTTOM - share * (CHART_HEIGHT - TOP - BOTTOM)


def _across(number: int, count: int) -> float:
    room = CHART_WIDTH - LEFT - RIGHT - 36
    return LEFT + 18 + (room * number / (count - 1) if count > 1 else room / 2)


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="h5c-rule" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _category_texts(categories: Sequence[str], places: Sequence[float]) -> list[str]:
    return [
        f'<text x="{x:.1f}" y="{CHART_HEIGHT - 9}" text-anchor="middle">{escape(name)}</text>'
        for x, name in zip(places, categories, strict=True)
    ]


def _svg(parts: Sequence[str], label: str) -> str:
    return (
        f'<svg class="h5c-chart" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )
