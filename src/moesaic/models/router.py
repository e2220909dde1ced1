"""Router rules: logits -> experts and mixing weights, one function per published rule.

Logits are float32. Experts are ordered by logit, ties by lower id on every device (torch.topk promises no order, a
stable sort does); a row of NaN gets k distinct experts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moesaic.core.registry import Registry
from moesaic.kernels.api import Routing

Router = Callable[[Tensor, int], Routing]


def softmax_topk_renorm(logits_TE: Tensor, top_k: int) -> Routing:
    """Softmax over all experts, the k largest, divided by their sum; which is the softmax over those k alone.

    Mixtral always; Qwen3-MoE and OLMoE with norm_topk_prob true."""
    ids_TK, chosen_TK = _largest(logits_TE, top_k)
    return Routing(ids_TK, torch.softmax(chosen_TK, dim=-1))


def softmax_topk(logits_TE: Tensor, top_k: int) -> Routing:
    """Softmax over all experts, the k largest as they are: their sum is below 1.

    OLMoE as published; Qwen3-MoE with norm_topk_prob false."""
    ids_TK, _ = _largest(logits_TE, top_k)
    return Routing(ids_TK, torch.softmax(logits_TE, dim=-1).gather(1, ids_TK))


def _largest(logits_TE: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    assert logits_TE.dtype == torch.float32, f"router logits are {logits_TE.dtype}: near-ties would merge"
    sorted_TE, order_TE = torch.sort(logits_TE, dim=-1, descending=True, stable=True)
    return order_TE[:, :top_k].contiguous(), sorted_TE[:, :top_k]


ROUTERS: Registry[Router] = Registry(
    "router rule", {"softmax_topk_renorm": softmax_topk_renorm, "softmax_topk": softmax_topk}
)
