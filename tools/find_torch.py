"""Prints the folder of the torch package, without importing it: CMakeLists.txt asks where the headers are."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path


def find_torch() -> Path | None:
    """The importable torch, else the one in the environment around pip's isolated build, else None."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    beside = Path(sysconfig.get_path("platlib")) / "torch"
    return beside if (beside / "__init__.py").exists() else None


if __name__ == "__main__":
    folder = find_torch()
    if folder is None:
        sys.exit("torch is not installed")
    print(folder.as_posix())
