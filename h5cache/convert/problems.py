"""How a conversion ends when it does not end well. Each says what is kept and how to go on."""

from __future__ import annotations

from collections.abc import Sequence

from h5cache.convert.recipe import BadSample
from h5cache.errors import DatasetExistsError, H5CacheError

__all__ = [
    "BadInputsError",
    "ConversionFailedError",
    "ConversionStopped",
    "NoRoomError",
    "RunChangedError",
]


class ConversionFailedError(H5CacheError, RuntimeError):
    """The conversion could not be finished; finished parts are kept."""


class BadInputsError(ConversionFailedError, ValueError):
    """Some samples could not be converted; all others are, and wait to be published. `bad` lists them."""

    def __init__(self, bad: Sequence[BadSample], num_samples: int, output: str) -> None:
        self.bad = tuple(bad)
        self.num_samples = num_samples
        listed = "".join(f"\n  {one}" for one in self.bad)
        super().__init__(
            f"{output}: {len(self.bad)} of {num_samples} samples could not be converted, nothing is published:{listed}"
            "\nRepair them and run the same command again, or add on_error='skip' (--on-error skip) to publish at once "
            "without them"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return ConversionFailedError, (str(self),)


class NoRoomError(ConversionFailedError):
    """The disk has not enough room for the result."""


class RunChangedError(DatasetExistsError):
    """Parts of an unfinished run lie there, and it was not this run."""


class ConversionStopped(KeyboardInterrupt):
    """Ctrl-C, or a signal that was turned into it. The message says how to go on."""
