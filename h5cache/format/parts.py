"""Where a dataset under construction keeps its parts, and how they become the dataset.

A single file is joined from `OUT.h5.parts/part-00000.h5`, ...; the parts of a folder are its shards already, and only
the manifest is missing. A part either has its final name and is complete, or ends in `.partial` and counts for nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
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
#: What a run leaves in a folder of shards. Nothing else there is ours to remove.
SHARD_FILE = re.compile(r"shard-([0-9a-f]{7}[0-9a-fs-z])-\d{5,}\.h5((?:\.[0-9a-f]{8})?\.partial(\.codes)?)?")
#: The last letter of the tag of shards whose holes were filled; any other becomes "s".
REVISED = {"x": "u", "y": "v", "z": "w"}


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
        # A dataset of the same description may be published there already: its shards must not be touched.
        taken = set() if is_file_output(output) else {match[1] for match in _shard_files(output).values()}
        return cls(output, next(free for free in (tag, *(tag[:-1] + end for end in "xyz")) if free not in taken))

    @classmethod
    def find(cls, output: str) -> tuple[PartsFolder, dict[str, Any]] | None:
        """Return the parts and the description of an unfinished run; None where there is none.

        A run that was killed just after it published its folder is finished here. The caller holds the lock.
        """
        try:
            with open(os.path.join(_home(output), RUN_FILE), encoding="utf-8") as stream:
                run = json.load(stream)
            parts, description = cls(output, run["tag"]), run["description"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as exc:
            raise FormatError(f"{_home(output)}: {RUN_FILE} cannot be read ({exc}); remove it to start anew") from exc
        published = () if is_file_output(output) else _published_shards(output)
        if any(f"-{tag}-" in name for name in published for tag in parts.tags):
            parts._remove_shards(keep=published)
            return None
        return parts, description

    @property
    def home(self) -> str:
        return _home(self.output)

    @property
    def revised(self) -> PartsFolder:
        """Where shards of this run lie that were written anew without their holes."""
        return PartsFolder(self.output, self.tag[:-1] + REVISED.get(self.tag[-1], "s"))

    @property
    def tags(self) -> tuple[str, str]:
        return self.tag, self.revised.tag

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
            finished = paths[0]
            if len(paths) > 1:
                finished = partial_path(self.output)
                join_parts(paths, finished)
                check_chunks(read_part(finished))
            self.publish_joined(finished, overwrite)
        else:
            self.publish_shards(paths, overwrite)

    def publish_joined(self, finished: str, overwrite: bool) -> None:
        """Give a finished, checked file the name of the output, and remove the parts."""
        check_absent(self.output, overwrite)
        publish_file(finished, self.output)
        remove(self.home)
        sync_folder(os.path.dirname(os.path.abspath(self.output)))

    def publish_shards(
        self, paths: Sequence[str], overwrite: bool, provenance: Mapping[str, Any] | None = None
    ) -> None:
        """Write the manifest of these shards of the folder, and remove all others."""
        manifest = os.path.join(self.output, MANIFEST_NAME)
        names = [os.path.basename(path) for path in paths]
        write_manifest(self.output, names, partial_path(manifest), provenance)
        check_absent(manifest, overwrite)
        publish_file(partial_path(manifest), manifest)
        self._remove_shards(keep=names)
        sync_folder(os.path.dirname(os.path.abspath(self.output)))

    def clear(self) -> None:
        """Remove everything of this run; the published dataset, if any, stays."""
        if is_file_output(self.output):
            remove(self.home)
            remove(partial_path(self.output))
            return
        if not os.path.isdir(self.output):
            return
        published = _published_shards(self.output)
        for name, match in _shard_files(self.output).items():
            if match[1] in self.tags and name not in published:
                remove(os.path.join(self.output, name))
        self._remove_run_files()
        if not os.listdir(self.output):
            os.rmdir(self.output)

    def clear_unfinished(self) -> None:
        """Remove what was being written when the run stopped; finished parts stay."""
        if is_file_output(self.output):
            remove(partial_path(self.output))
            names = [name for name in os.listdir(self.home) if ".partial" in name] if os.path.isdir(self.home) else []
        else:
            names = [name for name, match in _shard_files(self.home).items() if match[1] in self.tags and match[2]]
            names += [partial_path(RUN_FILE), partial_path(MANIFEST_NAME)]
        for name in names:
            remove(os.path.join(self.home, name))

    def _remove_shards(self, keep: Collection[str]) -> None:
        """Remove what this run and the dataset it replaced no longer need."""
        for name in _shard_files(self.output):
            if name not in keep:
                remove(os.path.join(self.output, name))
        self._remove_run_files()

    def _remove_run_files(self) -> None:
        for name in (RUN_FILE, partial_path(RUN_FILE), partial_path(MANIFEST_NAME)):
            remove(os.path.join(self.output, name))


def _shard_files(folder: str) -> dict[str, re.Match[str]]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {name: match for name in names if (match := SHARD_FILE.fullmatch(name))}


def _published_shards(output: str) -> list[str]:
    try:
        return read_shard_names(output)
    except FormatError:  # a damaged dataset may be overwritten too
        return []


def _home(output: str) -> str:
    return output + ".parts" if is_file_output(output) else output
