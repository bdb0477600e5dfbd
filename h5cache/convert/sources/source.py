"""The contract of a source: samples by number, their names, and what tells one state of the source from another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

__all__ = ["BadSampleError", "Source", "SourceFiles"]


class BadSampleError(Exception):
    """One sample cannot be read or decoded: a corrupt, truncated or unreadable file. The message says why."""


@dataclass(frozen=True, eq=False)
class SourceFiles:
    """What is known of every sample without reading it: columns of the index table. Arrays, not lists."""

    #: UTF-8 bytes (dtype S): the path relative to the source's root, `class/file.jpg`; unique.
    keys: npt.NDArray[np.bytes_]
    #: Size and modification time of the sample's file; None where samples are not files.
    nbytes: npt.NDArray[np.int64] | None = None
    mtimes_ns: npt.NDArray[np.int64] | None = None


class Source(ABC):
    """Samples that can be read by number, in any process. Picklable, complete after construction."""

    #: What `--source` calls it.
    kind: ClassVar[str]
    #: True where reading a sample imports torch: workers are spared it otherwise.
    needs_torch: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def files(self) -> SourceFiles: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, sorted; empty where the source has none."""
        return ()

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The class of every sample, for stratified splits; None where unknown without reading."""
        return None

    @abstractmethod
    def load(self, sample: int) -> Mapping[str, Any]:
        """Read one sample: field name -> numpy array, torch tensor or number. BadSampleError where it cannot be."""

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """JSON values that change when the source does: kind, options, a digest of keys, sizes and times.

        Nothing of the machine: the same files elsewhere have the same fingerprint.
        """


def check_unique(keys: Sequence[bytes]) -> None:
    """Raise ValueError where two samples have one key."""
    if len(set(keys)) != len(keys):
        seen: set[bytes] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"two samples have the key {twice.decode()!r}")
