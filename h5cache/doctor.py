"""`python -m h5cache.doctor PATH`: what is wrong with tensor files, and the cure. The work is in `h5cache.tools`."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not __package__:
    # Run by its path rather than by -m: its folder comes first, and there `inspect` is h5cache's, not Python's own.
    sys.path[0] = __file__.rpartition("/h5cache/")[0] or ".."

import argparse
import json
import os
from collections.abc import Sequence

from h5cache.terminal import EXIT_BAD, EXIT_GOOD, Console, make_parser, run_cli

__all__ = ["main"]

EXAMPLES = """\
  h5cache doctor tensors/               a folder of .pt, .pth, .npy or .npz files, at any depth
  h5cache doctor train.pt               one file
  h5cache doctor tensors/ --sample 2000 open more files: nearer projections
  h5cache doctor tensors/ --json | jq '.findings[].title'

Files are read, never changed, and code in them is never run: weights_only=True, allow_pickle=False.
Here 0 means that nothing is wrong, 1 that problems were found."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_cli(_run, _parser(), argv, os.environ)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "h5cache doctor",
        "Say what is wrong with files of tensors, what it costs, and what h5cache would make of them.",
        EXAMPLES,
    )
    parser.add_argument("path", metavar="PATH", help="a .pt, .pth, .npy or .npz file, or a folder of them")
    parser.add_argument("--sample", type=_count, default=200, metavar="N", help="files to open (default: 200)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None, help="default: on terminals")
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    # After parsing: --help answers without loading torch.
    from h5cache.tools.doctor import diagnose, to_json
    from h5cache.tools.doctor_text import format_diagnosis
    from h5cache.tools.tensor_listing import list_tensor_files

    files = list_tensor_files(args.path)
    count = min(args.sample, len(files.names))
    with console.progress(count, "opening", "file", show=args.progress) as bar:
        diagnosis = diagnose(args.path, args.sample, bar.update, files)
    if args.json:
        console.print(json.dumps(to_json(diagnosis), indent=2))
    else:
        console.print(format_diagnosis(diagnosis, console.style, width=console.width))
    return EXIT_BAD if diagnosis.findings else EXIT_GOOD


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


if __name__ == "__main__":
    sys.exit(main())
