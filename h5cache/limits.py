"""What this process may use of the machine: cores and memory, by affinity and cgroup, not by what is built in."""

from __future__ import annotations

import math
import os

__all__ = ["cgroup_cores", "usable_cores", "usable_memory_nbytes"]

#: cgroup v1 writes "no limit" as a number near 2**63.
NO_LIMIT = 2**60


def usable_cores() -> int:
    """Return the cores this process may use, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores()
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


def _meminfo_available() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))


def _read_number(path: str) -> int | None:
    words = _read(path).split()
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None


def cgroup_cores(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> float | None:
    """Return the CPU quota of this process's cgroup, or of the nearest one above it that has one; None: no limit."""
    found: list[float] = []
    for line in _read(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            base, reader = root, _quota_v2
        elif "cpu" in controllers.split(","):
            base, reader = os.path.join(root, "cpu"), _quota_v1
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        # Inside a container the path may name the host's tree; its root then is the container's own group.
        for depth in range(len(parts), -1, -1):
            quota = reader(os.path.join(base, *parts[:depth]))
            if quota is not None:
                found.append(quota)
    return min(found, default=None)


def _quota_v2(folder: str) -> float | None:
    words = _read(os.path.join(folder, "cpu.max")).split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: str) -> float | None:
    quota, period = (_read(os.path.join(folder, f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""
