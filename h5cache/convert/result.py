"""What comes of a conversion, and where it may go."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from h5cache.convert.recipe import BadSample
from h5cache.errors import DatasetExistsError
from h5cache.format.manifest import MANIFEST_NAME
from h5cache.format.parts import is_file_output
from h5cache.format.publish import check_absent, check_kind, check_parent, partial_path

__all__ = ["ConvertResult", "check_output"]


@dataclass(frozen=True)
class ConvertResult:
    """What came of a conversion."""

    #: One dataset, or one per split in the order asked for.
    paths: tuple[str, ...]
    num_samples: int
    nbytes: int
    #: Samples left out by `on_error="skip"`.
    skipped: tuple[BadSample, ...] = ()
    #: Samples that this very run converted; the others were found finished.
    num_converted: int = 0


def check_output(output: str, overwrite: bool) -> None:
    """Raise where the output cannot be written: one clear line, before any work."""
    check_parent(output)
    is_file = is_file_output(output)
    check_kind(output, folder=not is_file)
    try:
        check_absent(output if is_file else os.path.join(output, MANIFEST_NAME), overwrite)
    except DatasetExistsError as exc:
        text = "the output exists already; overwrite=True (--overwrite) replaces it"
        raise DatasetExistsError(errno.EEXIST, text, output) from exc
    if not is_file and os.path.isdir(output) and not overwrite:
        # The manifest's is that of a run which was killed as it published.
        own = ("shard-", ".h5cache-", partial_path(MANIFEST_NAME))
        strangers = [name for name in sorted(os.listdir(output)) if not name.startswith(own)]
        if strangers:
            text = f"the folder of the output is not empty (it holds {strangers[0]!r}); choose an empty or a new one"
            raise DatasetExistsError(errno.EEXIST, text, output)
