"""Floor 3: forward passes. `build` makes the decoder of a spec out of weights that are already in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.core.registry import Registry
from moesaic.kernels.api import Kernels
from moesaic.models import mixtral, olmoe, qwen3_moe
from moesaic.models.base import Decoder

Build = Callable[[ModelSpec, Mapping[str, Tensor], Kernels], Decoder]

DECODERS: Registry[Build] = Registry(
    "model_type", {"mixtral": mixtral.build, "olmoe": olmoe.build, "qwen3_moe": qwen3_moe.build}
)


def build(spec: ModelSpec, weights: Mapping[str, Tensor], kernels: Kernels) -> Decoder:
    """The decoder of `spec`. `weights` holds every non-expert tensor by its part (specs.tensor_specs), on one device
    and in one dtype, which `kernels` are for. Keeps references, allocates D / 2 floats."""
    return DECODERS[spec.model_type](spec, weights, kernels)
