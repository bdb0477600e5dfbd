"""Words for numbers, tables, colour, and how commands end."""

from __future__ import annotations

import argparse
import errno
import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5cache.errors import ChecksumError, FormatError, MissingDatasetError
from h5cache.terminal import (
    Column,
    CommandError,
    Console,
    Style,
    describe_error,
    display_width,
    format_bar,
    format_nbytes,
    format_table,
    make_parser,
    printable,
    run_cli,
    shorten,
    wants_colour,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (999_600, "1.00 MB"),
        (1.2e9, "1.20 GB"),
        (5e15, "5,000 TB"),
    ],
)
def test_bytes_have_three_digits_and_the_fitting_unit(nbytes: float, text: str) -> None:
    assert format_nbytes(nbytes) == text


def test_printable_leaves_letters_and_escapes_what_steers_a_terminal() -> None:
    assert printable("Größe 猫") == "Größe 猫"
    assert "\x1b" not in printable("\x1b[31mred\x07")
    assert printable("two\nlines") == "two\\nlines"


@given(st.text(max_size=80), st.integers(3, 40))
def test_shortened_text_fits_and_short_text_stays(text: str, width: int) -> None:
    short = shorten(text, width)
    assert display_width(short) <= max(width, 3)
    if display_width(text) <= width:
        assert short == text


@given(st.floats(0, 1), st.integers(1, 50), st.booleans())
def test_bar_never_exceeds_its_width_and_shows_anything_above_nothing(part: float, width: int, unicode: bool) -> None:
    bar = format_bar(part, width, unicode)
    assert len(bar) <= width
    assert bool(bar) == (part > 0)


def test_table_aligns_wide_characters_by_columns_on_the_screen() -> None:
    lines = format_table([Column("name"), Column("n", ">")], [["猫", "1"], ["dog", "22"]], indent=0).splitlines()
    assert {display_width(line) for line in lines} == {len("name  22")}


def test_table_that_is_too_wide_puts_its_last_column_below_each_row() -> None:
    columns, rows = [Column("a"), Column("words")], [["x", "many words in a row"]]
    assert format_table(columns, rows, width=80).splitlines()[1] == "  x  many words in a row"
    assert format_table(columns, rows, width=12).splitlines() == ["  a", "  x", "    many words in a row"]


def test_paint_does_not_change_the_alignment() -> None:
    rows = [["image", "1"], ["x", "2"]]
    painted = Style(colour=True)
    plain = format_table([Column("f"), Column("n")], rows)
    coloured = format_table([Column("f", paint=painted.cyan), Column("n")], rows)
    assert coloured.replace("\x1b[36m", "").replace("\x1b[0m", "") == plain


@pytest.mark.parametrize(
    ("stream", "environ", "colour"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(stream: io.StringIO, environ: dict[str, str], colour: bool) -> None:
    assert wants_colour(stream, environ) is colour


def test_console_escapes_what_the_stream_cannot_encode() -> None:
    raw = io.BytesIO()
    console = Console(io.TextIOWrapper(raw, "ascii"), io.StringIO())
    console.print("猫 \udcff")
    console.flush()
    assert raw.getvalue() == b"\\u732b \\udcff\n"
    assert not console.unicode


def test_progress_is_silent_unless_stderr_is_a_terminal_or_it_is_asked_for() -> None:
    for err, show, drawn in ((io.StringIO(), None, False), (Terminal(), None, True), (io.StringIO(), True, True)):
        with Console(io.StringIO(), err).progress(10, "checking", show=show) as bar:
            bar.update(10)
        assert bool(err.getvalue()) is drawn


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FormatError("a.h5: not HDF5"), "a.h5: not HDF5"),
        (MissingDatasetError(errno.ENOENT, "no such dataset", "a.h5"), "a.h5: no such dataset"),
        (PermissionError(errno.EACCES, "Permission denied", "a.h5"), "a.h5: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("libhdf5\n  says\tmuch"), "libhdf5 says much"),
        (OSError(), "OSError"),
    ],
)
def test_error_is_described_in_one_line(error: OSError, text: str) -> None:
    assert describe_error(error) == text


def run(action: Callable[[], int], argv: tuple[str, ...] = ()) -> int:
    def command(args: argparse.Namespace, console: Console) -> int:
        return action()

    return run_cli(command, make_parser("h5cache test", "Test.", "  h5cache test"), argv, {})


def fail(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FormatError("bad file"), 2),
        (CommandError("bad file"), 2),
        (OSError("bad file"), 2),
        (ChecksumError("bad file"), 1),
    ],
)
def test_expected_error_is_one_line_on_stderr(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fail(error)) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: bad file\n")


def test_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fail(KeyboardInterrupt())) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)


def test_reader_that_went_away_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def command(args: argparse.Namespace, console: Console) -> int:
        console.print("anybody?")
        return 0

    monkeypatch.setattr("sys.stdout", ClosedPipe())
    assert run_cli(command, make_parser("h5cache test", "Test.", ""), (), {}) == 141
    assert capsys.readouterr().err == ""


def test_wrong_usage_is_one_line_that_points_to_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: 0, ("--nonsense",)) == 2
    assert capsys.readouterr().err == ("h5cache test: unrecognized arguments: --nonsense (see h5cache test --help)\n")


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: 0, ("--help",)) == 0
    text = capsys.readouterr().out
    assert "examples:\n  h5cache test" in text
    assert "exit codes: 0 good" in text
