"""Does each part that moesaic stands on work here? One `Check` per part, for `moesaic doctor`; nothing here raises.

A failing check carries the line that mends it. These need no GPU; `gpu_checks` holds those that do.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moesaic.core.units import format_bytes
from moesaic.runtime.machine import CpuFacts, MemoryFacts

Status = Literal["ok", "note", "failed"]  # a note: works, with less than it could
LOW_DISK_BYTES = 8 << 30
COMPILER_FIX = "apt-get install -y gcc g++ python3-dev"
KNOWN_FLOORS = (
    *("torch>=2.11", "transformers>=5.5", "safetensors", "tokenizers", "huggingface_hub"),
    *("jinja2", "numpy", "typer", "rich", "psutil"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """`name`: the part; `value`: what was found, one line; `fix`: what to type or do, empty when nothing is wrong."""

    name: str
    status: Status
    value: str
    fix: str = ""


def attempt(name: str, fix: str, probe: Callable[[], Check]) -> Check:
    """`probe()`, or a failed check that says what it raised."""
    try:
        return probe()
    except Exception as error:  # whatever a broken library raises is the finding
        lines = str(error).strip().splitlines()
        return Check(name, "failed", f"{type(error).__name__}: {lines[0] if lines else 'no message'}", fix)


def system_check() -> Check:
    names = (read_os_name(), f"Linux {platform.release()}" if platform.system() == "Linux" else platform.system())
    where = " · ".join((*names, platform.machine(), f"Python {platform.python_version()}"))
    if platform.system() != "Linux":
        return Check("system", "failed", where, "moesaic runs on Linux")
    return Check("system", "ok", where)


def read_os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return "unknown distribution"


def package_checks(floors: Iterable[str], installed: Callable[[str], str | None]) -> list[Check]:
    """`floors`: "name" or "name>=version"; `installed`: the version of a package, None if it is not there."""
    good, checks = [], []
    for requirement in floors:
        name, _, floor = requirement.partition(">=")
        version = installed(name)
        if version is None:
            checks.append(Check(name, "failed", "not installed", f"pip install '{requirement}'"))
        elif floor and release(version) < release(floor):
            checks.append(Check(name, "failed", f"{version}, older than {floor}", f"pip install '{requirement}'"))
        else:
            good.append(f"{name} {version}")
    return [*([Check("packages", "ok", ", ".join(good))] if good else []), *checks]


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def declared_floors() -> tuple[str, ...]:
    """What this installation of moesaic says it needs; the known floors when run from sources."""
    try:
        lines = importlib.metadata.requires("moesaic") or []
    except importlib.metadata.PackageNotFoundError:
        return KNOWN_FLOORS
    return tuple(line.replace(" ", "") for line in lines if ";" not in line)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def torch_check() -> Check:
    """Imports torch and computes with it."""
    torch = importlib.import_module("torch")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    value = f"{torch.__version__}, {built}, {torch.get_num_threads()} threads"
    if torch.ones(3).sum().item() != 3:
        return Check("torch", "failed", f"{value}: 1 + 1 + 1 is not 3", "pip install --force-reinstall torch")
    return Check("torch", "ok", value)


def extension_check() -> Check:
    """Loads the compiled CPU kernels and compares one with its slow twin."""
    import torch

    from moesaic.kernels import cpu, reference

    found = cpu.load()
    if not found.loaded:
        return Check(
            "CPU kernels",
            "note",
            f"{found.why_not}; torch's own operators do the work instead",
            f"{COMPILER_FIX}; then, in moesaic's folder, pip install cmake ninja scikit-build-core and "
            "pip install --no-build-isolation .",
        )
    x = torch.linspace(-3, 3, 3 * 40).view(3, 40)
    weight = torch.linspace(0.5, 2, 40)
    if not torch.allclose(cpu.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), atol=1e-5):
        return Check("CPU kernels", "failed", f"{found.path}: wrong result", "install moesaic again, and report this")
    return Check("CPU kernels", "ok", f"compiled, loaded ({found.path})")


Which = Callable[[str], str | None]


def compiler_check(has_gpu: bool, which: Which = shutil.which, include: Path | None = None) -> Check:
    """A C compiler and Python.h: Triton builds its launchers with them. `include`: Python's include folder."""
    compiler = Path(path).name if (path := which("cc") or which("gcc") or which("clang")) else None
    header = (include or Path(sysconfig.get_path("include"))) / "Python.h"
    missing = [what for what, there in (("C compiler", compiler), ("Python.h", header.exists())) if not there]
    if not missing:
        return Check("compiler", "ok", f"{compiler}, Python.h")
    value = f"no {' and no '.join(missing)}"
    if has_gpu:
        return Check("compiler", "failed", f"{value}: Triton needs both", COMPILER_FIX)
    return Check("compiler", "note", f"{value}: only needed with a GPU and to compile the CPU kernels", COMPILER_FIX)


def cpu_check(facts: CpuFacts, instruction_sets: Iterable[str]) -> Check:
    quota = f", cgroup quota {facts.quota:g}" if facts.quota is not None else ""
    cores = f"{facts.allowed} of {facts.logical} processors allowed, {facts.physical} physical cores{quota}"
    sets = " ".join(instruction_sets) or "no vector instruction set known here"
    return Check("processor", "ok", f"{facts.model} · {sets} · {cores}: {facts.threads} threads")


def memory_check(facts: MemoryFacts) -> Check:
    limit = "no cgroup limit"
    if facts.cgroup_limit is not None:
        limit = f"cgroup limit {format_bytes(facts.cgroup_limit)}, {format_bytes(facts.cgroup_used or 0)} used"
    value = f"{format_bytes(facts.total)}, {format_bytes(facts.available)} available, {limit}"
    if facts.usable < 1 << 30:
        return Check("memory", "note", value, "less than 1 GiB is free: end other programs or raise the cgroup's limit")
    return Check("memory", "ok", value)


def lockable_check(facts: MemoryFacts) -> Check:
    limit = "unlimited" if facts.lockable is None else format_bytes(facts.lockable)
    return Check("pinnable memory", "ok", f"RLIMIT_MEMLOCK {limit}; no GPU, so none is needed")


def cache_check(folder: Path) -> Check:
    """Room where downloaded checkpoints lie, or will."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{folder}: {format_bytes(free)} free"
    if free < LOW_DISK_BYTES:
        return Check("checkpoints", "note", value, "set HF_HUB_CACHE to a folder on a larger disk")
    return Check("checkpoints", "ok", value)
