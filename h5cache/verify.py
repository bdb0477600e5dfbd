"""`python -m h5cache.verify DATASET`: check every checksum. The work is in `h5cache.tools`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from h5cache.terminal import EXIT_BAD, EXIT_GOOD, Console, make_parser, run_cli

__all__ = ["main"]

EXAMPLES = """\
  h5cache verify train.h5                     after copying it, before a long training
  h5cache verify train/ && python train.py    exit 0: nothing is damaged
  h5cache verify train.h5 --json | jq '.damaged[].keys[]'
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_cli(_run, _parser(), argv, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "h5cache verify", "Read every stored byte, check it, and name the samples that are damaged.", EXAMPLES
    )
    parser.add_argument("dataset", metavar="DATASET", help="a .h5 file or a folder of shards")
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show a progress bar (default: on terminals)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    # After parsing: --help answers without loading h5py.
    from h5cache.tools.verify import format_verification, plan_nbytes, to_json, verify_dataset

    start = time.perf_counter()
    with console.progress(plan_nbytes(args.dataset), "verifying", unit="B", show=args.progress) as bar:
        verification = verify_dataset(args.dataset, bar.update)
    seconds = time.perf_counter() - start
    if args.json:
        console.print(json.dumps(to_json(verification), indent=2))
    else:
        console.print(format_verification(verification, console.style, seconds=seconds, width=console.width))
    return EXIT_BAD if verification.damaged else EXIT_GOOD


if __name__ == "__main__":
    sys.exit(main())
