"""`python -m h5cache.convert SRC OUT`: the command line of `convert_dataset`. Words in, words out; no logic."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from h5cache.convert.signals import Signals, Terminated
from h5cache.terminal import (
    EXIT_BAD,
    EXIT_GOOD,
    EXIT_INTERRUPTED,
    Column,
    Console,
    describe_error,
    format_count,
    format_duration,
    format_nbytes,
    format_ratio,
    format_table,
    make_parser,
    printable,
    run_cli,
)

__all__ = ["main"]

#: 128 + SIGTERM, as shells report it.
EXIT_TERMINATED = 143

EXAMPLES = """\
  {prog} photos/ train.h5                               class folders to one file, 3x224x224 uint8
  {prog} photos/ train/ --shard-size 1GB                a folder of shards: needs the disk space once
  {prog} photos/ data.h5 --split train=0.9,val=0.1      data-train.h5 and data-val.h5
  {prog} photos/ train.h5 --estimate                    size, time and speed, before anything is written
  {prog} photos/ train.h5 --transform my.module:crop    own preprocessing, sample by sample
  {prog} photos/ train.h5 --on-error skip               after a report of bad files: publish without them

Interrupted, killed or failed? Run the same command again: finished parts are kept and not converted again.
It ends with 1 where inputs were bad or the conversion failed, with 143 where it was told to end (SIGTERM)."""


def main(argv: Sequence[str] | None = None, prog: str = "python -m h5cache.convert") -> int:
    signals = Signals()
    # From the first: the parser's choices load most of the package, which takes longer than many a second thought.
    with signals.handled():
        try:
            return run_cli(partial(_run, signals), _parser(prog), argv, os.environ)
        except KeyboardInterrupt as exc:
            return _say_stopped(Console.of(os.environ), exc)


def _parser(prog: str) -> argparse.ArgumentParser:
    from h5cache.codecs import CODECS
    from h5cache.convert.options import ON_ERROR
    from h5cache.convert.pictures import COLORS, DTYPES, FITS, LAYOUTS
    from h5cache.convert.sources import SOURCES

    parser = make_parser(prog, "Convert a source to a dataset that trains fast.", EXAMPLES.format(prog=prog))
    parser.add_argument(
        "source", metavar="SRC", help="a folder of pictures, a CSV list, .npy, .npz or .pt files, a dataset"
    )
    parser.add_argument("out", metavar="OUT", help="the dataset: one file if it ends in .h5, else a folder of shards")

    # `PictureOptions` has the defaults: one that is given counts as given, even if it says the same.
    pictures = parser.add_argument_group("pictures", argument_default=argparse.SUPPRESS)
    pictures.add_argument("--resize", type=_size, metavar="N", help="short side before the crop; 0: as it is (256)")
    pictures.add_argument("--size", type=_size, metavar="N", help="side of the crop; 0: no crop (224)")
    pictures.add_argument("--fit", choices=FITS, help="how a picture fits a square (crop)")
    pictures.add_argument("--layout", choices=LAYOUTS, help="HWC is read as channels_last (CHW)")
    pictures.add_argument("--color", choices=COLORS, help="(rgb)")
    pictures.add_argument("--dtype", choices=DTYPES, help="(uint8)")
    pictures.add_argument(
        "--normalize", metavar="WHICH", help="imagenet, or MEAN,STD; needs a float dtype, is stored exactly"
    )

    storage = parser.add_argument_group("storage")
    storage.add_argument("--codec", choices=("auto", *CODECS), default="auto", help="(auto: by the first samples)")
    storage.add_argument("--split", metavar="SPLIT", help="train=0.9,val=0.1: one dataset each, stratified by class")
    storage.add_argument(
        "--shard-size", type=_shard_size, metavar="SIZE", help="of a folder's shards: 4096 (samples) or 512MB"
    )
    storage.add_argument("--seed", type=int, default=0, metavar="N", help="of the order and the splits (0)")
    storage.add_argument("--no-shuffle", action="store_true", help="keep the source's order")
    storage.add_argument("--overwrite", action="store_true", help="replace OUT, at the very end")

    own = parser.add_argument_group("own preprocessing")
    own.add_argument("--transform", metavar="MODULE:FUNCTION", help="called with each sample, a dict of its fields")
    own.add_argument("--batch-transform", metavar="MODULE:FUNCTION", help="called with whole batches")
    own.add_argument("--batch-size", type=int, default=256, metavar="N", help="samples of such a batch (256)")
    own.add_argument("--source", dest="kind", choices=tuple(SOURCES), help="what SRC is, where it is not recognised")
    own.add_argument("--fields", type=_names, metavar="A,B", help="names of the fields, where samples are tuples")

    running = parser.add_argument_group("running")
    running.add_argument("--workers", type=int, metavar="N", help="processes (default: the cores this process may use)")
    running.add_argument(
        "--on-error",
        choices=ON_ERROR,
        default="report",
        help="bad inputs: list them and publish nothing, or skip them (report)",
    )
    running.add_argument(
        "--estimate", action="store_true", help="convert 64 samples, print what to expect, write nothing"
    )
    running.add_argument("--force", action="store_true", help="go on although the disk seems too small")
    running.add_argument(
        "--part-samples", type=int, metavar="N", help="samples of a part of a file: what a kill loses (1024)"
    )
    running.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, default=None, help="default: on terminals"
    )
    running.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _run(signals: Signals, args: argparse.Namespace, console: Console) -> int:
    from h5cache.convert.problems import BadInputsError, ConversionFailedError

    with _notes(console):
        try:
            signals.check()
            return _estimate(args, console) if args.estimate else _convert(args, console, signals.check)
        except BadInputsError as exc:
            console.error(f"{format_count(len(exc.bad), 'sample')} of {exc.num_samples:,} could not be converted:")
            for one in exc.bad:
                console.note(f"  {printable(one)}")
            console.note(
                "nothing is published; all others are converted and kept. Repair these and run the same command"
            )
            console.note("again, or add --on-error skip to publish at once without them")
            return EXIT_BAD
        except ConversionFailedError as exc:
            console.error(describe_error(exc))
            return EXIT_BAD
        except KeyboardInterrupt as exc:
            return _say_stopped(console, exc)


def _say_stopped(console: Console, exc: KeyboardInterrupt) -> int:
    """Say how to go on; return the exit code."""
    # The conversion's own exception says what is kept; any other came before it, or while it tidied up.
    console.note(f"\n{exc}" if str(exc) else "\nstopped; run the same command again to go on")
    ended = isinstance(exc, Terminated) or isinstance(exc.__cause__, Terminated)
    return EXIT_TERMINATED if ended else EXIT_INTERRUPTED


def _dataset_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the dataset is to be: a conversion and its estimate are told the same."""
    from h5cache.convert.pictures import PictureOptions

    pictures = [field.name for field in fields(PictureOptions)]
    return {
        **{name: getattr(args, name) for name in pictures if hasattr(args, name)},
        "kind": args.kind,
        "transform": args.transform,
        "batch_transform": args.batch_transform,
        "batch_size": args.batch_size,
        "fields": args.fields,
        "codec": args.codec,
        "workers": args.workers,
        "seed": args.seed,
        "shuffle": not args.no_shuffle,
        "split": args.split,
        "shard_size": args.shard_size,
        "part_samples": args.part_samples,
    }


