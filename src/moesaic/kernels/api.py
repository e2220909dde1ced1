"""The kernels' contract: one typed function per op, and the data they share. Frozen; everything stands on it.

Shape suffixes: T tokens of a step, H hidden, N query heads, G key/value heads, D head dimension, K experts per token,
E experts of a layer, I intermediate width, P page units, M routed rows (T*K at most), S page slots, B bytes of a page,
R sequences, W block-table width, C the latent's rank, P its rotated part.

Rules for every op
- Nothing of moesaic is imported here: tensors in, tensors out.
- An op writes only what its docstring says it writes, and keeps no reference to an argument once it is done.
- On a CUDA device work is ordered on the current stream. No op synchronizes, allocates pinned memory or moves bytes
  between host and device.
- Zero rows are allowed everywhere. Ties between experts go to the lower id on every device.
- Accumulation is in float32 or wider, whatever the storage format.

Paged weights. An expert is cut into pages of P intermediate units; one page is, in order and each block contiguous and
row-major: gate rows [P, H], up rows [P, H], down columns [H, P]. A page is computable alone,
    y_TH += down_HP @ (act(gate_PH @ x) * (up_PH @ x)),
and partial sums of pages add. Pages rest in a slab of equal slots; a slot table says where each page of each expert is.
Quantized formats store a block as codes, scales and zero points (layout.py has every byte); activations are never
quantized, so an op takes x of any float dtype with them, and of the pages' own dtype otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from moesaic.kernels.layout import ExpertFormat, FormatName

ABSENT = -1  # in a slot table: this page is not on this place

WeightFormat = FormatName
Activation = Literal["silu", "gelu", "relu"]

KVFormat = Literal["fp32", "bf16", "fp16", "int8", "int4"]
KV_DTYPES: dict[torch.dtype, KVFormat] = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "int8",
    torch.uint8: "int4",
}

FORMAT_DTYPES: dict[WeightFormat, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """How every expert of a layer is stored and what it computes."""

    hidden: int
    intermediate: int
    page_units: int  # P; divides intermediate
    format: WeightFormat
    activation: Activation = "silu"
    group: int = 0  # int4: elements that share a scale
    zero_points: bool = False  # int4: of each group, stored with it

    @property
    def num_pages(self) -> int:
        return self.intermediate // self.page_units

    @property
    def stored(self) -> ExpertFormat:
        return ExpertFormat(self.format, self.group, self.zero_points)


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Where each page of each expert of one layer is in a slab.

    `page_slots_EP` int32, on the kernel's device, read at run time: a captured graph sees later changes.
    `page_slots` is the same on the host, None inside a captured graph; host-driven implementations need it.
    """

    page_slots_EP: Tensor | None
    page_slots: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class ExpertPages:
    """The experts of one layer as one place holds them: `slab_SB` uint8 [slots, bytes], its table, the shape."""

    slab_SB: Tensor
    table: SlotTable
    shape: ExpertShape


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Which rows of x go to which expert, sorted by expert.

    `token_M` int64: row of x; `weight_M` float32: what the expert's output is multiplied by; expert e owns
    entries [starts[e], starts[e+1]). `start_E1` int32 on the device; `starts` the same on the host (None inside a
    captured graph).
    """

    token_M: Tensor
    weight_M: Tensor
    start_E1: Tensor | None
    starts: Sequence[int] | None = None


class Routing(NamedTuple):
    """A router's answer: expert ids int64 and mixing weights float32, each [T, K], in the rule's order."""

    topk_ids_TK: Tensor
    topk_weights_TK: Tensor


class Handle(Protocol):
    """Work that may still run behind the caller. Buffers handed to the op stay untouched by the caller until
    done. For stream-ordered work the handle is done at once: the stream carries the order."""

    def done(self) -> bool:
        """True once finished, failed or not; never blocks."""
        ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when finished. Raises TimeoutError after `timeout_s`, or the error the work ended with."""
        ...


class Done:
    """The handle of work that is already finished, or ordered on a stream."""

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        return None


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer's key/value cache: `keys` and `values` [blocks, block tokens, G, D], in one of KV_DTYPES.

    Quantized (int8, int4) it also has float32 scales [blocks, block tokens, G]: one for each token and kv head;
    kv_formats.py has every byte. int4 rows are uint8 [..., ceil(D / 2)].
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def format(self) -> KVFormat:
        return KV_DTYPES[self.keys.dtype]


