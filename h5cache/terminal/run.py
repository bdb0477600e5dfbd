"""How a command begins and ends: help, errors in one line, exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TextIO

from h5cache.errors import ChecksumError, H5CacheError

from .console import Console, ReaderGoneError
from .text import printable

__all__ = [
    "EXIT_BAD",
    "EXIT_CODES",
    "EXIT_GOOD",
    "EXIT_INTERRUPTED",
    "EXIT_READER_GONE",
    "EXIT_TROUBLE",
    "CommandError",
    "describe_error",
    "make_parser",
    "run_cli",
    "run_guarded",
]

EXIT_GOOD = 0
#: The thing was looked at and is bad: damaged, or some inputs could not be read.
EXIT_BAD = 1
#: Wrong usage, or the thing cannot be looked at at all.
EXIT_TROUBLE = 2
EXIT_INTERRUPTED = 130
#: What a shell reports of a program whose reader went away (128 + SIGPIPE).
EXIT_READER_GONE = 141

EXIT_CODES = "exit codes: 0 good, 1 looked at and found bad, 2 wrong usage or unreadable, 130 interrupted"


class CommandError(Exception):
    """A command cannot go on; the message is all the user needs. Raised by doors, never by the library."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keep the line breaks of examples, and room for option names."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 28, "width": 100, **options})


class _Parser(argparse.ArgumentParser):
    """Say what is wrong in one line and where help is, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_TROUBLE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def make_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return a parser whose help ends with examples and exit codes. `prog` is what the user types."""
    options: dict[str, Any] = {"color": False} if sys.version_info >= (3, 14) else {}
    return _Parser(
        prog=prog,
        description=description,
        epilog=f"examples:\n{examples.rstrip()}\n\n{EXIT_CODES}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        **options,
    )


def describe_error(error: BaseException) -> str:
    """Return an error as one line: what is wrong with which file, and no number of errno."""
    if isinstance(error, OSError) and error.strerror:
        name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        text = f"{name}: {error.strerror}" if name is not None else error.strerror
    else:
        text = str(error) or type(error).__name__
    return printable(" ".join(text.split()))


def run_cli(
    command: Callable[[argparse.Namespace, Console], int],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    environ: Mapping[str, str],
) -> int:
    """Parse, run, and end as a command should; return the exit code."""

    def parse_and_run(console: Console) -> int:
        try:
            args = parser.parse_args(argv)
        except SystemExit as exc:  # --help, --version, or wrong usage: argparse has said it
            return exc.code if isinstance(exc.code, int) else EXIT_GOOD
        return command(args, console)

    return run_guarded(parse_and_run, environ)


def run_guarded(command: Callable[[Console], int], environ: Mapping[str, str]) -> int:
    """Run a command and return its exit code.

    What h5cache or the system reports is one line on stderr; any other exception is a bug and keeps its traceback.
    """
    console = Console.of(environ)
    try:
        code = command(console)
        console.flush()
        return code
    except ReaderGoneError:
        _drop_output(console.out)
        return EXIT_READER_GONE
    except KeyboardInterrupt:
        console.note("\ninterrupted")
        return EXIT_INTERRUPTED
    except ChecksumError as exc:
        console.error(describe_error(exc))
        return EXIT_BAD
    except (H5CacheError, CommandError, OSError) as exc:
        console.error(describe_error(exc))
        return EXIT_TROUBLE


def _drop_output(stream: TextIO) -> None:
    """Let the interpreter's last flush go nowhere: it would complain of the broken pipe once more."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
