"""`Writer`: a dataset from one's own loop, a batch at a time; published whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

from h5cache.errors import DatasetExistsError, SchemaError, WriterClosedError
from h5cache.format.build import Builder, RunDescription, plan_part_samples
from h5cache.format.layout import check_chunk_sizes
from h5cache.format.manifest import MANIFEST_NAME
from h5cache.format.part import make_index
from h5cache.format.parts import PartsFolder, is_file_output
from h5cache.format.publish import check_absent, check_kind, check_parent, lock_output
from h5cache.format.rows import check_keys, infer_schema, to_rows
from h5cache.format.versions import library_versions
from h5cache.schema import Field, Schema

__all__ = ["Writer"]

#: Samples of a part where a file is written with resume=True: what a killed loop loses at most.
PART_SAMPLES = 1024
#: Raw bytes of a shard of a folder: a few files, each quick to copy.
SHARD_NBYTES = 512 * 1024 * 1024

#: Copies in a forked child: see `Writer.abort`.
_kept_from_closing: list[Any] = []


class Writer:
    """Write a dataset batch by batch: one `.h5` file, or a folder of shards where `path` does not end in `.h5`.

    Used as a context manager: leaving it normally publishes the dataset under its name in one step; leaving it by
    an exception publishes nothing and leaves nothing behind. Needs a few chunks of memory, and small fields and keys
    whole (some 50 bytes a sample). Not thread-safe.

    Args:
        path: the dataset to be.
        fields: `{"image": Field("uint8", (3, 224, 224)), ...}`; None takes them from the first batch.
        classes: names of the classes that a field `label` counts.
        resume: keep finished parts when the loop dies. Run the same loop again with `resume=True` and start it at
            sample `w.num_done`; the dataset is the same to the byte as if it had not died.
        overwrite: replace a dataset of that name, at the very end.
        shard_samples: samples of a shard (folders), rounded up to whole chunks; None: about 512 MiB of raw data.

    >>> import numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.h5")
    >>> with Writer(path, {"image": Field("uint8", (3, 8, 8)), "label": Field("int64")}) as w:
    ...     w.append(image=np.zeros((4, 3, 8, 8), np.uint8), label=[0, 1, 0, 1], key=["a", "b", "c", "d"])
    >>> os.path.exists(path)
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, Field] | None = None,
        *,
        classes: Sequence[str] = (),
        resume: bool = False,
        overwrite: bool = False,
        shard_samples: int | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = os.path.abspath(os.fspath(path))
        self._classes = tuple(classes)
        self._resume = resume
        self._overwrite = overwrite
        self._shard_samples = shard_samples
        self._provenance = _json_values({**(provenance or {}), "versions": library_versions()})
        self._schema = None if fields is None else Schema.of(fields)
        if self._schema is not None:
            check_chunk_sizes(self._schema)
        if shard_samples is not None and shard_samples < 1:
            raise ValueError(f"shard_samples must be at least 1, got {shard_samples}")
        self._builder: Builder | None = None
        self._parts: PartsFolder | None = None
        self._closed = True
        #: What broke an append in the middle: from then on the samples are not what the loop thinks.
        self._failure: BaseException | None = None
        self._pid = os.getpid()
        self._check_output()
        self._stack = ExitStack()
        self._stack.enter_context(lock_output(self._path))
        try:
            self._check_output()  # the last owner of the lock may have published meanwhile
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        self._closed = False

    @property
    def num_done(self) -> int:
        """Samples that need not be appended (again): where a resumed loop goes on. Grows with every append."""
        return self._builder.num_done if self._builder else 0

    @property
    def schema(self) -> Schema | None:
        """The fields; None before the first batch where they were not given."""
        return self._schema

    def append(self, /, *, key: str | Sequence[str] | None = None, **fields: Any) -> None:
        """Append a batch, or one sample where the values have the fields' own shapes.

        Takes torch tensors (any strides, any device; exactly the elements of a view are stored), numpy arrays, lists
        and numbers. `key` names each sample in the index. SchemaError, and nothing appended, where something does
        not fit.
        """
        self._check_usable()
        if self._closed:
            raise WriterClosedError(f"{self._path}: the writer is closed; nothing can be appended")
        schema = self._schema or infer_schema(fields)
        rows = to_rows(schema, fields)
        count = len(next(iter(rows.values())))
        index = make_index(check_keys(key, count), count)
        check_chunk_sizes(schema)
        try:
            self._start(schema).append(rows, index)
        except BaseException as exc:
            self._failure = exc
            raise

    def close(self) -> None:
        """Publish the dataset. Called on leaving the `with` block; idempotent."""
        if self._closed:
            return
        try:
            self._check_usable()
            if self._schema is None:
                raise SchemaError(f"{self._path}: nothing was appended and no fields were given; there is no dataset")
            self._start(self._schema).finish()
            if self._parts is not None:
                self._parts.publish(self._overwrite)
        except BaseException:
            self.abort()
            raise
        self._closed = True
        self._stack.close()

    def abort(self) -> None:
        """Publish nothing. All that was written is removed, but finished parts stay with `resume=True`; idempotent."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            # A forked child has only a copy: the files are its parent's, and libhdf5 must not flush into them here.
            _kept_from_closing.append(self._builder)
            return
        with self._stack:
            if self._parts is None:
                return
            try:
                if self._builder is not None:
                    self._builder.abort()
            finally:
                if self._resume and self._builder is not None and self._builder.num_committed:
                    self._parts.clear_unfinished()
                else:
                    self._parts.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.abort()

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise WriterClosedError(f"{self._path}: the writer belongs to process {self._pid}, which opened it")
        if self._failure is not None:
            raise WriterClosedError(
                f"{self._path}: an append failed in the middle ({self._failure!r}); nothing is published. "
                "Write the dataset anew; with resume=True, go on from num_done"
            ) from self._failure

    def _check_output(self) -> None:
        is_file = is_file_output(self._path)
        check_parent(self._path)
        check_absent(self._path if is_file else os.path.join(self._path, MANIFEST_NAME), self._overwrite)
        check_kind(self._path, folder=not is_file)

    def _begin(self) -> None:
        """Find an unfinished run of this output: go on with it, or refuse to throw its parts away unasked."""
        found = PartsFolder.find(self._path)
        if found is None:
            return
        parts, config = found
        run = RunDescription.from_config(config)
        if not parts.finished() or run.part_samples is None:
            parts.clear()  # killed before there was anything to go on with
            return
        if not self._resume:
            if not self._overwrite:
                raise DatasetExistsError(
                    f"{self._path}: {len(parts.finished())} finished parts of an unfinished run lie in {parts.home}; "
                    "pass resume=True to go on, or overwrite=True to start anew"
                )
            parts.clear()
            return
        differing = self._differences(run)
        if differing:
            raise SchemaError(
                f"{self._path}: the unfinished run in {parts.home} was of other {', '.join(differing)}; "
                "give the same, or pass resume=False, overwrite=True to start anew"
            )
        self._schema = run.schema
        self._parts, self._builder = parts, Builder(parts, run)

    def _differences(self, run: RunDescription) -> list[str]:
        """Name what an unfinished run did otherwise."""
        old = replace(run, as_floats=()).to_config()
        new = self._describe(self._schema or run.schema).to_config()
        return [name.replace("_", " ") for name in old if old[name] != new[name]]

    def _describe(self, schema: Schema) -> RunDescription:
        return RunDescription(schema, self._plan_part_samples(schema), self._classes, self._provenance)

    def _plan_part_samples(self, schema: Schema) -> int | None:
        if is_file_output(self._path):
            return plan_part_samples(schema, PART_SAMPLES) if self._resume else None
        sample_nbytes = sum(field.sample_nbytes for field in schema.values())
        return plan_part_samples(schema, self._shard_samples or SHARD_NBYTES // sample_nbytes)

    def _start(self, schema: Schema) -> Builder:
        if self._builder is None:
            run = self._describe(schema)
            self._parts = PartsFolder.plan(self._path, run.to_config())
            self._parts.describe(run.to_config())
            self._schema, self._builder = schema, Builder(self._parts, run)
        return self._builder


def _json_values(provenance: dict[str, Any]) -> dict[str, Any]:
    """Return provenance as it will be read back: a run that resumes compares it."""
    try:
        values: dict[str, Any] = json.loads(json.dumps(provenance))
    except (TypeError, ValueError) as exc:
        raise SchemaError(f"provenance must be JSON values: {exc}") from exc
    return values
