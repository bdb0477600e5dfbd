"""Make files cold or warm: have the kernel forget or read their pages. Needs no privileges."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

__all__ = ["drop_cached", "fill_cache"]

READ_NBYTES = 8 * 1024 * 1024


def drop_cached(files: list[Path]) -> float:
    """Ask the kernel to forget these files' pages; return the share of them that is in memory all the same."""
    if not hasattr(os, "posix_fadvise"):
        return 1.0
    _unmap_pages({str(path.resolve()) for path in files})
    pages = present = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            flags = _pages_in_memory(descriptor)
        finally:
            os.close(descriptor)
        pages, present = pages + len(flags), present + int(flags.sum())
    return present / max(pages, 1)


def fill_cache(files: list[Path]) -> None:
    """Have the kernel read these files from end to end, whatever it has of them already.

    How a file came into memory decides how fast it is read from there: pages that were read in order lie in large
    pieces, pages read here and there lie alone, and copying them takes twice as long.
    """
    drop_cached(files)
    memory = bytearray(READ_NBYTES)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def _unmap_pages(paths: set[str]) -> None:
    """Let go of pages of read-only mappings in this process: the kernel keeps those that somebody has mapped."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, _, _, _, *path = line.split(maxsplit=5)
        if path and path[0] in paths and "w" not in permissions:
            start, stop = (int(address, 16) for address in span.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)


def _pages_in_memory(descriptor: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return, for each page of a file, whether it is in memory; all are where the kernel does not say."""
    nbytes = os.fstat(descriptor).st_size
    flags = np.ones(-(-nbytes // mmap.PAGESIZE), np.uint8)
    if nbytes:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
            memory = np.frombuffer(mapped, np.uint8)
            arguments = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(nbytes)
            failed = ctypes.CDLL(None).mincore(*arguments, ctypes.c_void_p(flags.ctypes.data))
            del memory  # a mapping that is looked at cannot be closed
        if failed:
            flags[:] = 1
    return (flags & 1).astype(bool)
