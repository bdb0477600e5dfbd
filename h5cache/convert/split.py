"""The splits that a command line asks for."""

from __future__ import annotations

from h5cache.deal import check_split
from h5cache.errors import SchemaError

__all__ = ["parse_split"]


def parse_split(text: str) -> dict[str, float]:
    """Return the splits that `train=0.9,val=0.1` asks for, in order; SchemaError where they make no sense."""
    fractions: dict[str, float] = {}
    for item in text.split(","):
        name, equals, share = item.partition("=")
        name = name.strip()
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not equals or not 0 < value <= 1:
            raise SchemaError(f"a split is NAME=SHARE with a share above 0 and at most 1, got {item!r}")
        if name in fractions:
            raise SchemaError(f"split {name!r} is given twice")
        fractions[name] = value
    return check_split(fractions)
