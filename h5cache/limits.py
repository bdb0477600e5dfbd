"""What this process may use of the machine: cores and memory, by affinity and cgroup, not by what is built in."""

from __future__ import annotations

import math
import os

__all__ = ["usable_cores", "usable_memory_nbytes"]

#: cgroup v1 writes "no limit" as a number near 2**63.
NO_LIMIT = 2**60


def usable_cores() -> int:
    """Return the cores this process may use, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def usable_memory_nbytes() -> int:
    """Return the bytes this process may still allocate without swapping or being killed, as far as can be known."""
    available = _meminfo_available()
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, usage = _read_number(limit_file), _read_number(usage_file)
        if limit is not None and usage is not None and limit < NO_LIMIT:
            available = min(available, max(0, limit - usage))
    return available


def _cpu_quota() -> float | None:
    words = _read_words("/sys/fs/cgroup/cpu.max")
    if len(words) == 2 and words[0] != "max":
        return int(words[0]) / int(words[1])
    quota = _read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _meminfo_available() -> int:
    for line in _read_lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _read_number(path: str) -> int | None:
    words = _read_words(path)
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None


def _read_words(path: str) -> list[str]:
    lines = _read_lines(path)
    return lines[0].split() if lines else []


def _read_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read().splitlines()
    except OSError:
        return []
