"""Sizes and times as people write them: "24GiB" -> bytes, 0.0031 -> "3.1 ms"."""

from __future__ import annotations

import re

from moesaic.core.arguments import shown, whole
from moesaic.core.errors import UserError

# Tensors that share a slab begin at multiples of this: the widest access of any device, and a cache line or more.
SLAB_ALIGN_BYTES = 256

KiB, MiB, GiB, TiB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_NO_SUCH_BYTES = 1 << 60

_FACTORS = {
    "": 1, "b": 1,
    "k": KiB, "kib": KiB, "kb": 10**3,
    "m": MiB, "mib": MiB, "mb": 10**6,
    "g": GiB, "gib": GiB, "gb": 10**9,
    "t": TiB, "tib": TiB, "tb": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")


def slab_bytes(num_bytes: int) -> int:
    """What a tensor of `num_bytes` takes in a slab."""
    return -(-num_bytes // SLAB_ALIGN_BYTES) * SLAB_ALIGN_BYTES


def parse_bytes(text: str | int, field: str = "size") -> int:
    """Bytes of "6GiB", "500 MB" (decimal), "24G" (binary, as vLLM reads it) or a plain number.

    Raises UserError naming `field` where the text is no size.
    """
    size: float | None = whole(text)
    if size is None:
        match = _SIZE.fullmatch(text) if isinstance(text, str) else None
        factor = _FACTORS.get(match.group(2).lower()) if match else None
        if match is None or factor is None:
            raise UserError(f"{field} {shown(text)} is not a size", "write a number and a unit, such as 6GiB or 500MB")
        size = float(match.group(1)) * factor
    if size < 0:
        raise UserError(f"{field} is negative ({shown(text)})", "give a size such as 6GiB")
    if size >= _NO_SUCH_BYTES:
        raise UserError(f"{field} {shown(text)} is more than any machine has", "give a size such as 6GiB")
    return int(size)


def format_bytes(num_bytes: float) -> str:
    """Three significant digits in binary units: 6442450944 -> "6.00 GiB"."""
    for unit, size in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if abs(num_bytes) >= size:
            return f"{_three_digits(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


def _three_digits(value: float) -> str:
    """Without an exponent up to 1023: 5.997 -> "6.00", 99.97 -> "100"."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


def format_seconds(seconds: float) -> str:
    """0.0031 -> "3.1 ms"; three significant digits at most below a second, one decimal above."""
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    for unit, size in (("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def format_rate(bytes_per_s: float) -> str:
    """Decimal gigabytes a second, as data sheets and our benchmarks give them."""
    return f"{bytes_per_s / 1e9:.1f} GB/s"
