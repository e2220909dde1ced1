"""Logits to tokens: processing, drawing, log-probabilities, for all rows of a step with one read-back.

Shape suffixes: R rows (one sequence's next token each), V vocabulary, N likeliest tokens asked for, P entries of a
penalty table. Work is in float64 from the temperature on and row by row independent; each row is drawn with one uniform
number of its own request by the inverse of the cumulative distribution in token order. So a request's tokens depend on
its own logits and seed alone, not on its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from moesaic.core.sampling import SamplingParams
from moesaic.runtime.staging import Staging


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One row's request: filled params, the tokens so far, end tokens that min_tokens masks, and its uniform draw
    in [0, 1) (not read where greedy)."""

    params: SamplingParams
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    end_token_ids: Collection[int]
    uniform: float


class TokenLogprobs(NamedTuple):
    """The chosen token's raw log-probability and rank, and the likeliest tokens, best first."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class Sampled(NamedTuple):
    """`token_id` is None where the row's logits, or what bias and penalties make of them, hold NaN or no finite
    maximum: no token can be chosen from them."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None


def sample(logits_RV: Tensor, rows: Sequence[SampleRow], staging: Staging) -> list[Sampled]:
    """One token per row of float32 logits. Synchronizes once, to read the tokens. Overwrites nothing."""
    assert logits_RV.shape[0] == len(rows), (logits_RV.shape, len(rows))
    if not rows:
        return []
    finite_R = logits_RV.max(dim=-1).values.isfinite()
    scores_RV = _process(logits_RV, rows, staging)
    if scores_RV is not logits_RV:
        finite_R &= scores_RV.max(dim=-1).values.isfinite()
    token_R = scores_RV.argmax(dim=-1)  # the lowest id among equals
    drawing = [i for i, row in enumerate(rows) if not row.params.greedy]
    if drawing:
        token_R = _draw(scores_RV, rows, drawing, token_R, staging)
    columns = [finite_R, token_R]
    num_top = max((r.params.logprobs for r in rows if r.params.logprobs is not None), default=None)
    packed_RC = torch.stack([c.double() for c in columns], dim=1)
    if num_top is not None:
        packed_RC = torch.cat([packed_RC, _logprobs(logits_RV, token_R, num_top)], dim=1)
    return [_unpack(values, row) for values, row in zip(packed_RC.tolist(), rows, strict=True)]


def score_tokens(logits_RV: Tensor, token_R: Tensor, num_top: int) -> Tensor:
    """Raw log-probabilities of given tokens, packed float64 [R, 2 + 2 * num_top] on the device: prompt_logprobs'
    part that may be computed slab by slab and read back once with `read_scores`."""
    return _logprobs(logits_RV, token_R, num_top)