def _convert(args: argparse.Namespace, console: Console, check_stop: Callable[[], None]) -> int:
    from h5cache.convert.api import convert_dataset

    started = time.monotonic()
    result = convert_dataset(
        args.source,
        args.out,
        **_dataset_options(args),
        on_error=args.on_error,
        overwrite=args.overwrite,
        force=args.force,
        progress=args.progress,
        check_stop=check_stop,
    )
    if args.json:
        _print_json(console, {**vars(result), "skipped": [vars(one) for one in result.skipped]})
        return EXIT_GOOD
    for one in result.skipped:
        console.note(f"skipped {printable(one)}")
    size, took = format_nbytes(result.nbytes), format_duration(time.monotonic() - started)
    console.print(f"{', '.join(result.paths)}: {format_count(result.num_samples, 'sample')}, {size}, {took}")
    return EXIT_GOOD


def _estimate(args: argparse.Namespace, console: Console) -> int:
    from h5cache.convert.api import estimate_dataset

    found = estimate_dataset(args.source, args.out, **_dataset_options(args))
    if args.json:
        _print_json(console, found.to_config())
        return EXIT_GOOD
    console.print(f"{format_count(found.num_samples, 'sample')}; {found.num_tried} tried, {len(found.bad)} bad")
    columns = [Column("")] + [Column(title) for title in ("dtype", "codec")]
    columns += [Column(title, ">") for title in ("size", "ratio", "time", "samples/s read")]
    rows = [
        [
            "*" if one.chosen else "",
            one.dtype + ("" if one.exact else " (lossy)"),
            one.codec,
            format_nbytes(one.nbytes),
            format_ratio(one.ratio),
            format_duration(one.convert_s),
            f"{one.delivered_per_s:,.0f}",
        ]
        for one in found.choices
    ]
    console.print(format_table(columns, rows, console.style, width=console.width))
    twice = " (its size twice: parts and result; a folder needs it once)" if found.is_file else ""
    console.print(
        f"disk: needs {format_nbytes(found.needed_nbytes)}{twice}, {format_nbytes(found.free_nbytes)} free: "
        + ("fits" if found.fits else "does NOT fit")
    )
    for one in found.bad:
        console.note(f"bad: {printable(one)}")
    return EXIT_GOOD


def _print_json(console: Console, values: dict[str, Any]) -> None:
    console.print(json.dumps(values, indent=2, default=str))


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.note(printable(record.getMessage()))


@contextmanager
def _notes(console: Console) -> Iterator[None]:
    """Print what the library has to say beside its results."""
    log, handler = logging.getLogger("h5cache.convert"), _ConsoleHandler(console)
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def _size(text: str) -> int | None:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of pixels, or 0, is expected, got {text!r}")
    return int(text) or None


def _shard_size(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    exit_code = main()
    # All is said and done, and the code tells it: Ctrl-C must not turn the interpreter's own end into a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(exit_code)
