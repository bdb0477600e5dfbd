"""The result of a benchmark in words: a table with bars, what it means, one line of verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from h5cache.terminal import PLAIN, Column, Style, display_width, format_bar, format_count, format_nbytes, format_table
from h5cache.tools.bench_result import OURS, THEIRS, BenchResult, Measurement, OrderQuality, make_verdict

__all__ = ["format_bench", "way_words"]

BAR_WIDTH = 24


def format_bench(result: BenchResult, style: Style = PLAIN, *, width: int | None = None, unicode: bool = True) -> str:
    """Return all that was found, for people."""
    options = result.options
    times = format_count(options.repetitions, "measurement")
    lines = [
        f"{style.bold(result.dataset)}: {format_count(result.num_samples, 'sample')}, "
        f"{format_nbytes(result.stored_nbytes)} stored",
        style.dim(f"batches of {options.batch_size}; samples/s is the median of {times}, taken in turn"),
    ]
    for cache, title in (("warm", "warm: files in the page cache"), ("cold", "cold: page cache dropped before")):
        chosen = [one for one in result.measurements if one.cache == cache]
        if chosen:
            lines += ["", style.bold(title), _table(chosen, result, style, width, unicode)]
    lines += ["", *_meaning(result), *(f"note: {note}" for note in result.notes), ""]
    lines.append(style.bold(style.green(make_verdict(result))))
    return "\n".join(lines)


def way_words(one: Measurement, present: str | None) -> str:
    """Name a way as a user would."""
    if one.way == THEIRS:
        return present or THEIRS
    doors = {"loader": "ds.loader", "dataloader": "DataLoader(ds)", "batches": "ds.batches"}
    return f"{OURS} {doors.get(one.door, one.door)}"


def _table(chosen: Sequence[Measurement], result: BenchResult, style: Style, width: int | None, unicode: bool) -> str:
    # One scale for both tables: bars can be compared over them.
    most = max(one.median for one in result.measurements)
    columns = [
        Column("way"),
        Column("order"),
        Column("threads", ">"),
        Column("samples/s", ">", style.bold),
        Column("", paint=style.cyan),
        Column("best", ">"),
        Column("MB/s", ">"),
        Column("CPU s/1,000", ">"),
    ]
    rows = []
    for one in chosen:
        workers = one.way == THEIRS or one.door != "loader"
        threads = "auto" if one.threads is None else f"{one.threads} proc" if workers else str(one.threads)
        bar = format_bar(one.median / most if most else 0.0, BAR_WIDTH, unicode)
        rows.append(
            [
                way_words(one, result.present),
                one.order,
                "" if one.order == "own" else threads,
                f"{one.median:,.0f}",
                bar + " " * (BAR_WIDTH - len(bar)),
                f"{one.best:,.0f}",
                f"{one.mb_per_s:,.0f}",
                "" if one.cpu_s_per_1000 is None else f"{one.cpu_s_per_1000:.2f}",
            ]
        )
    return _fitting_table(columns, rows, style, width)


def _fitting_table(columns: list[Column], rows: list[list[str]], style: Style, width: int | None) -> str:
    """Return a table that is not wider than the terminal: without bars, then without what matters least."""
    table = format_table(columns, rows, style)
    for title in ("", "best", "MB/s"):
        plain = format_table(columns, rows)
        if width is None or max(map(display_width, plain.splitlines())) <= width:
            break
        place = [column.title for column in columns].index(title)
        columns = columns[:place] + columns[place + 1 :]
        rows = [row[:place] + row[place + 1 :] for row in rows]
        table = format_table(columns, rows, style)
    return table


def _meaning(result: BenchResult) -> list[str]:
    mixed = ", ".join(f"{one.order} {_quality(one)}" for one in result.quality)
    lines = [f"mixing of batches (100% is a true shuffle): {mixed}"] if mixed else []
    for wait in result.steps:
        name = "h5cache" if wait.way == OURS else "your way"
        lines.append(
            f"a training step of {wait.step_ms:g} ms waits {wait.wait_ms:.1f} ms with {name}: "
            f"the GPU idles {wait.share:.0%} of the time"
        )
    return lines


def _quality(one: OrderQuality) -> str:
    # Labels are what training sees; chunks are the stricter measure where there are none.
    return f"{one.chunk_ratio if one.label_ratio is None else one.label_ratio:.0%}"
