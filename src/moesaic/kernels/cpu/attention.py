"""Attention by the compiled CPU kernels, on the extension's own threads.

Queries are of any length: chunks of a prompt go the same way as single tokens. Scores, weights and sums are float32.
The same bits whatever the number of threads and whatever else is in the step (csrc/cpu/attention.h says how).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moesaic.kernels.api import PagedKV, PagedLatent, Ragged
from moesaic.kernels.cpu.experts import ISAS


@dataclass(frozen=True, slots=True)
class CpuAttention:
    """kernels.api.PagedAttention on host tensors. `max_isa`: use no instruction set above it; `num_threads`: of the
    pool's, 0 or more than it has: all. Needs cpu.load()."""

    max_isa: str = ISAS[-1]
    num_threads: int = 0

    def __call__(
        self,
        query_TND: Tensor,
        kv: PagedKV,
        ragged: Ragged,
        scale: float,
        sliding_window: int | None = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """See api.PagedAttention."""
        return torch.ops.moesaic.paged_attention(
            _rows(query_TND),
            kv.keys,
            kv.values,
            kv.key_scales,
            kv.value_scales,
            ragged.query_starts,
            ragged.context_lens,
            ragged.block_table_RW.contiguous(),
            scale,
            sliding_window,
            None if sinks_N is None else sinks_N.to(torch.float32).contiguous(),
            self.num_threads,
            ISAS.index(self.max_isa),
        )


@dataclass(frozen=True, slots=True)
class CpuLatentAttention:
    """kernels.api.LatentAttention on host tensors; fields as of CpuAttention. Needs cpu.load()."""

    max_isa: str = ISAS[-1]
    num_threads: int = 0

    def __call__(
        self, query_latent_TNC: Tensor, query_rope_TNP: Tensor, latent: PagedLatent, ragged: Ragged, scale: float
    ) -> Tensor:
        """See api.LatentAttention."""
        return torch.ops.moesaic.latent_attention(
            _rows(query_latent_TNC),
            _rows(query_rope_TNP),
            latent.tokens,
            ragged.query_starts,
            ragged.context_lens,
            ragged.block_table_RW.contiguous(),
            scale,
            self.num_threads,
            ISAS.index(self.max_isa),
        )


def _rows(query: Tensor) -> Tensor:
    return query if query.shape[-1] <= 1 or query.stride(-1) == 1 else query.contiguous()
