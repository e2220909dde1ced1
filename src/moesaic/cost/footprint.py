"""Bytes and flops of each part of a model: what it occupies, and what one step reads and computes.

Everything here is counted from shapes. `itemsize` is bytes per element of the weights as loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from moesaic.core.model import ModelSpec, MoESpec, TensorSpec
from moesaic.core.ops import Compute
from moesaic.core.units import slab_bytes

FLOAT32_BYTES = 4
FLOAT64_BYTES = 8


def dense_bytes(tensors: Sequence[TensorSpec], itemsize: int) -> int:
    """Everything but the routed experts, as it lies in one slab."""
    return sum(slab_bytes(prod(t.shape) * itemsize) for t in tensors if t.expert is None)


def dense_read_bytes(spec: ModelSpec, tensors: Sequence[TensorSpec], itemsize: int) -> int:
    """Bytes of non-expert weights that one decode step reads: all but the embedding table, of which it reads
    one row a token; the LM head counts, also when it is the same table."""
    table = spec.vocab * spec.hidden * itemsize
    return dense_bytes(tensors, itemsize) - (0 if spec.tied_embeddings else table)


def kv_token_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Keys and values of one token over all layers."""
    attention = spec.attention
    return len(spec.layers) * 2 * attention.num_kv_heads * attention.head_dim * itemsize


def expert_flops_per_token(spec: ModelSpec, layer: int) -> int:
    """Multiply-adds of gate, up and down, counted as two flops each."""
    return 2 * 3 * spec.hidden * spec.moe(layer).intermediate


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes on the device, by op name.

    `num_tokens` run through every layer, over `context_tokens` cached tokens in all (this step's included);
    `num_logits` of them go through the LM head.
    """

    spec: ModelSpec
    itemsize: int
    num_tokens: int
    context_tokens: int
    num_logits: int

    def of(self, name: str) -> Compute:
        """Work of "embed", "head", "sample", "L<i>.attn", "L<i>.router" or "L<i>.mlp". AssertionError for another."""
        if name == "embed":
            return Compute(0.0, float(self.num_tokens * self.spec.hidden * self.itemsize * 2))
        if name == "head":
            return self._matmul(self.spec.vocab * self.spec.hidden, self.num_logits)
        if name == "sample":
            return Compute(0.0, float(self.spec.vocab * self.num_logits * FLOAT32_BYTES))
        layer, _, part = name.partition(".")
        feed_forward = self.spec.layers[int(layer.removeprefix("L"))]
        if part == "attn":
            return self._attention()
        if part == "router" and isinstance(feed_forward, MoESpec):
            return self._matmul(feed_forward.num_experts * self.spec.hidden, self.num_tokens)
        assert part == "mlp", f"unknown op {name}"
        width = feed_forward if isinstance(feed_forward, int) else feed_forward.shared_intermediate
        return self._matmul(3 * width * self.spec.hidden, self.num_tokens)

    def _matmul(self, num_weights: int, num_rows: int) -> Compute:
        return Compute(2.0 * num_weights * num_rows, float(num_weights * self.itemsize))

    def _attention(self) -> Compute:
        a = self.spec.attention
        width = a.num_heads * a.head_dim
        weights = self.spec.hidden * (2 * width + 2 * a.num_kv_heads * a.head_dim)
        projections = self._matmul(weights, self.num_tokens)
        # every query meets, on average over a batch of mixed lengths, its own sequence's context
        scores = 4.0 * width * self.context_tokens * max(1.0, self.num_tokens / max(1, self.num_logits))
        kv_bytes = self.context_tokens * kv_token_bytes(self.spec, self.itemsize) / len(self.spec.layers)
        return Compute(projections.num_flops + scores, projections.num_bytes + kv_bytes)


@dataclass(frozen=True, slots=True)
class StepShape:
    """The largest step: tokens through the layers, and rows of logits."""

    num_tokens: int
    num_logits: int


def workspace_bytes(spec: ModelSpec, itemsize: int, step: StepShape, attention_bytes: int, experts_bytes: int) -> int:
    """Upper bound of the temporaries of one step on the device, beside weights and KV.

    `attention_bytes` and `experts_bytes` are what those kernels say they need for such a step. The parts of a layer
    follow each other, so the largest counts, on top of the residual stream and the step's rotary tables.
    """
    a, tokens = spec.attention, step.num_tokens
    hidden = tokens * spec.hidden
    # q, k, v, their normed and rotated twins with one float32 form, and the projected output
    width = a.num_heads * a.head_dim + 2 * a.num_kv_heads * a.head_dim
    projections = tokens * width * (3 * itemsize + 2 * FLOAT32_BYTES) + hidden * itemsize
    widest = max((w for w in spec.layers if isinstance(w, int)), default=0)
    dense = tokens * widest * 3 * itemsize
    num_experts = max((m.num_experts for m in spec.layers if isinstance(m, MoESpec)), default=0)
    # float32 logits and input, scores, and a stable sort's values, indices and scratch
    routing = tokens * num_experts * (3 * FLOAT32_BYTES + 4 * FLOAT64_BYTES) + hidden * FLOAT32_BYTES
    # processed logits, probabilities and their running sum, and a sort for top-k and top-p (52 bytes seen on Hopper)
    logits = step.num_logits * spec.vocab * (4 * FLOAT32_BYTES + 8 * FLOAT64_BYTES)
    stream = hidden * (4 * itemsize + 3 * FLOAT32_BYTES)
    tables = 3 * tokens * a.head_dim * FLOAT32_BYTES
    return stream + tables + max(projections + attention_bytes, dense, routing + experts_bytes, logits)
