"""The compiled CPU kernels: finds and loads the extension, says what it found, and calls its ops.

The library is built from csrc/cpu on torch's stable ABI; it lies beside this file in a wheel, and in the installed half
of the package in an editable install. Where there is none, callers keep to torch's own operators and say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor

from moesaic.kernels.cpu.detect import instruction_sets

LIBRARY = "_moesaic_cpu.so"


@dataclass(frozen=True, slots=True)
class Extension:
    """What became of the compiled kernels. `path`: the library, None if there is none; `why_not`: empty when loaded;
    `instruction_sets`: what this processor has of those that matter here, whether or not the library is loaded."""

    path: Path | None
    loaded: bool
    why_not: str
    instruction_sets: tuple[str, ...]


def load() -> Extension:
    """Loads the library into torch's registry if it is not there yet. Never raises: `why_not` says what is wrong."""
    found = instruction_sets()
    path = _library()
    if path is None:
        return Extension(None, False, "not built: no C++ compiler, CMake or torch headers at installation", found)
    try:
        torch.ops.load_library(str(path))
        for op in (
            "rms_norm",
            "stream_read",
            "grouped_experts",
            "paged_attention",
            "latent_attention",
        ):  # an older library may lack one
            getattr(torch.ops.moesaic, op)
    except (OSError, RuntimeError, AttributeError) as error:
        return Extension(path, False, f"{path.name} does not load: {str(error).splitlines()[0]}", found)
    return Extension(path, True, "", found)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """kernels.api.RmsNorm in C++: host tensors of float32, bfloat16 or float16, weight of x's dtype. Needs load()."""
    return torch.ops.moesaic.rms_norm(x, weight, eps)


def stream_read(data: Tensor, num_threads: int) -> int:
    """Reads all bytes of a contiguous host tensor once, at the speed of memory; needs load().

    Returns the sum of its 64-bit words as int64 (wrapping), so that the reading cannot be optimized away. Its length
    must be a multiple of 8 bytes. The best rate over thread counts on 8 GiB and more is the host's memory bandwidth.
    """
    return int(torch.ops.moesaic.stream_read(data, num_threads))


def stream_read_reference(data: Tensor, num_threads: int) -> int:
    """The slow twin of stream_read, for machines without the extension: numpy sums, one Python thread per part."""
    words = data.reshape(-1).view(torch.int64).numpy()
    parts = [words[len(words) * i // num_threads : len(words) * (i + 1) // num_threads] for i in range(num_threads)]
    sums = [0] * num_threads

    def add(index: int) -> None:
        sums[index] = int(parts[index].sum())

    threads = [Thread(target=add, args=(index,)) for index in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (sum(sums) + (1 << 63)) % (1 << 64) - (1 << 63)


def _library() -> Path | None:
    """The library in any folder of this package: an editable install has two, the sources and what was built."""
    candidates = [Path(folder) / LIBRARY for folder in __path__]
    return next((path for path in candidates if path.exists()), None)