@dataclass(frozen=True, slots=True)
class PagedLatent:
    """One layer's latent cache (multi-head latent attention): `tokens` [blocks, block tokens, rank + rope], each
    token's compressed key/value, then its rotated key part, which all heads share."""

    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Ragged:
    """The sequences of a step, their query tokens laid end to end (R of them).

    `query_starts` host, [R + 1]: sequence r owns query tokens [query_starts[r], query_starts[r+1]).
    `context_lens` host, [R]: tokens of sequence r in the KV cache, this step's included; its queries are the
    last ones. `block_table_RW` int64 on the device: token t of sequence r lies in block
    block_table_RW[r, t // block tokens]; entries past the context are never read. `context_len_R` int64 is
    `context_lens` on the device; with it sequences of different length decode together, without it (None) one by one.
    """

    query_starts: Sequence[int]
    context_lens: Sequence[int]
    block_table_RW: Tensor
    context_len_R: Tensor | None = None


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """y = x / sqrt(mean(x^2, last axis) + eps) * weight, as a new tensor of x's shape and dtype.

        x [..., H], any dtype, last axis contiguous; weight [H]. Normalized in float32, cast to x's dtype, then
        multiplied (Llama's order)."""
        ...


class Rotary(Protocol):
    def __call__(self, x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
        """Rotate-half rotary embedding of x [T, heads, D] by float32 or x-typed cos and sin [T, D] (the two
        halves equal), as a new tensor of x's dtype."""
        ...


class WriteKV(Protocol):
    def __call__(self, key_TGD: Tensor, value_TGD: Tensor, kv: PagedKV, slot_T: Tensor) -> None:
        """Stores each token's key and value at slot = block * block_tokens + offset (int64, distinct).
        Overwrites those slots of `kv` and nothing else; quantizes where the cache is quantized."""
        ...


class PagedAttention(Protocol):
    def __call__(
        self,
        query_TND: Tensor,
        kv: PagedKV,
        ragged: Ragged,
        scale: float,
        sliding_window: int | None = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of every query over its own sequence's cached keys, grouped-query where N > G.

        Key j is visible to query i (positions in the sequence) iff j <= i and, with a window W, j > i - W. `sinks_N`
        float32: a logit of each head that joins the softmax and has no value (gpt-oss). A quantized cache counts as
        what it dequantizes to. Returns a new tensor [T, N, D] of the query's dtype."""
        ...


class LatentAttention(Protocol):
    def __call__(
        self, query_latent_TNC: Tensor, query_rope_TNP: Tensor, latent: PagedLatent, ragged: Ragged, scale: float
    ) -> Tensor:
        """Causal attention over the latent cache (DeepSeek-V2, section 2.1.2, with the key's up-projection absorbed
        into the query): score = scale * (query_latent . latent + query_rope . rope), and the result [T, N, rank], of
        the query's dtype, is the mean of the latents under the softmax of the scores."""
        ...


class GroupedExperts(Protocol):
    def __call__(
        self,
        x_TH: Tensor,
        rows: ExpertRows,
        experts: ExpertPages,
        out_TH: Tensor,
        page_range: tuple[int, int] | None = None,
    ) -> Handle:
        """out[token] += weight * expert(x[token]) for every row, over `page_range` of the pages (None: all).

        x [T, H]; `out_TH` float32 [T, H], which is added to, so that calls for parts of the work share one; x and out
        on the slab's device. An expert all of whose pages in the range are ABSENT from the table is skipped: its rows
        run elsewhere (so one list of rows serves every place). Present in part is the caller's fault, an assert. An
        expert's output rounds to nothing narrower than float32 before it is weighted and added; experts add in
        ascending id. May return before the work is done on the CPU (see Handle)."""
        ...


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation per op for one device and dtype, and why each was chosen (`moesaic doctor` prints it).
    Built by choose.kernels(); handed to models and runtime, which never pick an implementation themselves."""

    rms_norm: RmsNorm
    rotary: Rotary
    write_kv: WriteKV
    paged_attention: PagedAttention
    grouped_experts: GroupedExperts
    why: dict[str, str]
