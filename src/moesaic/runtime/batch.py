"""A step plan as tensors: every index of the step in one small upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from moesaic.kernels.api import PagedKV, Ragged
from moesaic.models.base import StepBatch
from moesaic.runtime.staging import Staging


class Piece(NamedTuple):
    """What one sequence computes in a step: its tokens [start, start + len(token_ids)), its KV block table, whether
    the next token is sampled, and the positions (of the sequence) whose logits score the tokens in `targets`."""

    token_ids: Sequence[int]
    start: int
    table: Sequence[int]
    sampled: bool
    scored: range = range(0)
    targets: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The model's batch, and which of its rows are wanted as logits. Shape suffixes: S rows that are sampled from,
    Q rows that score prompt tokens, and those tokens."""

    batch: StepBatch
    sampled_S: Tensor
    scored_Q: Tensor
    targets_Q: Tensor


def build_inputs(pieces: Sequence[Piece], block_tokens: int, kv: Sequence[PagedKV], staging: Staging) -> StepInputs:
    """Lays the pieces end to end. One upload; does not synchronize."""
    width = max(len(piece.table) for piece in pieces)
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    tables: list[int] = []
    sampled: list[int] = []
    scored: list[int] = []
    targets: list[int] = []
    starts = [0]
    for piece in pieces:
        first, end = starts[-1], piece.start + len(piece.token_ids)
        token_ids += piece.token_ids
        positions += range(piece.start, end)
        slots += [piece.table[p // block_tokens] * block_tokens + p % block_tokens for p in range(piece.start, end)]
        tables += piece.table
        tables += [0] * (width - len(piece.table))
        scored += [first + p - piece.start for p in piece.scored]
        targets += piece.targets
        starts.append(first + len(piece.token_ids))
        if piece.sampled:
            sampled.append(starts[-1] - 1)
    context_lens = [piece.start + len(piece.token_ids) for piece in pieces]
    parts = (token_ids, positions, slots, tables, context_lens, sampled, scored, targets)
    device = staging.upload([value for part in parts for value in part]).split([len(part) for part in parts])
    ragged = Ragged(starts, context_lens, device[3].view(len(pieces), width), device[4])
    batch = StepBatch(device[0], device[1], device[2], ragged, kv)
    return StepInputs(batch, *device[5:])
