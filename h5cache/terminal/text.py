"""Words for numbers, safe and measured text, colour, tables, bars. Pure: strings in, strings out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "PLAIN",
    "Column",
    "Style",
    "display_width",
    "format_bar",
    "format_count",
    "format_duration",
    "format_nbytes",
    "format_ratio",
    "format_table",
    "printable",
    "shorten",
]


def format_nbytes(nbytes: float) -> str:
    """Return a size as disks are sold: powers of 1000, three digits.

    >>> format_nbytes(999), format_nbytes(1_234), format_nbytes(150_528_000), format_nbytes(2e12)
    ('999 B', '1.23 kB', '151 MB', '2.00 TB')
    """
    if abs(nbytes) < 999.5:
        return f"{nbytes:.0f} B"
    value, unit = nbytes / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if abs(value) >= 999.5:
            value, unit = value / 1000, larger
    return f"{_three_digits(value)} {unit}"


def format_count(count: int, noun: str = "", plural: str = "") -> str:
    """Return a number with its noun.

    >>> format_count(1, "sample"), format_count(12_345, "sample"), format_count(2, "class", "classes")
    ('1 sample', '12,345 samples', '2 classes')
    """
    word = noun if count == 1 else plural or noun + "s"
    return f"{count:,} {word}" if noun else f"{count:,}"


def format_ratio(ratio: float) -> str:
    """Return how many times smaller something is.

    >>> format_ratio(1.871), format_ratio(23.4), format_ratio(1500)
    ('1.87x', '23.4x', '1,500x')
    """
    return f"{_three_digits(ratio)}x"


def format_duration(seconds: float) -> str:
    """Return a time span.

    >>> format_duration(0.0042), format_duration(12.34), format_duration(125), format_duration(7_380)
    ('4.2 ms', '12.3 s', '2 min 5 s', '2 h 3 min')
    """
    if seconds < 0.9995:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _three_digits(value: float) -> str:
    places = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{places}f}"


# Text


def printable(text: object) -> str:
    r"""Return text without control characters: names in a file somebody sent must not steer the terminal.

    >>> printable("cat\x1b[2J\n")
    'cat\\x1b[2J\\n'
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


def display_width(text: str) -> int:
    """Return the columns that text takes on a terminal: Chinese and emoji two each, combining marks none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def shorten(text: str, width: int) -> str:
    """Return text of at most `width` columns; the middle goes, because paths are told apart by their ends.

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if display_width(text) <= width:
        return text
    head, tail = list(text[: len(text) // 2]), list(text[len(text) // 2 :])
    while head and tail and display_width("".join(head + tail)) > width - 1:
        if len(head) > len(tail):
            head.pop()
        else:
            tail.pop(0)
    return "".join(head) + "…" + "".join(tail)


@dataclass(frozen=True)
class Style:
    """Paint text, or leave it alone where `colour` is False. Pad before painting: the codes have no width."""

    colour: bool = False

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def red(self, text: str) -> str:
        return self._paint("31", text)

    def green(self, text: str) -> str:
        return self._paint("32", text)

    def yellow(self, text: str) -> str:
        return self._paint("33", text)

    def cyan(self, text: str) -> str:
        return self._paint("36", text)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


PLAIN = Style()


@dataclass(frozen=True)
class Column:
    """One column of a table. Numbers go to the right (`align=">"`)."""

    title: str
    align: str = "<"
    paint: Callable[[str], str] | None = None


def format_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    style: Style = PLAIN,
    *,
    width: int | None = None,
    indent: int = 2,
) -> str:
    """Return rows as a table, columns two spaces apart.

    Where it is wider than `width`, the last column moves to a line of its own below each row: it is the one to put
    words in.

    >>> print(format_table([Column("name"), Column("size", ">")], [["image", "12 MB"], ["label", "8 kB"]], indent=0))
    name    size
    image  12 MB
    label   8 kB
    """
    titles = [column.title for column in columns]
    widths = [max(display_width(line[i]) for line in [titles, *rows]) for i in range(len(columns))]
    total = indent + sum(widths) + 2 * (len(widths) - 1)
    folded = width is not None and total > width and len(columns) > 1
    shown = len(columns) - 1 if folded else len(columns)
    lines = [_table_line(titles[:shown], columns, widths, indent, style.dim)]
    for row in rows:
        lines.append(_table_line(row[:shown], columns, widths, indent, None))
        if folded and row[-1]:
            lines.append(" " * (indent + 2) + (columns[-1].paint or style.dim)(row[-1]))
    return "\n".join(lines)


def _table_line(
    cells: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    indent: int,
    paint: Callable[[str], str] | None,
) -> str:
    parts = []
    for place, (cell, column, width) in enumerate(zip(cells, columns, widths, strict=False)):
        space = " " * (width - display_width(cell))
        brush = paint or column.paint
        text = brush(cell) if brush else cell
        last = place == len(cells) - 1
        parts.append(space + text if column.align == ">" else text if last else text + space)
    return (" " * indent + "  ".join(parts)).rstrip()


_EIGHTHS: tuple[str, ...] = ("", *"▏▎▍▌▋▊▉")


def format_bar(part: float, width: int, unicode: bool = True) -> str:
    """Return a bar of `part` (0 to 1) of `width` columns, to an eighth of a column; anything above 0 shows.

    >>> format_bar(0.5, 8), format_bar(0.001, 8), format_bar(0.5, 8, unicode=False)
    ('████', '▏', '####')
    """
    part = min(1.0, max(0.0, part))
    if not unicode:
        return "#" * (max(1, round(part * width)) if part else 0)
    eighths = max(1, round(part * width * 8)) if part else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
