"""`python -m h5cache.bench DATASET`: how fast it delivers, on your own data. The work is in `h5cache.tools`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not __package__:
    # Run by its path rather than by -m: its folder comes first, and there `inspect` is ours, not Python's own.
    sys.path[0] = __file__.rpartition("/h5cache/")[0] or ".."

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from h5cache.terminal import EXIT_GOOD, CommandError, Console, make_parser, run_cli

__all__ = ["main"]

EXAMPLES = """\
  h5cache bench train.h5                              samples/s by order, threads and door
  h5cache bench train.h5 --against photos/train       beside your pictures, decoded by cv2
  h5cache bench train.h5 --against tensors/           beside your .pt files
  h5cache bench train.h5 --against my_data:make_loader   beside your own DataLoader: a function that returns it
  h5cache bench train.h5 --against photos/train --step-ms 80   how long a training step of 80 ms waits
  h5cache bench train.h5 --plot bench.svg --json > bench.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_cli(_run, _parser(), argv, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "h5cache bench",
        "Measure how many samples per second a dataset delivers on this machine, and your present way beside it.",
        EXAMPLES,
    )
    parser.add_argument("dataset", metavar="DATASET", help="a .h5 file, a folder of shards, or any HDF5 file")
    parser.add_argument(
        "--against", metavar="SRC", help="your present way: a folder of pictures or .pt files, or module:make_loader"
    )
    parser.add_argument("--batch-size", type=_positive, default=256, metavar="N", help="samples of a batch (256)")
    parser.add_argument(
        "--step-ms", type=_milliseconds, metavar="MS", help="a training step of yours: how long would it wait?"
    )
    parser.add_argument(
        "--threads", type=_counts, default=(), metavar="1,2,...", help="threads to try (1, half of the cores, all)"
    )
    parser.add_argument(
        "--orders", type=_names, metavar="A,B", help="some of sequential, chunk, full; the last one counts (all)"
    )
    parser.add_argument("--doors", type=_names, metavar="A,B", help="some of loader, dataloader, batches (all)")
    parser.add_argument("--device", metavar="NAME", help="copy batches there, cuda for one (default: none)")
    parser.add_argument("--seconds", type=_seconds, default=0.6, metavar="S", help="of each measurement (0.6)")
    parser.add_argument("--repetitions", type=_positive, default=3, metavar="N", help="of all, in turn (3)")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the result")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None, help="default: on terminals")
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    # Before the work: a wrong name must not cost the measurement.
    if args.plot is not None and not args.plot.endswith(".svg"):
        raise CommandError(f"--plot {args.plot}: the picture is an SVG, name it so (browsers and GitHub show it)")
    if args.plot is not None and not os.path.isdir(os.path.dirname(os.path.abspath(args.plot))):
        raise CommandError(f"--plot {args.plot}: there is no such folder")
    # After parsing: --help answers without loading torch.
    from h5cache.tools.bench import bench_dataset
    from h5cache.tools.bench_plot import plot_bench
    from h5cache.tools.bench_result import DOORS, ORDERS, BenchOptions, to_json
    from h5cache.tools.bench_text import format_bench

    try:
        options = BenchOptions(
            batch_size=args.batch_size,
            threads=args.threads,
            orders=args.orders or tuple(ORDERS),
            doors=args.doors or DOORS,
            against=args.against,
            step_ms=args.step_ms,
            seconds=args.seconds,
            repetitions=args.repetitions,
            device=args.device,
        )
    except ValueError as exc:
        raise CommandError(str(exc)) from exc
    _check_device(args.device)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for --against module:function; `python -m` has it, the console script not
    with _Steps(console, args.progress) as steps:
        result = bench_dataset(args.dataset, options, steps.begin)
    if args.plot is not None:
        with open(args.plot, "w", encoding="utf-8") as stream:
            stream.write(plot_bench(result))
    if args.json:
        console.print(json.dumps(to_json(result), indent=2))
    else:
        console.print(format_bench(result, console.style, width=console.width, unicode=console.unicode))
    return EXIT_GOOD


class _Steps:
    """The progress bar: how many of the measurements are done, and which is being taken."""

    def __init__(self, console: Console, show: bool | None) -> None:
        self._console = console
        self._show = show
        self._bar: Any = None

    def begin(self, total: int) -> Callable[[int, str], None]:
        self._bar = self._console.progress(total, "measuring", "step", self._show)
        return self._advance

    def _advance(self, count: int, what: str) -> None:
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.update(count)

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _check_device(device: str | None) -> None:
    if device is None:
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as exc:  # torch built without CUDA asserts
        raise CommandError(f"--device {device}: {str(exc).splitlines()[0]}") from exc


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise ValueError(text)
    return value


def _milliseconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 600_000:
        raise ValueError(text)
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(part) for part in _names(text)}))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError(text)
    return names


if __name__ == "__main__":
    sys.exit(main())
