"""`python -m h5cache.demo`: see it work, in half a minute and without any data. The work is in `h5cache.tools`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not __package__:
    # Run by its path rather than by -m: its folder comes first, and there `inspect` is ours, not Python's own.
    sys.path[0] = __file__.rpartition("/h5cache/")[0] or ".."

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from h5cache.terminal import EXIT_GOOD, CommandError, Console, format_duration, make_parser, run_cli

__all__ = ["main"]

EXAMPLES = """\
  h5cache demo                        about half a minute; leaves nothing behind
  h5cache demo --keep demo            keep pictures, .pt files and demo.h5, to play with
  h5cache demo --samples 2000 --seconds-train 10
"""

#: Fewer would not fill the batches of an epoch.
FEWEST_SAMPLES = 16


def main(argv: Sequence[str] | None = None) -> int:
    return run_cli(_run, _parser(), argv, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "h5cache demo",
        "See it work: make pictures, convert them, compare them with .pt files, train a small network for a moment.",
        EXAMPLES,
    )
    parser.add_argument("--keep", metavar="DIR", help="keep all files there (default: a temporary folder)")
    parser.add_argument("--samples", type=_samples, default=600, metavar="N", help="pictures to make (600)")
    parser.add_argument("--seconds-train", type=_seconds, default=3.0, metavar="S", help="of each training (3)")
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    began = time.monotonic()
    if args.keep is not None and os.path.isdir(args.keep) and os.listdir(args.keep):
        raise CommandError(f"--keep {args.keep}: the folder is not empty; choose a new one")
    console.print(f"{console.style.bold('h5cache demo')}: generated pictures, no network, nothing is installed")
    console.print()
    console.flush()
    # After the first line: loading torch takes seconds, in which nothing would be seen.
    from h5cache.tools.demo import DemoOptions, run_demo
    from h5cache.tools.demo_text import format_demo, format_next_steps

    with _ended_cleanly(), _folder(args.keep) as folder:
        options = DemoOptions(num_samples=args.samples, seconds_train=args.seconds_train)
        result = run_demo(folder, options, console)
    console.print(format_demo(result, console.style, unicode=console.unicode))
    console.print()
    console.print(format_next_steps(console.style))
    console.print()
    left = "nothing is left behind" if args.keep is None else f"all files are in {args.keep}"
    console.print(console.style.dim(f"took {format_duration(time.monotonic() - began)}; {left}"))
    return EXIT_GOOD


@contextmanager
def _folder(keep: str | None) -> Iterator[str]:
    if keep is not None:
        os.makedirs(keep, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="h5cache-demo-") as folder:
        yield folder


@contextmanager
def _ended_cleanly() -> Iterator[None]:
    """Let SIGTERM end the demonstration as Ctrl-C does: its files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _samples(text: str) -> int:
    value = int(text)
    if value < FEWEST_SAMPLES:
        raise argparse.ArgumentTypeError(f"at least {FEWEST_SAMPLES} samples are needed, got {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise ValueError(text)
    return value


if __name__ == "__main__":
    sys.exit(main())
