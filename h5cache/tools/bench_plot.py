"""The result of a benchmark as an SVG picture: bars that README, notebook and browser show alike. No libraries.

SVG by hand, because it is one page of code, looks sharp everywhere, and needs no plotting library.
"""

from __future__ import annotations

from html import escape

from h5cache.tools.bench_result import THEIRS, BenchResult, Measurement, make_verdict
from h5cache.tools.bench_text import way_words

__all__ = ["plot_bench"]

WIDTH, LEFT, RIGHT, ROW, BAR, TOP = 860, 300, 110, 30, 20, 64
OURS_COLOUR, THEIRS_COLOUR = "#0f7b8a", "#c2603a"
#: Readable on white and on black: GitHub shows pictures on both.
STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #24292f } .title { font-size: 17px; font-weight: 600 }
.small { font-size: 12px; fill: #57606a } rect.page { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9da7b3 } rect.page { fill: #0d1117 } }"""


def plot_bench(result: BenchResult) -> str:
    """Return an SVG document: one bar per measurement."""
    rows = result.measurements
    most = max((one.median for one in rows), default=1.0) or 1.0
    height = TOP + ROW * len(rows) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(make_verdict(result))}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        '<text class="title" x="20" y="30">samples delivered per second</text>',
        f'<text class="small" x="20" y="49">batches of {result.options.batch_size}, median of '
        f"{result.options.repetitions}; {result.num_measured:,} samples</text>",
    ]
    for number, one in enumerate(rows):
        y = TOP + ROW * number
        length = max(1.0, (WIDTH - LEFT - RIGHT) * one.median / most)
        colour = THEIRS_COLOUR if one.way == THEIRS else OURS_COLOUR
        opacity = "0.55" if one.cache == "cold" else "1"
        middle = y + BAR - 5
        parts += [
            f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(_label(one, result.present))}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3" fill="{colour}" '
            f'opacity="{opacity}"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{middle}">{one.median:,.0f}</text>',
        ]
    parts += [f'<text class="small" x="20" y="{height - 16}">{escape(make_verdict(result))}</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def _label(one: Measurement, present: str | None) -> str:
    words = [way_words(one, present)]
    if one.way != THEIRS:
        words.append(one.order)
    if one.threads is not None:
        words.append(f"×{one.threads}")
    return " ".join(words) + (", cold" if one.cache == "cold" else "")
