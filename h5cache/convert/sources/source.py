"""The contract of a source: samples by number, their names, and what tells one state of the source from another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from h5cache.errors import H5CacheError
from h5cache.schema import Schema

__all__ = ["BadSampleError", "MissingSourceError", "Selection", "Source", "SourceError", "SourceFiles", "check_unique"]

Numbers: TypeAlias = npt.NDArray[np.int64]


class SourceError(H5CacheError, ValueError):
    """What was given to be converted cannot be: empty, of an unknown kind, or described wrongly."""


class MissingSourceError(FileNotFoundError, SourceError):
    """There is nothing at the path that was given to be converted."""


class BadSampleError(H5CacheError, ValueError):
    """One sample cannot be read or decoded: a corrupt, truncated or unreadable file. The message says why."""


@dataclass(frozen=True, eq=False)
class SourceFiles:
    """What is known of every sample without reading it: columns of the index table. Arrays, not lists."""

    #: UTF-8 bytes (dtype S): the path relative to the source's root, `class/file.jpg`; unique.
    keys: npt.NDArray[np.bytes_]
    #: Size and modification time of the sample's file, 0 where it is missing; None where samples are not files.
    nbytes: Numbers | None = None
    mtimes_ns: Numbers | None = None


class Source(ABC):
    """Samples that can be read by number, in any process. Picklable, complete after construction."""

    #: What `--source` calls it.
    kind: ClassVar[str]
    #: True where reading a sample imports torch: workers are spared it otherwise.
    needs_torch: ClassVar[bool] = False
    #: True where reading a sample uses OpenCV, whose own threads workers turn off.
    needs_cv2: ClassVar[bool] = False

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
    def labels(self) -> Numbers | None:
        """The class of every sample, for stratified splits; None where unknown without reading."""
        return None

    @property
    def schema(self) -> Schema | None:
        """The fields of `load`, where known without reading; None: take them from a sample."""
        return None

    @abstractmethod
    def load(self, sample: int) -> Mapping[str, Any]:
        """Read one sample: field name -> numpy array, torch tensor or number. BadSampleError where it cannot be.

        The values are the caller's own: a transform may write into them.
        """

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """JSON values that change when the source does: kind, options, a digest of keys, sizes and times.

        Nothing of the machine: the same files elsewhere have the same fingerprint.
        """

    def take(self, samples: Numbers) -> Source:
        """Return a source of these samples alone, in this order: what a task carries to its worker.

        Sources whose tables are large override it, so that the pickle grows with the samples taken.
        """
        return Selection(self, samples)


class Selection(Source):
    """Some samples of another source, in a chosen order."""

    def __init__(self, source: Source, samples: Numbers) -> None:
        self._source = source
        self._samples = check_samples(samples, len(source))
        # Instance attributes over the class's: a selection is and needs what its source does.
        self.kind = source.kind  # type: ignore[misc]
        self.needs_torch = source.needs_torch  # type: ignore[misc]
        self.needs_cv2 = source.needs_cv2  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def files(self) -> SourceFiles:
        return take_files(self._source.files, self._samples)

    @property
    def classes(self) -> tuple[str, ...]:
        return self._source.classes

    @property
    def labels(self) -> Numbers | None:
        labels = self._source.labels
        return None if labels is None else labels[self._samples]

    @property
    def schema(self) -> Schema | None:
        return self._source.schema

    def load(self, sample: int) -> Mapping[str, Any]:
        return self._source.load(int(self._samples[sample]))

    def fingerprint(self) -> Mapping[str, Any]:
        return {**self._source.fingerprint(), "samples": digest(self._samples)}

    def take(self, samples: Numbers) -> Source:
        return Selection(self._source, self._samples[check_samples(samples, len(self))])


def check_samples(samples: npt.ArrayLike, total: int) -> Numbers:
    """Return sample numbers as an array; IndexError where one is not of the source."""
    numbers = np.asarray(samples)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise TypeError(f"samples are chosen by a list of whole numbers, got {numbers.dtype} of shape {numbers.shape}")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < total):
        raise IndexError(f"samples {numbers.min()} to {numbers.max()} were asked for; the source has {total}")
    return numbers.astype(np.int64)


def take_files(files: SourceFiles, samples: Numbers) -> SourceFiles:
    nbytes = None if files.nbytes is None else files.nbytes[samples]
    mtimes_ns = None if files.mtimes_ns is None else files.mtimes_ns[samples]
    return SourceFiles(files.keys[samples], nbytes, mtimes_ns)


def number_keys(count: int) -> npt.NDArray[np.bytes_]:
    """Return the keys of samples that have no names: their numbers."""
    return np.arange(count).astype(f"S{len(str(max(count - 1, 0)))}")


def digest(*arrays: npt.NDArray[Any] | None) -> str:
    """Return a digest of arrays: their dtypes, shapes and elements. Equal bytes give equal text on every machine."""
    from xxhash import xxh3_128

    state = xxh3_128()
    for array in arrays:
        if array is None:
            state.update(b"none;")
            continue
        state.update(f"{array.dtype.str}{array.shape};".encode())
        if array.flags.c_contiguous:
            state.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        else:
            # A slice or memory map may be larger than memory: never copied whole.
            for row in array if array.ndim else [array]:
                state.update(np.ascontiguousarray(row).reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def check_unique(keys: Sequence[bytes]) -> None:
    """Raise SourceError where two samples have one key."""
    if len(set(keys)) != len(keys):
        seen: set[bytes] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise SourceError(f"two samples have the key {twice.decode(errors='replace')!r}; keys must be unique")
