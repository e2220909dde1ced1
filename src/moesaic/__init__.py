"""moesaic: runs mixture-of-experts language models that do not fit in GPU memory.

`from moesaic import LLM, SamplingParams`, names as in vLLM. Importing the package alone costs nothing: torch is loaded
when `LLM` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from moesaic.api import LLM
    from moesaic.core.sampling import SamplingParams


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from moesaic.api import LLM

        return LLM
    if name == "SamplingParams":
        from moesaic.core.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'moesaic' has no attribute {name!r}")
