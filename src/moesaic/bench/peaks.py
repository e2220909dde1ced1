"""Peaks and energy while a body runs: device bytes as the allocator and the driver see them, host bytes, joules."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from moesaic.runtime.device import warm_up

_PERIOD_S = 0.025


@dataclass(slots=True)
class Peaks:
    """None: this machine does not tell. Filled when the `watch` that made it ends, all but what the engine counts."""

    device_counted_bytes: int | None = None  # what the engine itself counts against its budget
    device_allocated_bytes: int | None = None  # most bytes of live tensors
    device_reserved_bytes: int | None = None  # most bytes torch's allocator held
    device_driver_bytes: int | None = None  # most bytes gone from the whole device above those gone before `baseline`
    host_bytes: int | None = None  # most resident bytes above the baseline
    energy_j: float | None = None  # of the whole device


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was gone before: device bytes of other processes, host bytes of this one with an initialized device."""

    device_used_bytes: int
    host_bytes: int


def take_baseline(device: torch.device) -> Baseline:
    """Reads device usage, initializes the device with the libraries a step uses (a gigabyte of code, mapped at their
    first call), then reads host usage. Without NVML nobody can tell what was gone before this process had a context:
    then all of the device's bytes count as ours."""
    used = driver_used_bytes(device) if has_nvml() else 0
    warm_up(device, torch.bfloat16)
    return Baseline(used, host_rss_bytes())


@contextmanager
def watch(device: torch.device, baseline: Baseline) -> Iterator[Peaks]:
    """Samples every 25 ms in a thread of its own; the allocator's and the kernel's own peaks miss nothing."""
    peaks = Peaks()
    stop = threading.Event()
    highest = [0, 0]

    def sample() -> None:
        highest[0] = max(highest[0], driver_used_bytes(device))
        highest[1] = max(highest[1], host_rss_bytes())

    def loop() -> None:
        while not stop.wait(_PERIOD_S):
            sample()

    is_exact = _reset_host_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    start_j = energy_j(device)
    sample()
    thread = threading.Thread(target=loop, name="moesaic-peaks", daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()
        sample()
        peaks.host_bytes = max(0, (_status_bytes("VmHWM") if is_exact else highest[1]) - baseline.host_bytes)
        end_j = energy_j(device)
        peaks.energy_j = end_j - start_j if start_j is not None and end_j is not None else None
        if device.type == "cuda":
            peaks.device_allocated_bytes = torch.cuda.max_memory_allocated(device)
            peaks.device_reserved_bytes = torch.cuda.max_memory_reserved(device)
            peaks.device_driver_bytes = max(0, highest[0] - baseline.device_used_bytes)


def driver_used_bytes(device: torch.device) -> int:
    """Bytes of the whole device that are gone, as the driver counts them; 0 for a CPU. Asks NVML where its bindings
    are there, because asking the CUDA driver makes a context first."""
    if device.type != "cuda":
        return 0
    if has_nvml():
        return int(torch.cuda.device_memory_used(device))
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def energy_j(device: torch.device) -> float | None:
    """Joules the whole device has used since its driver was loaded."""
    if device.type != "cuda" or not has_nvml():
        return None
    import pynvml

    pynvml.nvmlInit()
    try:
        card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(card)) * 1e-3
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


@functools.cache
def has_nvml() -> bool:
    """Whether NVML's bindings are installed and find a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the bindings raise their own kinds for every way to be broken
        return False
    return True


def host_rss_bytes() -> int:
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_host_peak() -> bool:
    """Makes VmHWM count from now on; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
