"""What can be converted. One source per file, one row each in `recognise.SOURCES`; `source.py` is the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .source import BadSampleError, MissingSourceError, Source, SourceError, SourceFiles

if TYPE_CHECKING:
    from .iterable import IterableSource
    from .recognise import SOURCES, make_source

__all__ = [
    "SOURCES",
    "BadSampleError",
    "IterableSource",
    "MissingSourceError",
    "Source",
    "SourceError",
    "SourceFiles",
    "make_source",
]


def __getattr__(name: str) -> Any:
    # Later than the contract: the sources of pictures import `h5cache.convert.pictures`, which imports the contract.
    if name not in ("SOURCES", "IterableSource", "make_source"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import recognise

    return getattr(recognise, name)
