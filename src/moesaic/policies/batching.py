"""Which tokens a step computes: continuous batching with chunked prefill over paged KV. Pure: values in, values out.

Rules, in order
1. Every decoding sequence gets its one token, oldest first. Where no KV block is left for it, the youngest running
   sequence is preempted: it gives its blocks back and is computed again later. Its tokens stay known, so none is lost.
2. Running prefills get chunks of what is left of the step's tokens, oldest first, as far as blocks are free.
3. Waiting sequences are admitted first come, first served, while sequences, tokens and blocks last: a sequence enters
   when the blocks of all its tokens are free, and one more for each running sequence to grow into. None is admitted
   in a step that preempts.

No starvation: the oldest running sequence can take the blocks of all others, and nobody overtakes the oldest waiting
one. Both rest on every sequence fitting the cache alone, which the engine checks before a request is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class SeqView(NamedTuple):
    """What batching sees of a sequence: `num_tokens` known (prompt and output), `num_computed` of them in the KV
    cache, which holds `num_blocks` blocks for it. At least one token is always left to compute."""

    seq_id: int
    num_tokens: int
    num_computed: int = 0
    num_blocks: int = 0


class Chunk(NamedTuple):
    """Tokens [start, start + num_tokens) of a sequence; `last` where the next token is sampled from its end."""

    seq_id: int
    start: int
    num_tokens: int
    last: bool


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Most sequences running, most tokens a step (at least as many), tokens a KV block holds."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_tokens: int

    def __post_init__(self) -> None:
        assert 1 <= self.max_num_seqs <= self.max_num_batched_tokens, self
        assert self.block_tokens >= 1, self

    def blocks(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_tokens)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`preempted` first gives up its blocks (youngest first) and waits again; then `chunks` run in this order.
    A chunk of a waiting sequence admits it."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


def plan_step(
    running: Sequence[SeqView], waiting: Sequence[SeqView], free_blocks: int, limits: BatchLimits
) -> StepPlan:
    """The next step. `running` and `waiting` oldest first; a waiting sequence holds no blocks.

    Empty only where nothing runs and nothing waits, given that every sequence fits the cache alone.
    """
    step = _Step(list(running), free_blocks, limits)
    for seq in running:
        if seq.num_tokens - seq.num_computed == 1:
            step.decode(seq)
    for seq in running:
        if seq.num_tokens - seq.num_computed > 1:
            step.prefill(seq)
    if not step.chunks and step.running:
        step.unblock()
    if not step.preempted:
        step.admit(waiting)
    assert step.chunks or not (running or waiting), "no sequence can go on: one does not fit, or blocks were lost"
    return StepPlan(tuple(step.chunks), tuple(step.preempted))


class _Step:
    """A step's plan while it is made."""

    def __init__(self, running: list[SeqView], free_blocks: int, limits: BatchLimits) -> None:
        self.running = running
        self.free_blocks = free_blocks
        self.free_tokens = limits.max_num_batched_tokens
        self.limits = limits
        self.chunks: list[Chunk] = []
        self.preempted: list[int] = []

    def decode(self, seq: SeqView) -> None:
        wanted = self.limits.blocks(seq.num_tokens) - seq.num_blocks
        while seq in self.running and wanted > self.free_blocks:
            self._preempt_youngest()
        if seq in self.running:
            self._take(seq, 1)

    def prefill(self, seq: SeqView) -> None:
        if seq not in self.running:
            return
        room = (seq.num_blocks + self.free_blocks) * self.limits.block_tokens - seq.num_computed
        size = min(seq.num_tokens - seq.num_computed, self.free_tokens, room)
        if size > 0:
            self._take(seq, size)

    def unblock(self) -> None:
        """Only prefills run, and none has room: the youngest give way until the oldest goes on."""
        while not self.chunks:
            assert len(self.running) > 1, f"sequence {self.running[0]} does not fit the KV cache alone"
            self._preempt_youngest()
            self.prefill(self.running[0])

    def admit(self, waiting: Sequence[SeqView]) -> None:
        """Here running prefills have all the blocks they want: tokens are left only once their chunks are whole."""
        for seq in waiting:
            if len(self.running) >= self.limits.max_num_seqs or self.free_tokens == 0:
                return
            if self.limits.blocks(seq.num_tokens) + len(self.running) > self.free_blocks:
                return
            self.running.append(seq)
            self._take(seq, min(seq.num_tokens - seq.num_computed, self.free_tokens))

    def _take(self, seq: SeqView, size: int) -> None:
        end = seq.num_computed + size
        self.free_blocks -= max(0, self.limits.blocks(end) - seq.num_blocks)
        self.free_tokens -= size
        self.chunks.append(Chunk(seq.seq_id, seq.num_computed, size, end == seq.num_tokens))

    def _preempt_youngest(self) -> None:
        seq = self.running.pop()
        self.free_blocks += seq.num_blocks
        self.preempted.append(seq.seq_id)
