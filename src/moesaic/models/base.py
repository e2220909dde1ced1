"""What a decoder is given and what it gives: the contract between models and the runtime.

Shape suffixes: T tokens of a step, R rows wanted as logits, H hidden, E experts, K experts per token, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.kernels.api import PagedKV, Ragged, Routing


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step's tokens, several sequences end to end; tensors int64 on the device.

    `positions_T` counts from each sequence's start. `slot_T` is where each token's key and value go: block *
    block tokens + offset. `kv` has one cache per layer.
    """

    token_ids_T: Tensor
    positions_T: Tensor
    slot_T: Tensor
    ragged: Ragged
    kv: Sequence[PagedKV]


class StepRun(Protocol):
    """The step that a forward pass runs in."""

    def op(self, name: str) -> AbstractContextManager[None]:
        """A span around the model's own work: "embed", "L3.attn", "L3.router", "L3.mlp", "head"."""
        ...

    def experts(self, layer: int, x_TH: Tensor, routing: Routing) -> Tensor:
        """The weighted sum over each token's experts, float32 [T, H], wherever they ran."""
        ...


class Decoder(Protocol):
    """A model's dense parts and the order of everything."""

    spec: ModelSpec

    def forward(self, batch: StepBatch, run: StepRun) -> Tensor:
        """Hidden states [T, H] after the final norm. Writes the step's keys and values into `batch.kv`."""
        ...

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """float32 [R, vocab]."""
        ...
