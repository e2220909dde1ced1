"""Which instruction sets this processor offers, of those that CPU kernels care about."""

from __future__ import annotations

from pathlib import Path

# Our name -> the flags that /proc/cpuinfo must all show for it.
_FLAGS: dict[str, tuple[str, ...]] = {
    "avx2": ("avx2", "fma", "f16c"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "avx_vnni": ("avx_vnni",),
    "avx512_vnni": ("avx512_vnni",),
    "avx512_bf16": ("avx512_bf16",),
    "avx512_fp16": ("avx512_fp16",),
    "amx_bf16": ("amx_tile", "amx_bf16"),
    "amx_int8": ("amx_tile", "amx_int8"),
    "neon": ("asimd",),
    "sve": ("sve",),
}


def parse_cpuinfo(text: str) -> tuple[str, ...]:
    """Names of the instruction sets that every processor listed in /proc/cpuinfo's `text` has."""
    common: set[str] | None = None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = set(value.split())
            common = flags if common is None else common & flags
    has = common or set()
    return tuple(name for name, needed in _FLAGS.items() if has.issuperset(needed))


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """parse_cpuinfo of this machine; empty where the system has no such file."""
    try:
        return parse_cpuinfo(cpuinfo.read_text())
    except OSError:
        return ()
