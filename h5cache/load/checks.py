"""Which stored bytes are still to be checked in this process, and whether they are what was written."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from h5cache.format.encode import checksum
from h5cache.format.storage import FieldStorage
from h5cache.load.places import chunk_in_shard

__all__ = ["VERIFY_MODES", "BlockChecks"]

#: When stored bytes are checked: a block's first read in this process, every read, or ("never") only the first read
#: from each chunk, which tells one that was moved or rewritten from ours.
VERIFY_MODES = ("first", "always", "never")

Flags = npt.NDArray[np.bool_]


class BlockChecks:
    """Remember what was checked. Shared by threads without a lock: at worst a block is checked twice."""

    def __init__(self, verify: str, checked: BlockChecks | None = None) -> None:
        if verify not in VERIFY_MODES:
            raise ValueError(f"verify must be one of {', '.join(VERIFY_MODES)}, got {verify!r}")
        self.verify = verify
        # By storage and not by name: after a refresh, a batch that was planned before must not be taken for checked.
        # By mode: "always" has flags that nobody clears, "never" clears more than it has checked.
        self._flags: dict[tuple[FieldStorage, str], Flags] = checked._flags if checked is not None else {}

    def unchecked(self, storage: FieldStorage) -> Flags | None:
        """Return which blocks are still to be checked; None where they have no checksums."""
        if not len(storage.block_checksums):
            return None
        key = (storage, self.verify)
        found = self._flags.get(key)
        if found is None:
            found = self._flags.setdefault(key, np.ones(len(storage.block_checksums), bool))
        return found

    def are_unchecked(self, storage: FieldStorage, blocks: npt.NDArray[np.int64]) -> Flags:
        """Say which of `blocks` are still to be checked."""
        unchecked = self.unchecked(storage)
        return np.zeros(len(blocks), bool) if unchecked is None else unchecked[blocks]

    def is_intact(self, storage: FieldStorage, block: int, shard: int, stored: npt.NDArray[np.uint8]) -> bool:
        """Say whether a block's stored bytes are those of its checksum, where that is still to be checked."""
        unchecked = self.unchecked(storage)
        if unchecked is None or not unchecked[block]:
            return True
        if checksum(stored) != int(storage.block_checksums[block]):
            return False
        self.note(storage, block, shard)
        return True

    def note(self, storage: FieldStorage, block: int, shard: int) -> None:
        """Take note that a block was found intact."""
        unchecked = self.unchecked(storage)
        if unchecked is None or self.verify == "always":
            return
        if self.verify == "first":
            unchecked[block] = False
            return
        start, stop = storage.block_starts[shard : shard + 2].tolist()
        if not storage.layout.contiguous:
            start += chunk_in_shard(storage, block, shard) * storage.layout.blocks_per_chunk
            stop = start + storage.layout.blocks_per_chunk
        unchecked[start:stop] = False

    def note_chunk(self, storage: FieldStorage, blocks: slice) -> None:
        unchecked = self.unchecked(storage)
        if unchecked is not None and self.verify != "always":
            unchecked[blocks] = False
