"""The console script `h5cache`: the same words as `python -m h5cache.<word>`, one door each, loaded when called."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

from h5cache import __version__
from h5cache.terminal import EXIT_CODES, EXIT_GOOD, CommandError, Console, Style, run_guarded

__all__ = ["COMMANDS", "Command", "main"]


@dataclass(frozen=True)
class Command:
    """A word of the command line and the module whose `main(argv)` answers it."""

    word: str
    module: str
    help: str


#: In the order in which people need them.
COMMANDS = (
    Command("demo", "h5cache.demo", "see it work: make pictures, convert them, train for a moment"),
    Command(
        "doctor", "h5cache.doctor", "what is wrong with these .pt or .npy files, and what h5cache would make of them"
    ),
    Command("convert", "h5cache.convert.__main__", "from pictures, tensors or arrays to a dataset"),
    Command("inspect", "h5cache.inspect", "what a dataset holds: fields, sizes, codecs, classes, provenance"),
    Command("verify", "h5cache.verify", "check every checksum, and name the samples that are damaged"),
    Command("bench", "h5cache.bench", "samples per second on your own data, beside your present files"),
    Command("report", "h5cache.report", "one HTML page: pictures, histograms, sizes"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_guarded(lambda console: _dispatch(words, console), os.environ)


def _dispatch(words: Sequence[str], console: Console) -> int:
    present = {command.word: command for command in available_commands()}
    first, rest = (words[0], list(words[1:])) if words else ("--help", [])
    if first == "help" and rest and rest[0] in present:
        first, rest = rest[0], ["--help"]
    if first in present:
        door = import_module(present[first].module)
        if first == "convert":
            return int(door.main(rest, prog="h5cache convert"))
        return int(door.main(rest))
    if first in ("--help", "-h", "help"):
        console.print(format_help(list(present.values()), console.style))
        return EXIT_GOOD
    if first in ("--version", "-V"):
        console.print(f"h5cache {__version__}")
        return EXIT_GOOD
    raise CommandError(unknown_word(first, list(present)))


def available_commands() -> list[Command]:
    """Return the commands whose module is there."""
    return [command for command in COMMANDS if _is_there(command.module)]


def format_help(commands: Sequence[Command], style: Style) -> str:
    width = max((len(command.word) for command in commands), default=0)
    lines = [
        f"{style.bold('h5cache')} {__version__}: preprocess once, keep a small HDF5 file, train at the speed of memory",
        "",
        "usage: h5cache COMMAND ...",
        "",
        *(f"  {style.cyan(f'{command.word:<{width}}')}  {command.help}" for command in commands),
        "",
        "h5cache COMMAND --help shows options and examples; python -m h5cache.COMMAND is the same.",
        EXIT_CODES,
    ]
    return "\n".join(lines)


def unknown_word(word: str, known: Sequence[str]) -> str:
    """Say that there is no such command, and which was probably meant."""
    near = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean 'h5cache {near[0]}'?" if near else f"there are {', '.join(known)}"
    return f"no command {word!r}; {meant} (see h5cache --help)"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def run() -> NoReturn:
    """The console script."""
    exit_code = main()
    # All is said and done, and the code tells it: Ctrl-C must not turn the interpreter's own end into another.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(exit_code)


if __name__ == "__main__":
    run()
