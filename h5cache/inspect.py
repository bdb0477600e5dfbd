"""`python -m h5cache.inspect DATASET`: what is in it. The work is in `h5cache.tools`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not __package__:
    # Run by its path rather than by -m: its folder comes first, and there `inspect` is this file, not Python's own.
    sys.path[0] = __file__.rpartition("/h5cache/")[0] or ".."

import argparse
import json
import os
from collections.abc import Sequence

from h5cache.terminal import EXIT_GOOD, Console, make_parser, run_cli

__all__ = ["main"]

EXAMPLES = """\
  h5cache inspect train.h5                    fields, sizes, classes, first keys, where it came from
  h5cache inspect train.h5 --codecs           why this codec: all candidates with ratio and speed
  h5cache inspect train.h5 --json | jq .num_samples
  h5cache inspect other.h5 --fields x y       any HDF5 file: what converting these datasets would give
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_cli(_run, _parser(), argv, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "h5cache inspect", "Show what a dataset holds: fields, sizes, codecs, classes, provenance.", EXAMPLES
    )
    parser.add_argument("dataset", metavar="DATASET", help="a .h5 file, a folder of shards, or any HDF5 file")
    parser.add_argument("--samples", type=_count, default=5, metavar="N", help="rows of the index to show (default: 5)")
    parser.add_argument(
        "--fields", nargs="+", metavar="NAME", help="only these fields; of a foreign file: the datasets that are fields"
    )
    parser.add_argument("--codecs", action="store_true", help="try all codecs on the first chunk of each coded field")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    # After parsing: --help answers without loading h5py.
    from h5cache.tools.inspect import inspect_dataset, to_json
    from h5cache.tools.inspect_text import format_inspection

    names = [name for given in args.fields for name in given.split(",") if name] if args.fields else None
    inspection = inspect_dataset(args.dataset, names, num_rows=args.samples, codecs=args.codecs)
    if args.json:
        console.print(json.dumps(to_json(inspection), indent=2))
    else:
        console.print(format_inspection(inspection, console.style, width=console.width, unicode=console.unicode))
    return EXIT_GOOD


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main())
