"""Machine facts from injected kernel files: affinity, cgroups of both versions, memory."""

from __future__ import annotations

import pytest

from moesaic.runtime import machine
from moesaic.runtime.machine import CpuFacts, MemoryFacts

GiB = 1 << 30


def cpuinfo(num_sockets: int, cores: int, threads: int) -> str:
    blocks = []
    for socket in range(num_sockets):
        for core in range(cores):
            for _ in range(threads):
                number = len(blocks)
                fields = {"processor": number, "model name": "Fast CPU", "physical id": socket, "core id": core}
                blocks.append("".join(f"{key}\t: {value}\n" for key, value in fields.items()))
    return "\n".join(blocks)


MEMINFO = "MemTotal:       65536000 kB\nMemFree: 1000 kB\nMemAvailable:   32768000 kB\nHugePages_Total:       3\n"


def reader(files: dict[str, str]) -> machine.Read:
    return files.get


def test_hyperthreads_are_not_cores():
    facts = machine.cpu_facts(reader({"/proc/cpuinfo": cpuinfo(2, 4, 2)}), frozenset(range(16)))
    assert facts == CpuFacts("Fast CPU", logical=16, allowed=16, physical=8, quota=None)
    assert facts.threads == 8


def test_affinity_limits_cores_to_those_behind_the_allowed_processors():
    facts = machine.cpu_facts(reader({"/proc/cpuinfo": cpuinfo(1, 4, 2)}), frozenset({0, 1, 2}))
    assert (facts.allowed, facts.physical, facts.threads) == (3, 2, 2)


def test_processors_without_core_ids_count_each_as_a_core():
    facts = machine.cpu_facts(reader({"/proc/cpuinfo": "processor: 0\n\nprocessor: 1\n"}), frozenset({0, 1}))
    assert (facts.physical, facts.model) == (2, "unknown")


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1)], ids=["none", "3.5", "half"]
)
def test_a_version_2_quota_is_rounded_down_but_leaves_one_thread(quota, threads):
    files = {"/proc/cpuinfo": cpuinfo(1, 8, 1), "/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/cpu.max": quota}
    assert machine.cpu_facts(reader(files), frozenset(range(8))).threads == threads


def test_a_version_1_quota_counts_and_minus_one_is_none():
    files = {
        "/proc/cpuinfo": cpuinfo(1, 8, 1),
        "/proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert machine.cpu_facts(reader(files), frozenset(range(8))).quota == 2
    files["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "-1\n"
    assert machine.cpu_facts(reader(files), frozenset(range(8))).quota is None


def test_memory_without_cgroups_is_the_machines():
    facts = machine.memory_facts(reader({"/proc/meminfo": MEMINFO}), lockable=8 << 20)
    assert facts == MemoryFacts(65536000 << 10, 32768000 << 10, None, None, 8 << 20)
    assert facts.usable == facts.available


def test_the_tightest_cgroup_counts_and_dropping_file_cache_is_not_use():
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "0::/user/job\n",
        "/sys/fs/cgroup/user/memory.max": str(64 * GiB),
        "/sys/fs/cgroup/user/memory.current": str(4 * GiB),
        "/sys/fs/cgroup/user/job/memory.max": str(8 * GiB),
        "/sys/fs/cgroup/user/job/memory.current": str(6 * GiB),
        "/sys/fs/cgroup/user/job/memory.stat": f"anon 7\ninactive_file {5 * GiB}\n",
    }
    facts = machine.memory_facts(reader(files), lockable=0)
    assert (facts.cgroup_limit, facts.cgroup_used) == (8 * GiB, 1 * GiB)
    assert facts.usable == 7 * GiB


def test_version_1_writes_no_limit_as_a_huge_number():
    files = {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "9:memory:/docker/abc\n0::/\n",
        "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GiB),
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(1 * GiB),
    }
    facts = machine.memory_facts(reader(files), lockable=0)
    assert (facts.cgroup_limit, facts.usable) == (2 * GiB, 1 * GiB)


def test_a_cgroup_that_is_over_its_limit_has_nothing_left():
    assert MemoryFacts(8 * GiB, 4 * GiB, 1 * GiB, 2 * GiB, None).usable == 0


def test_unreadable_files_give_zeros_not_errors():
    assert machine.memory_facts(reader({}), lockable=0).total == 0
    facts = machine.cpu_facts(reader({}), frozenset({0, 1, 2}))
    assert (facts.logical, facts.physical, facts.threads) == (3, 3, 3)


def test_this_machine_has_a_processor_and_memory():
    assert machine.cpu_facts().threads >= 1
    assert machine.memory_facts().total > 0


def test_cgroup_folders_go_from_the_process_to_the_root():
    folders = machine.cgroup_folders(reader({"/proc/self/cgroup": "0::/a/../b/c\n"}))
    assert folders == ["/sys/fs/cgroup/a/b/c", "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"]
