"""`python -m h5cache.report DATASET -o report.html`: a dataset as one page. The work is in `h5cache.tools`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from h5cache.terminal import EXIT_GOOD, Console, format_count, format_nbytes, make_parser, run_cli

__all__ = ["main"]

EXAMPLES = """\
  h5cache report train.h5                          writes report.html: open it in a browser, send it to a colleague
  h5cache report train.h5 -o train.html --bench    also measure delivered samples/s on this machine
  h5cache report train/ --samples 5000             look at more samples for value ranges
  h5cache report other.h5 --fields x y             any HDF5 file
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_cli(_run, _parser(), argv, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "h5cache report",
        "Write one HTML page about a dataset: pictures, classes, sizes, values, shuffle quality, problems.",
        EXAMPLES,
    )
    parser.add_argument("dataset", metavar="DATASET", help="a .h5 file, a folder of shards, or any HDF5 file")
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="the page to write (default: report.html)"
    )
    parser.add_argument(
        "--bench", action="store_true", help="measure delivered samples/s by order and threads (seconds)"
    )
    parser.add_argument(
        "--samples", type=_count, default=512, metavar="N", help="samples to look at for value ranges (default: 512)"
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="which samples are drawn (default: 0)")
    parser.add_argument(
        "--fields", nargs="+", metavar="NAME", help="only these fields; of a foreign file: the datasets that are fields"
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show a progress bar (default: on terminals)",
    )
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    # After parsing: --help answers without loading h5py.
    from h5cache.tools.report import collect_report, num_steps
    from h5cache.tools.report_page import check_output, render_page, write_page

    check_output(args.output)
    names = [name for given in args.fields for name in given.split(",") if name] if args.fields else None
    with console.progress(num_steps(args.bench), "looking", unit="step", show=args.progress) as bar:
        report = collect_report(
            args.dataset, names, samples=args.samples, seed=args.seed, bench=args.bench, advance=bar.update
        )
    nbytes = write_page(render_page(report, args.dataset), args.output)
    problems = [finding for finding, _ in report.findings if finding.level != "note"]
    style = console.style
    told = style.yellow(format_count(len(problems), "problem") + " found") if problems else style.green("no problems")
    console.print(f"{style.bold(args.output)}: {format_nbytes(nbytes)}, {told}")
    for finding in problems:
        console.print(f"  {(style.red if finding.level == 'bad' else style.yellow)(finding.title)}")
    return EXIT_GOOD


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main())
