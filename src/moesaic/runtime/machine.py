"""What this machine is: processor, cores, memory and their limits, read from the kernel's text files.

Every parser takes the text, so that tests give any machine's. Sizes are bytes, None where there is no limit or no
answer. A container's or service's limits (cgroup version 1 and 2) count, not only what the hardware has.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Read = Callable[[str], str | None]  # a path's text, None if it cannot be read

# cgroup version 1 writes "no limit" as the largest multiple of a page that fits in 63 bits
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """`model`: as the processor names itself. `logical`: processors that the machine shows; `allowed`: those this
    process may use; `physical`: cores behind the allowed ones; `quota`: cores' worth of time a cgroup grants, None: no
    limit."""

    model: str
    logical: int
    allowed: int
    physical: int
    quota: float | None

    @property
    def threads(self) -> int:
        """Worker threads that do not get in each other's way: the least of the limits, the quota rounded down."""
        limits = [self.allowed, self.physical]
        if self.quota is not None:
            limits.append(int(self.quota))
        return max(1, min(limits))


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """`total` and `available` of the machine; `cgroup_limit` and `cgroup_used` (without file cache that can be dropped)
    of the tightest cgroup around the process; `lockable`: RLIMIT_MEMLOCK, what the process may pin by mlock without a
    driver's help."""

    total: int
    available: int
    cgroup_limit: int | None
    cgroup_used: int | None
    lockable: int | None

    @property
    def usable(self) -> int:
        """What can still be allocated: the machine's available memory, or what its cgroup has left if that is less."""
        if self.cgroup_limit is None:
            return self.available
        return max(0, min(self.available, self.cgroup_limit - (self.cgroup_used or 0)))


def read_text(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def cpu_facts(read: Read = read_text, allowed: frozenset[int] | None = None) -> CpuFacts:
    """`allowed`: processor numbers this process may run on (default: its affinity)."""
    if allowed is None:
        allowed = frozenset(os.sched_getaffinity(0))
    processors = parse_processors(read("/proc/cpuinfo") or "")
    model = next((p["model name"] for p in processors if p.get("model name")), "unknown")
    cores = {
        (p.get("physical id", "0"), p.get("core id", p["processor"]))
        for p in processors
        if int(p["processor"]) in allowed
    }
    quotas = [parse_cpu_max(text) for folder in cgroup_folders(read) if (text := read(f"{folder}/cpu.max"))]
    for folder in cgroup_folders(read, "cpu"):
        quotas.append(parse_cfs(read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")))
    return CpuFacts(
        model=model,
        logical=len(processors) or len(allowed),
        allowed=len(allowed),
        physical=len(cores) or len(allowed),
        quota=min((q for q in quotas if q is not None), default=None),
    )


def memory_facts(read: Read = read_text, lockable: int | None = None) -> MemoryFacts:
    """`lockable`: RLIMIT_MEMLOCK in bytes (default: this process's)."""
    if lockable is None:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        lockable = None if soft == resource.RLIM_INFINITY else soft
    meminfo = parse_meminfo(read("/proc/meminfo") or "")
    limits: list[tuple[int, int]] = []
    files = [(folder, "memory.max", "memory.current", "inactive_file") for folder in cgroup_folders(read)]
    files += [
        (folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in cgroup_folders(read, "memory")
    ]
    for folder, limit_file, used_file, cache_key in files:
        most = parse_limit(read(f"{folder}/{limit_file}"))
        if most is not None:
            # pages of files that were read count as used but are given up before anything is refused
            cache = parse_stat(read(f"{folder}/memory.stat") or "").get(cache_key, 0)
            limits.append((most, max(0, (parse_limit(read(f"{folder}/{used_file}")) or 0) - cache)))
    limit, used = min(limits, key=lambda pair: pair[0] - pair[1], default=(None, None))
    return MemoryFacts(meminfo.get("MemTotal", 0), meminfo.get("MemAvailable", 0), limit, used, lockable)


def parse_processors(cpuinfo: str) -> list[dict[str, str]]:
    """One mapping per processor of /proc/cpuinfo, blocks without a processor number left out."""
    blocks = []
    for block in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if fields.get("processor", "").isdecimal():
            blocks.append(fields)
    return blocks


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            fields[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def parse_stat(text: str) -> dict[str, int]:
    """A cgroup's memory.stat: one "name count" per line."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def cgroup_folders(read: Read, controller: str = "") -> list[str]:
    """Folders whose files limit this process, its own first, then each parent's: of the version 1 `controller`, or with
    "" of the unified version 2 hierarchy. Those that do not exist simply have no files to read."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            root = f"/sys/fs/cgroup/{controller}" if controller else "/sys/fs/cgroup"
            names = [name for name in path.split("/") if name and name != ".."]
            return ["/".join([root, *names[:depth]]) for depth in range(len(names), -1, -1)]
    return []


def parse_limit(text: str | None) -> int | None:
    """A cgroup's byte count; None for "max" and for version 1's way of saying no limit."""
    if text is None or not text.strip().isdecimal():
        return None
    value = int(text)
    return value if value < _UNLIMITED else None


def parse_cpu_max(text: str) -> float | None:
    """cgroup version 2's "quota period" in microseconds as cores; None for "max"."""
    quota, _, period = text.strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def parse_cfs(quota: str | None, period: str | None) -> float | None:
    """The same from version 1's two files, where -1 means no limit."""
    return parse_cpu_max(f"{quota.strip()} {period.strip()}") if quota and period else None
