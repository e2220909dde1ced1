"""Paged attention by torch's scaled_dot_product_attention: each sequence's blocks are gathered, then attended.

Query heads that share a key/value head are folded into extra query rows (one query per sequence) or into the batch over
an expanded view of keys and values: no key is repeated, and every backend of torch takes it on CPU and CUDA alike.

Extra shape suffixes: Q query tokens, L visible keys, C query heads per key/value head, R sequences taken together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from moesaic.kernels.api import PagedKV, Ragged
from moesaic.kernels.kv_formats import dequantized_cache

MASK_BYTES = 16 << 20  # of one block of queries under an explicit mask
MAX_MASKED_QUERIES = 256
TOGETHER_TOKENS = 16384  # of sequences that decode together, their padding included

# without cuDNN, which plans anew for every context length it meets
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def paged_attention(
    query_TND: Tensor,
    kv: PagedKV,
    ragged: Ragged,
    scale: float,
    sliding_window: int | None = None,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """See api.PagedAttention. Temporaries: at most attention_workspace_bytes, without sinks and of a float cache; a
    quantized cache is dequantized first, as far as the step reads it."""
    if query_TND.shape[0] == 0:
        return torch.empty_like(query_TND)
    if kv.key_scales is not None:
        kv, ragged = dequantized_cache(kv, ragged, query_TND)
    if sinks_N is not None:
        return _with_sinks(query_TND, kv, ragged, _Mask(scale, 0, sliding_window), sinks_N)
    parts = []
    with sdpa_kernel(_BACKENDS):
        for r, together in _together(ragged):
            query_QND = query_TND[ragged.query_starts[r] : ragged.query_starts[r + together]]
            if query_QND.shape[0] == 0:
                continue
            if together > 1:
                parts.append(_decode(query_QND, kv, ragged, slice(r, r + together), scale, sliding_window))
            else:
                parts.append(_one_sequence(query_QND, kv, ragged, r, _Mask(scale, 0, sliding_window)))
    if not parts:
        return torch.empty_like(query_TND)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def attention_workspace_bytes(
    num_heads: int, num_kv_heads: int, head_dim: int, itemsize: int, context_tokens: int, query_tokens: int
) -> int:
    """An upper bound of the temporaries of one paged_attention call, its result included, in bytes.

    `context_tokens`: of the longest sequence; `query_tokens`: of the whole step.
    """
    gathered = 2 * (max(context_tokens, TOGETHER_TOKENS) + 512) * num_kv_heads * head_dim * itemsize
    slots = 12 * 8 * TOGETHER_TOKENS  # index arithmetic of sequences together, and their mask
    # result twice (parts and whole), one backend-owned copy of queries and result, its log-sum-exp and accumulators
    per_query = num_heads * (5 * head_dim * itemsize + head_dim * 4 + 8)
    return gathered + slots + query_tokens * per_query + 4 * MASK_BYTES


def _together(ragged: Ragged) -> Iterator[tuple[int, int]]:
    """(first sequence, count): neighbours that bring one query each go together as long as padding them to the longest
    at most doubles what is read. Their lengths must be equal where the device does not know them."""
    starts, contexts = ragged.query_starts, ragged.context_lens
    r = 0
    while r < len(contexts):
        end, longest, total = r + 1, contexts[r], contexts[r]
        while end < len(contexts) and starts[end + 1] - starts[end] == starts[end] - starts[end - 1] == 1:
            longest, total = max(longest, contexts[end]), total + contexts[end]
            padded = (end + 1 - r) * longest
            if padded > min(2 * total, TOGETHER_TOKENS) or (ragged.context_len_R is None and padded != total):
                break
            end += 1
        yield r, end - r
        r = end


# -- one query each ------------------------------------------------------------------------------------------
def _decode(
    query_RND: Tensor, kv: PagedKV, ragged: Ragged, sequences: slice, scale: float, window: int | None
) -> Tensor:
    contexts, table_RW = ragged.context_lens[sequences], ragged.block_table_RW[sequences]
    if min(contexts) == max(contexts):
        first = 0 if window is None else max(0, contexts[0] - window)
        keys_RLGD, values_RLGD = (_gather(cache, table_RW, first, contexts[0]) for cache in (kv.keys, kv.values))
        return _one_query_each(query_RND, keys_RLGD, values_RLGD, None, scale)
    assert ragged.context_len_R is not None
    stop_R1 = ragged.context_len_R[sequences].unsqueeze(1)
    length = max(contexts) if window is None else min(window, max(contexts))
    token_RL = torch.arange(length, device=query_RND.device).expand(len(contexts), -1)
    if window is not None:
        token_RL = token_RL + (stop_R1 - window).clamp_(min=0)
    visible_RL = token_RL < stop_R1
    # past its end a sequence's last token stands in: what lies in unwritten slots may be NaN
    token_RL = torch.minimum(token_RL, stop_R1 - 1)
    block_tokens = kv.keys.shape[1]
    block_RL = table_RW.gather(1, token_RL // block_tokens)
    slot_M = (block_RL * block_tokens + token_RL % block_tokens).flatten()
    keys_RLGD, values_RLGD = (
        cache.view(-1, *cache.shape[2:]).index_select(0, slot_M).unflatten(0, token_RL.shape)
        for cache in (kv.keys, kv.values)
    )
    return _one_query_each(query_RND, keys_RLGD, values_RLGD, visible_RL[:, None, None, :], scale)


def _gather(cache: Tensor, table_RW: Tensor, first: int, stop: int) -> Tensor:
    """Tokens [first, stop) of each sequence as [R, L, G, D]."""
    block_tokens = cache.shape[1]
    first_block = first // block_tokens
    blocks_RW = table_RW[:, first_block : -(-stop // block_tokens)]
    tokens_RLGD = cache.index_select(0, blocks_RW.flatten()).unflatten(0, blocks_RW.shape).flatten(1, 2)
    return tokens_RLGD[:, first - first_block * block_tokens : stop - first_block * block_tokens]


def _one_query_each(
    query_RND: Tensor, keys_RLGD: Tensor, values_RLGD: Tensor, visible_R11L: Tensor | None, scale: float
) -> Tensor:
    query_RGCD = query_RND.unflatten(1, (keys_RLGD.shape[2], -1))
    mixed_RGCD = F.scaled_dot_product_attention(
        query_RGCD, keys_RLGD.transpose(1, 2), values_RLGD.transpose(1, 2), visible_R11L, scale=scale
    )
    return mixed_RGCD.flatten(1, 2)


# -- one sequence --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Mask:
    """What the queries of one sequence see: query i stands at key `past` + i; `window` as in the contract."""

    scale: float
    past: int
    window: int | None


def _one_sequence(query_QND: Tensor, kv: PagedKV, ragged: Ragged, r: int, mask: _Mask) -> Tensor:
    """Gathers what its queries can see; `mask.past` is set here."""
    context, queries = ragged.context_lens[r], query_QND.shape[0]
    first = 0 if mask.window is None else max(0, context - queries - mask.window + 1)
    table_1W = ragged.block_table_RW[r : r + 1]
    keys_RLGD, values_RLGD = (_gather(cache, table_1W, first, context) for cache in (kv.keys, kv.values))
    if queries == 1:
        return _one_query_each(query_QND, keys_RLGD, values_RLGD, None, mask.scale)
    mask = replace(mask, past=context - queries - first)
    return _many_queries(query_QND, keys_RLGD[0], values_RLGD[0], mask)


def _many_queries(query_QND: Tensor, keys_LGD: Tensor, values_LGD: Tensor, mask: _Mask) -> Tensor:
    """Without a past and inside the window torch's own causal mask serves; it is aligned to the first key, so any other
    case takes explicit masks, in blocks of queries that see only the keys they need."""
    out_QND = torch.empty_like(query_QND)
    queries, groups = query_QND.shape[0], keys_LGD.shape[1]
    query_CGQD = query_QND.unflatten(1, (groups, -1)).permute(2, 1, 0, 3)
    out_CGQD = out_QND.unflatten(1, (groups, -1)).permute(2, 1, 0, 3)
    shared = query_CGQD.shape[0]
    keys_CGLD, values_CGLD = (x.transpose(0, 1).expand(shared, -1, -1, -1) for x in (keys_LGD, values_LGD))
    if mask.past == 0 and (mask.window is None or queries <= mask.window):
        out_CGQD.copy_(
            F.scaled_dot_product_attention(query_CGQD, keys_CGLD, values_CGLD, is_causal=True, scale=mask.scale)
        )
        return out_QND
    step = max(1, min(MAX_MASKED_QUERIES, MASK_BYTES // (keys_LGD.shape[0] * (1 + query_QND.element_size()))))
    position_L = torch.arange(keys_LGD.shape[0], device=query_QND.device)
    for begin in range(0, queries, step):
        end = min(begin + step, queries)
        first = 0 if mask.window is None else max(0, mask.past + begin - mask.window + 1)
        seen = slice(first, mask.past + end)
        age_QL = position_L[mask.past + begin : mask.past + end, None] - position_L[seen]
        visible_QL = age_QL >= 0 if mask.window is None else (age_QL >= 0) & (age_QL < mask.window)
        out_CGQD[:, :, begin:end] = F.scaled_dot_product_attention(
            query_CGQD[:, :, begin:end], keys_CGLD[:, :, seen], values_CGLD[:, :, seen], visible_QL, scale=mask.scale
        )
    return out_QND


# -- sinks ---------------------------------------------------------------------------------------------------
def _with_sinks(query_TND: Tensor, kv: PagedKV, ragged: Ragged, mask: _Mask, sinks_N: Tensor) -> Tensor:
    """By plain products and a softmax that has one column more: torch's fused attention knows no sinks."""
    out_TND = torch.empty_like(query_TND)
    for r, context in enumerate(ragged.context_lens):
        start, stop = ragged.query_starts[r], ragged.query_starts[r + 1]
        if start == stop:
            continue
        table_1W = ragged.block_table_RW[r : r + 1]
        keys_GLD, values_GLD = (
            _gather(cache, table_1W, 0, context)[0].transpose(0, 1).float() for cache in (kv.keys, kv.values)
        )
        step = max(1, MASK_BYTES // (4 * query_TND.shape[1] * context))
        for begin in range(start, stop, step):
            end = min(stop, begin + step)
            query_GCQD = query_TND[begin:end].transpose(0, 1).unflatten(0, (keys_GLD.shape[0], -1)).float()
            scores_GCQL = query_GCQD @ keys_GLD.unsqueeze(1).transpose(2, 3) * mask.scale
            position_L = torch.arange(context, device=query_TND.device)
            age_QL = position_L[context - (stop - begin) : context - (stop - end), None] - position_L
            hidden_QL = age_QL < 0 if mask.window is None else (age_QL < 0) | (age_QL >= mask.window)
            scores_GCQL.masked_fill_(hidden_QL, float("-inf"))
            sinks_GCQ1 = sinks_N.float().view(*scores_GCQL.shape[:2], 1, 1).expand(-1, -1, end - begin, -1)
            weights_GCQL = torch.softmax(torch.cat((scores_GCQL, sinks_GCQ1), dim=-1), dim=-1)[..., :-1]
            out_TND[begin:end] = (
                (weights_GCQL @ values_GLD.unsqueeze(1)).flatten(0, 1).transpose(0, 1).to(out_TND.dtype)
            )
    return out_TND
