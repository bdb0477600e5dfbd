"""Where a dataset under construction keeps its parts, and how they become the dataset.

A single file is joined from `OUT.h5.parts/part-00000.h5`, ...; the parts of a folder are its shards already, and only
the manifest is missing. A part either has its final name and is complete, or ends in `.partial` and counts for nothing.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from h5cache.errors import FormatError
from h5cache.format.chunks import check_chunks
from h5cache.format.encode import checksum
from h5cache.format.join import join_parts, read_part
from h5cache.format.manifest import MANIFEST_NAME, read_shard_names, write_manifest
from h5cache.format.publish import check_absent, partial_path, publish_file, remove, sync_folder

__all__ = ["PartsFolder", "is_file_output"]

RUN_FILE = ".h5cache-run.json"


def is_file_output(path: str) -> bool:
    """OUT ends in .h5 (or .hdf5): one file, else a folder of shards."""
    return path.endswith((".h5", ".hdf5"))


@dataclass(frozen=True)
class PartsFolder:
    """The parts of one run. Complete after construction; what is on disk is looked at anew each time."""

    output: str
    #: Makes the shards of this run distinct from those of the dataset they will replace.
    tag: str

    @classmethod
    def plan(cls, output: str, description: Mapping[str, Any]) -> PartsFolder:
        """Return the parts folder of a new run. `description` is what makes a run this one: schema, options."""
        tag = f"{checksum(json.dumps(description, sort_keys=True).encode()):016x}"[:8]
        if not is_file_output(output) and any(f"-{tag}-" in name for name in read_shard_names(output)):
            tag = tag[:-1] + ("x" if tag[-1] != "x" else "y")  # the published dataset is of the same description
        return cls(output, tag)

    @classmethod
    def find(cls, output: str) -> tuple[PartsFolder, dict[str, Any]] | None:
        """Return the parts and the description of an unfinished run; None where there is none."""
        try:
            with open(os.path.join(_home(output), RUN_FILE), encoding="utf-8") as stream:
                run = json.load(stream)
            return cls(output, run["tag"]), run["description"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as exc:
            raise FormatError(f"{_home(output)}: {RUN_FILE} cannot be read ({exc}); remove it to start anew") from exc

    @property
    def home(self) -> str:
        return _home(self.output)

    def part_path(self, number: int) -> str:
        name = f"part-{number:05d}.h5" if is_file_output(self.output) else f"shard-{self.tag}-{number:05d}.h5"
        return os.path.join(self.home, name)

    def describe(self, description: Mapping[str, Any]) -> None:
        """Record what the run is, before its first part (atomic)."""
        os.makedirs(self.home, exist_ok=True)
        path = os.path.join(self.home, RUN_FILE)
        with open(partial_path(path), "w", encoding="utf-8") as stream:
            json.dump({"tag": self.tag, "description": description}, stream, sort_keys=True)
        publish_file(partial_path(path), path)

    def finished(self) -> list[str]:
        """Return the paths of the finished parts, in order, up to the first that is missing."""
        paths: list[str] = []
        while os.path.exists(self.part_path(len(paths))):
            paths.append(self.part_path(len(paths)))
        return paths

    def commit(self, number: int) -> None:
        """Check a closed `.partial` part against its checksums, then give it its name."""
        path = self.part_path(number)
        check_chunks(read_part(partial_path(path)))
        publish_file(partial_path(path), path)

    def publish(self, overwrite: bool) -> None:
        """Make the dataset of the finished parts, in one atomic step, and remove what is no longer needed."""
        paths = self.finished()
        if is_file_output(self.output):
            if len(paths) > 1:
                join_parts(paths, partial_path(self.output))
                check_chunks(read_part(partial_path(self.output)))
            else:
                os.replace(paths[0], partial_path(self.output))
            check_absent(self.output, overwrite)
            publish_file(partial_path(self.output), self.output)
            remove(self.home)
        else:
            manifest = os.path.join(self.output, MANIFEST_NAME)
            check_absent(manifest, overwrite)
            write_manifest(self.output, [os.path.basename(path) for path in paths], partial_path(manifest))
            publish_file(partial_path(manifest), manifest)
            self._remove_others(paths)
        sync_folder(os.path.dirname(os.path.abspath(self.output)))

    def clear(self) -> None:
        """Remove everything of this run; the published dataset, if any, stays."""
        if is_file_output(self.output):
            remove(self.home)
            remove(partial_path(self.output))
            return
        if not os.path.isdir(self.output):
            return
        for path in glob.glob(os.path.join(glob.escape(self.output), f"shard-{self.tag}-*.h5*")):
            remove(path)
        self._remove_run_files()
        if not os.listdir(self.output):
            os.rmdir(self.output)

    def clear_unfinished(self) -> None:
        """Remove what was being written when the run stopped; finished parts stay."""
        remove(partial_path(self.output))
        for path in glob.glob(os.path.join(glob.escape(self.home), "*.partial")):
            remove(path)

    def _remove_others(self, keep: Sequence[str]) -> None:
        for path in glob.glob(os.path.join(glob.escape(self.output), "shard-*.h5*")):
            if path not in keep:
                remove(path)
        self._remove_run_files()

    def _remove_run_files(self) -> None:
        for name in (RUN_FILE, partial_path(RUN_FILE), partial_path(MANIFEST_NAME)):
            remove(os.path.join(self.output, name))


def _home(output: str) -> str:
    return output + ".parts" if is_file_output(output) else output
