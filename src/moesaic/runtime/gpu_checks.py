"""The GPU half of `moesaic doctor`: driver, devices, Triton compiling and launching a real kernel, memory that pins."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from moesaic.core.units import format_bytes, format_rate
from moesaic.runtime.checks import COMPILER_FIX, Check, attempt
from moesaic.runtime.machine import MemoryFacts

GiB = 1 << 30
PIN_PROBE_BYTES = 4 * GiB
DRIVER_FIX = "install NVIDIA's driver, or in a container start it with --gpus all"


def driver_lines() -> list[str] | None:
    """One "name, memory, driver version" per GPU as nvidia-smi says it; None where there is no NVIDIA driver."""
    if shutil.which("nvidia-smi") is None:
        return [] if Path("/proc/driver/nvidia/version").exists() else None
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def gpu_checks(memory: MemoryFacts, driver: Callable[[], list[str] | None] = driver_lines) -> list[Check]:
    """Empty where this machine has no NVIDIA driver."""
    lines = driver()
    if lines is None:
        return []
    if not lines:
        return [Check("NVIDIA driver", "failed", "the driver is there but answers with no GPU", DRIVER_FIX)]
    version = lines[0].rsplit(",", 1)[-1].strip()
    checks = [Check("NVIDIA driver", "ok", f"{version}, {len(lines)} GPU{'s' if len(lines) > 1 else ''}")]
    devices = attempt("GPU", "pip install --force-reinstall 'torch>=2.11'", _devices)
    checks.append(devices)
    if devices.status == "ok":
        checks.append(attempt("Triton", f"{COMPILER_FIX}; pip install triton", _triton))
        checks.append(attempt("pinnable memory", "raise the memory limits", lambda: _pinnable(memory)))
    return checks


def _devices() -> Check:
    import torch

    if torch.version.cuda is None:
        value = f"torch {torch.__version__} is a CPU build"
        return Check("GPU", "failed", value, "pip install --force-reinstall torch")
    if not torch.cuda.is_available():
        wanted = f"torch's CUDA {torch.version.cuda} cannot use this driver"
        return Check("GPU", "failed", wanted, "update the driver, or install a torch built for an older CUDA")
    names = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        names.append(
            f"{index}: {facts.name}, {format_bytes(total)} ({format_bytes(free)} free), "
            f"compute capability {facts.major}.{facts.minor}"
        )
    return Check("GPU", "ok", "; ".join(names))


def _triton() -> Check:
    """Compiles and launches the RMSNorm kernel and compares it with its slow twin."""
    import torch

    from moesaic.kernels import reference
    from moesaic.kernels.triton.rms_norm import rms_norm

    x = torch.linspace(-3, 3, 5 * 1000, device="cuda").view(5, 1000)
    weight = torch.linspace(0.5, 2, 1000, device="cuda")
    error = (rms_norm(x, weight, 1e-6) - reference.rms_norm(x, weight, 1e-6)).abs().max().item()
    if not error < 1e-4:
        return Check("Triton", "failed", f"a kernel ran, but is off by {error:.2g}", "pip install --upgrade triton")
    import triton

    return Check("Triton", "ok", f"{triton.__version__}: compiled, launched, right")


def _pinnable(memory: MemoryFacts) -> Check:
    """Registers touched memory with the driver, a quarter GiB at a time, up to 4 GiB or a quarter of what is free."""
    import time

    from moesaic.memory.buffers import HostArena

    chunk = GiB // 4
    num_chunks = max(1, min(PIN_PROBE_BYTES, memory.usable // 4) // chunk)
    arena = HostArena(num_chunks, chunk)
    try:
        arena.slab_SB.fill_(1)
        start = time.perf_counter()
        registration = arena.register(chunk)
        seconds = time.perf_counter() - start
    finally:
        arena.close()
    limit = "unlimited" if memory.lockable is None else format_bytes(memory.lockable)
    value = (
        f"{format_bytes(registration.registered_bytes)} of {format_bytes(arena.num_bytes)} tried, at "
        f"{format_rate(registration.registered_bytes / seconds)}; RLIMIT_MEMLOCK {limit}"
    )
    if registration.registered_bytes == arena.num_bytes:
        return Check("pinnable memory", "ok", value)
    fix = "ulimit -l unlimited, or start the container with --ulimit memlock=-1"
    return Check("pinnable memory", "note", f"{value}; {registration.message}", fix)