def read_scores(packed_RC: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Reads what `score_tokens` packed. Synchronizes."""
    return [_read(values, num_top) for values in packed_RC.tolist()]


def _unpack(values: list[float], row: SampleRow) -> Sampled:
    if not values[0]:
        return Sampled(None)
    num_top = row.params.logprobs
    return Sampled(int(values[1]), None if num_top is None else _read(values[2:], num_top))


def _read(values: list[float], num_top: int) -> TokenLogprobs:
    logprob, rank, *top = values
    half = len(top) // 2
    return TokenLogprobs(logprob, int(rank), tuple((int(top[i]), top[half + i]) for i in range(min(num_top, half))))


def _logprobs(logits_RV: Tensor, token_R: Tensor, num_top: int) -> Tensor:
    """[R, 2 + 2 * num_top] float64: the token's logprob, its rank, the likeliest ids, their logprobs."""
    logprobs_RV = logits_RV.float().log_softmax(dim=-1)
    chosen_R1 = logprobs_RV.gather(1, token_R[:, None])
    rank_R1 = (logprobs_RV > chosen_R1).sum(dim=1, keepdim=True) + 1
    top = logprobs_RV.topk(min(num_top, logprobs_RV.shape[1]), dim=1)
    return torch.cat([chosen_R1.double(), rank_R1.double(), top.indices.double(), top.values.double()], dim=1)


# -- before the draw: what changes logits, also greedy ones ----------------------------------------------------
def _process(logits_RV: Tensor, rows: Sequence[SampleRow], staging: Staging) -> Tensor:
    """Logits after bias, penalties and min_tokens; the very same tensor where no row asks for any."""
    bias: dict[tuple[int, int], float] = {}
    masked: list[tuple[int, int]] = []
    penalties: list[_Penalty] = []
    for i, row in enumerate(rows):
        bias.update({(i, token): value for token, value in (row.params.logit_bias or {}).items()})
        penalties += _penalties(i, row)
        if len(row.output_token_ids) < row.params.min_tokens:
            masked += [(i, token) for token in sorted(row.end_token_ids)]
    if not (bias or penalties or masked):
        return logits_RV
    scores_RV = logits_RV.clone()
    if bias:
        value_P = staging.upload(list(bias.values()), torch.float64).to(scores_RV.dtype)
        scores_RV.index_put_(_cells(list(bias), staging), value_P, accumulate=True)
    if penalties:
        _penalize(scores_RV, penalties, staging)
    if masked:
        never = torch.full((), -torch.inf, dtype=scores_RV.dtype, device=scores_RV.device)
        scores_RV.index_put_(_cells(masked, staging), never)  # a Python scalar here would cost a synchronization
    return scores_RV


class _Penalty(NamedTuple):
    """One token of one row: divide (or multiply) by `repetition`, then take `flat` off."""

    row: int
    token: int
    repetition: float
    flat: float


def _penalties(i: int, row: SampleRow) -> list[_Penalty]:
    params = row.params
    repetition = params.repetition_penalty or 1.0
    counts: dict[int, int] = {}
    if params.presence_penalty or params.frequency_penalty or repetition != 1.0:
        for token in row.output_token_ids:
            counts[token] = counts.get(token, 0) + 1
    if repetition != 1.0:
        counts = dict.fromkeys(row.prompt_token_ids, 0) | counts
    return [
        _Penalty(i, token, repetition, params.frequency_penalty * n + params.presence_penalty * (n > 0))
        for token, n in counts.items()
    ]


def _penalize(scores_RV: Tensor, penalties: Sequence[_Penalty], staging: Staging) -> None:
    cells = _cells([(p.row, p.token) for p in penalties], staging)
    factors_P2 = staging.upload([x for p in penalties for x in (p.repetition, p.flat)], torch.float64).view(-1, 2)
    score_P = scores_RV[cells].double()
    repetition_P = factors_P2[:, 0]
    score_P = torch.where(score_P > 0, score_P / repetition_P, score_P * repetition_P) - factors_P2[:, 1]
    scores_RV[cells] = score_P.to(scores_RV.dtype)


def _cells(cells: Sequence[tuple[int, int]], staging: Staging) -> tuple[Tensor, Tensor]:
    index_2P = staging.upload([i for i, _ in cells] + [token for _, token in cells]).view(2, -1)
    return index_2P[0], index_2P[1]


# -- the draw ----------------------------------------------------------------------------------------------------
def _draw(
    scores_RV: Tensor, rows: Sequence[SampleRow], drawing: Sequence[int], token_R: Tensor, staging: Staging
) -> Tensor:
    """`token_R` with the rows of `drawing` drawn instead of greedy."""
    chosen = [rows[i].params for i in drawing]
    everything = scores_RV.shape[1]
    columns: Mapping[str, list[float]] = {
        "row": [float(i) for i in drawing],
        "uniform": [rows[i].uniform for i in drawing],
        "temperature": [p.temperature or 1.0 for p in chosen],
        "top_k": [float(p.top_k if p.top_k and p.top_k > 0 else everything) for p in chosen],
        "top_p": [p.top_p or 1.0 for p in chosen],
        "min_p": [p.min_p or 0.0 for p in chosen],
    }
    table = staging.upload([x for column in columns.values() for x in column], torch.float64).view(len(columns), -1)
    row_R, uniform_R, temperature_R, top_k_R, top_p_R, min_p_R = table.unbind()
    row_R = row_R.long()
    logits_RV = scores_RV[row_R].double() / temperature_R[:, None]
    if any(k < everything for k in columns["top_k"]) or any(p < 1.0 for p in columns["top_p"]):
        logits_RV = keep_top(logits_RV, top_k_R, top_p_R)
    probs_RV = logits_RV.softmax(dim=-1)
    if any(columns["min_p"]):
        floor_R1 = min_p_R[:, None] * probs_RV.max(dim=-1, keepdim=True).values
        probs_RV = probs_RV.masked_fill(probs_RV < floor_R1, 0.0)
    return token_R.index_copy(0, row_R, invert_cdf(probs_RV, uniform_R))


def keep_top(logits_RV: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    """-inf outside each row's `top_k` likeliest tokens, then outside the fewest of those that hold `top_p` of their
    probability. Equal logits rank by id; the likeliest token always stays."""
    ordered = logits_RV.sort(dim=-1, descending=True, stable=True)
    position_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    kept_RV = position_V[None, :] < top_k_R[:, None]
    probs_RV = ordered.values.masked_fill(~kept_RV, -torch.inf).softmax(dim=-1)
    before_RV = probs_RV.cumsum(dim=-1) - probs_RV  # probability of all likelier tokens
    # a row without top_p keeps even tokens that rounding pushes past 1
    kept_RV &= (before_RV < top_p_R[:, None]) | (top_p_R[:, None] >= 1.0)
    kept_RV[:, 0] = True
    mask_RV = torch.zeros_like(kept_RV).scatter(1, ordered.indices, kept_RV)
    return logits_RV.masked_fill(~mask_RV, -torch.inf)


def invert_cdf(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds uniform * total: one of probability 0 is never drawn."""
    cdf_RV = probs_RV.cumsum(dim=-1)
    total_R = cdf_RV[:, -1]
    target_R = torch.minimum(uniform_R * total_R, torch.nextafter(total_R, torch.zeros_like(total_R)))
    token_R = torch.searchsorted(cdf_RV, target_R[:, None], right=True)[:, 0]
    return token_R.clamp(max=probs_RV.shape[1] - 1)  # NaN rows, which the caller refuses, end here too
