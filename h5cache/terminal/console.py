"""Where a command prints: results, complaints, progress; colour on terminals only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from .text import PLAIN, Style

__all__ = ["PIPE_WIDTH", "Console", "ReaderGoneError", "wants_colour"]

#: Lines of a pipe or a file: readable in a log, and the same on every machine.
PIPE_WIDTH = 140


class ReaderGoneError(Exception):
    """Nobody reads our output any more (`| head`)."""


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Say whether to colour a stream: terminals only, and not where NO_COLOR (https://no-color.org) asks not to."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


@dataclass(frozen=True)
class Console:
    """Where a command prints: results to `out`, errors and progress to `err`. Made by `run_cli`."""

    out: TextIO
    err: TextIO
    style: Style = PLAIN
    err_style: Style = PLAIN
    width: int = PIPE_WIDTH

    @classmethod
    def of(cls, environ: Mapping[str, str], out: TextIO | None = None, err: TextIO | None = None) -> Console:
        # Python has None for a stream that was closed before it began (`>&-`).
        out, err = out or sys.stdout or _nowhere(), err or sys.stderr or _nowhere()
        return cls(
            out,
            err,
            Style(wants_colour(out, environ)),
            Style(wants_colour(err, environ)),
            _stream_width(out, environ),
        )

    @property
    def unicode(self) -> bool:
        """False where the stream's encoding has no bars."""
        try:
            "█▏…".encode(self.out.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def print(self, text: str = "") -> None:
        """Print a result. Characters that the stream cannot show are escaped rather than fatal."""
        encoding = self.out.encoding or "utf-8"
        safe = text.encode(encoding, "backslashreplace").decode(encoding)
        with _noticing_the_reader():
            self.out.write(safe + "\n")

    def flush(self) -> None:
        with _noticing_the_reader():
            self.out.flush()

    def note(self, text: str) -> None:
        """Say something beside the results."""
        self._complain(text)

    def warn(self, text: str) -> None:
        self._complain(f"{self.err_style.yellow('warning:')} {text}")

    def error(self, text: str) -> None:
        self._complain(f"{self.err_style.red('error:')} {text}")

    def progress(self, total: int, what: str, unit: str = "sample", show: bool | None = None) -> Any:
        """Return a tqdm bar on stderr, a context manager: `bar.update(n)`. `show` None: only on terminals.

        Unit "B" shows sizes.
        """
        from tqdm import tqdm

        sizes = {"unit_scale": True, "unit_divisor": 1000} if unit == "B" else {"unit_scale": total >= 100_000}
        shown = self.err.isatty() if show is None else show
        return tqdm(
            total=total,
            desc=what,
            unit=unit if unit == "B" else f" {unit}s",
            file=self.err,
            disable=not shown,
            dynamic_ncols=True,
            leave=False,
            ascii=None if self.unicode else True,
            **sizes,
        )

    def _complain(self, text: str) -> None:
        # Results first, so that both streams read in order on a terminal; where one is closed, nobody is there to tell.
        with suppress(OSError, ValueError):
            self.out.flush()
        with suppress(OSError, ValueError):
            self.err.write(text + "\n")
            self.err.flush()


def _stream_width(stream: TextIO, environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PIPE_WIDTH
    except (OSError, ValueError):
        return PIPE_WIDTH


@contextmanager
def _noticing_the_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as exc:
        raise ReaderGoneError from exc


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
