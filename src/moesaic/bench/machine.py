"""Provenance of a measurement: the machine, the versions, the commit. Reads the machine, changes nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch

from moesaic.observe.record import Value
from moesaic.runtime.machine import cpu_facts, memory_facts

_PACKAGES = ("torch", "triton", "transformers", "safetensors", "numpy")


def describe_machine(device: torch.device) -> dict[str, Value]:
    """CPU, cores and memory that this process may use, and the GPU where `device` is one."""
    cpu, memory = cpu_facts(), memory_facts()
    machine: dict[str, Value] = {
        "cpu": cpu.model,
        "cores": cpu.allowed,
        "threads": cpu.threads,
        "memory_bytes": min(memory.total, memory.cgroup_limit or memory.total),
        "kernel": platform.release(),
        "gpu": None,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine["gpu"] = properties.name
        machine["gpu_memory_bytes"] = properties.total_memory
        machine["driver"] = driver_version()
    return machine


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def commit(package: Path) -> str:
    """Short hash of the checkout that `package`, a folder, is in; "+changes" where tracked files differ from it;
    "" where it is in no checkout of its own project."""
    root = next((p for p in package.parents if (p / ".git").exists()), None)
    if root is None or not (root / "src" / package.name).is_dir():
        return ""
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{head}+changes" if head and changed else head


def driver_version() -> str | None:
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), None)


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
