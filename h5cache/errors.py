"""The errors h5cache raises. Each is also the built-in class a caller would expect to catch."""

from __future__ import annotations

__all__ = [
    "ChecksumError",
    "CodecError",
    "DatasetBusyError",
    "DatasetChangedError",
    "DatasetExistsError",
    "FormatError",
    "H5CacheError",
    "LoaderClosedError",
    "MissingDatasetError",
    "QuantiseConflictError",
    "SchemaError",
    "StateError",
    "UnsafeFileError",
    "WriterClosedError",
]


class H5CacheError(Exception):
    """Any failure that h5cache itself reports."""


class CodecError(H5CacheError, ValueError):
    """Stored bytes do not decode, or a codec cannot encode what it was given."""


class SchemaError(H5CacheError, ValueError):
    """A field is described wrongly, or data does not fit its field (shape, dtype, length, name)."""


class QuantiseConflictError(H5CacheError, ValueError):
    """Values do not fit one exact table of 256 entries per channel."""


class FormatError(H5CacheError, ValueError):
    """A file is not a dataset h5cache can read: not HDF5, truncated, of an unknown version."""


class UnsafeFileError(FormatError):
    """A file reaches outside itself (external link, external storage, virtual dataset)."""


class ChecksumError(H5CacheError, OSError):
    """Stored bytes differ from the checksum taken when they were written."""


class DatasetChangedError(H5CacheError, RuntimeError):
    """A file is no longer the one that was opened and validated."""


class DatasetBusyError(H5CacheError, BlockingIOError):
    """Another process is writing this dataset now."""


class DatasetExistsError(H5CacheError, FileExistsError):
    """The output exists already and overwriting was not asked for."""


class MissingDatasetError(H5CacheError, FileNotFoundError):
    """A dataset, or one of its shards, is not there."""


class WriterClosedError(H5CacheError, ValueError):
    """A writer was used after it was closed."""


class LoaderClosedError(H5CacheError, RuntimeError):
    """A loader was closed, or its process forked, while somebody iterates over it."""


class StateError(H5CacheError, ValueError):
    """A saved state is damaged, or belongs to another dataset, global batch or order."""
