"""The tap on a router's answers: records which experts were chosen, or replaces them by a trace's.

Forced routing makes the hit rate a controlled variable: with random weights, and against the simulator, the same
experts are asked for in the same order. What records and what forces is a sim.routing_trace.RoutingTrace in practice;
here only the calls below are asked of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from moesaic.core.errors import UserError
from moesaic.core.model import ModelSpec
from moesaic.kernels.api import Routing


class RoutingSink(Protocol):
    """A step is opened, then every MoE layer is recorded in order."""

    def begin_step(self) -> None: ...

    def record(self, layer: int, ids_TK: Sequence[Sequence[int]]) -> None: ...


class RoutingSource(Protocol):
    """Experts of each token of each step, for the layers it has."""

    @property
    def layers(self) -> tuple[int, ...]: ...

    @property
    def num_experts(self) -> int: ...

    @property
    def top_k(self) -> int: ...

    def __len__(self) -> int: ...

    def ids(self, step: int, layer: int) -> Sequence[Sequence[int]]: ...


class RoutingTap:
    """Between router and runner. Off unless `record_to` or `force` was called."""

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        self._sink: RoutingSink | None = None
        self._forced: dict[int, Tensor] = {}
        self._tokens: Tensor | None = None
        self._next = 0

    def record_to(self, sink: RoutingSink | None) -> None:
        """Every later step goes to `sink` as well; None stops."""
        self._sink = sink

    def force(self, source: RoutingSource | None) -> None:
        """Every later token takes the experts of the source's next token, all with weight 1/k, and the source begins
        anew at its end; None gives the router back its say. UserError where the source is of another geometry."""
        self._forced, self._next = {}, 0
        if source is None:
            return
        for layer in self._spec.moe_layers:
            moe = self._spec.moe(layer)
            if layer not in source.layers or (moe.num_experts, moe.top_k) != (source.num_experts, source.top_k):
                raise UserError(
                    f"routing trace: layers {list(source.layers)}, {source.top_k} of {source.num_experts} experts; "
                    f"the model's layer {layer} takes {moe.top_k} of {moe.num_experts}",
                    "give a trace of this model's geometry",
                )
            ids = [token for step in range(len(source)) for token in source.ids(step, layer)]
            if not ids:
                raise UserError("routing trace: no steps", "give a trace with at least one token")
            self._forced[layer] = torch.tensor(ids, dtype=torch.int64, device=self._device)

    def begin_step(self, num_tokens: int) -> None:
        if self._sink is not None:
            self._sink.begin_step()
        if self._forced:
            length = len(next(iter(self._forced.values())))
            self._tokens = (torch.arange(num_tokens, device=self._device) + self._next) % length
            self._next += num_tokens

    @property
    def forces(self) -> bool:
        return bool(self._forced)

    def routing(self, layer: int, routing: Routing) -> Routing:
        """The forced answer in place of the router's."""
        assert self._tokens is not None, "no step is open"
        ids_TK = self._forced[layer].index_select(0, self._tokens)
        return Routing(ids_TK, torch.full_like(routing.topk_weights_TK, 1.0 / ids_TK.shape[1]))

    def record(self, layer: int, ids_TK: Tensor) -> None:
        """`ids_TK` is on the host."""
        if self._sink is not None:
            self._sink.record(layer, ids_TK.tolist())
