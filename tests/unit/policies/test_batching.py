"""Laws of the step planner, and a small engine of integers that lives by its plans."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.policies.batching import BatchLimits, Chunk, SeqView, StepPlan, plan_step


def test_decodes_come_before_prefill_chunks_and_both_share_the_token_budget() -> None:
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=8, block_tokens=4)
    running = [SeqView(0, 20, 4, 1), SeqView(1, 6, 5, 2)]
    plan = plan_step(running, [SeqView(2, 3)], free_blocks=100, limits=limits)
    assert plan.chunks == (Chunk(1, 5, 1, True), Chunk(0, 4, 7, False))


def test_admission_is_first_come_first_served_even_where_a_later_one_would_fit() -> None:
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=64, block_tokens=4)
    plan = plan_step([SeqView(0, 9, 8, 3)], [SeqView(1, 40), SeqView(2, 4)], free_blocks=5, limits=limits)
    assert [chunk.seq_id for chunk in plan.chunks] == [0]


def test_a_newcomer_needs_blocks_for_all_its_tokens_and_leaves_one_for_each_running() -> None:
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=8, block_tokens=4)
    running = [SeqView(0, 6, 5, 2), SeqView(1, 7, 6, 2)]
    enough = 5 + 2  # five for the newcomer, though its first chunk takes two
    for free, admitted in ((enough, [2]), (enough - 1, [])):
        plan = plan_step(running, [SeqView(2, 20)], free, limits)
        assert [chunk.seq_id for chunk in plan.chunks] == [0, 1, *admitted]
    assert plan_step([], [SeqView(2, 20)], 5, limits).chunks == (Chunk(2, 0, 8, False),)


def test_the_youngest_gives_way_when_a_decode_cannot_extend() -> None:
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=64, block_tokens=4)
    running = [SeqView(0, 5, 4, 1), SeqView(1, 5, 4, 1), SeqView(2, 3, 2, 1)]
    plan = plan_step(running, [SeqView(3, 1)], free_blocks=0, limits=limits)
    assert plan == StepPlan((Chunk(0, 4, 1, True),), (2, 1))


def test_a_stuck_prefill_takes_the_blocks_of_a_younger_one() -> None:
    limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=4, block_tokens=4)
    plan = plan_step([SeqView(0, 12, 4, 1), SeqView(1, 12, 8, 2)], [], free_blocks=0, limits=limits)
    assert plan == StepPlan((Chunk(0, 4, 4, False),), (1,))


def test_a_chunk_shrinks_to_the_blocks_that_are_free() -> None:
    limits = BatchLimits(max_num_seqs=2, max_num_batched_tokens=64, block_tokens=4)
    plan = plan_step([SeqView(0, 30, 3, 1)], [], free_blocks=2, limits=limits)
    assert plan.chunks == (Chunk(0, 3, 9, False),)


def test_an_idle_engine_plans_nothing() -> None:
    assert plan_step([], [], 8, BatchLimits(1, 1, 1)) == StepPlan(())


def test_more_sequences_than_tokens_are_no_limits() -> None:
    with pytest.raises(AssertionError):
        BatchLimits(max_num_seqs=4, max_num_batched_tokens=3, block_tokens=4)


@dataclass
class _Seq:
    seq_id: int
    known: int
    wanted: int  # tokens at the end
    computed: int = 0
    blocks: int = 0


@dataclass
class _Engine:
    """Does what plans say, and asserts that they may be done."""

    limits: BatchLimits
    num_blocks: int
    running: list[_Seq] = field(default_factory=list)
    waiting: list[_Seq] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def view(self, seqs: list[_Seq]) -> list[SeqView]:
        return [SeqView(s.seq_id, s.known, s.computed, s.blocks) for s in seqs]

    @property
    def free(self) -> int:
        return self.num_blocks - sum(s.blocks for s in self.running)

    def step(self) -> None:
        plan = plan_step(self.view(self.running), self.view(self.waiting), self.free, self.limits)
        assert plan.chunks, "nothing would ever happen again"
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert len({c.seq_id for c in plan.chunks}) == len(plan.chunks)
        assert not {c.seq_id for c in plan.chunks} & set(plan.preempted)
        for seq_id in plan.preempted:
            seq = self.running[-1]
            assert seq.seq_id == seq_id, "only the youngest is preempted"
            self.running.remove(seq)
            self.waiting.insert(0, seq)
            seq.computed = seq.blocks = 0
        for chunk in plan.chunks:
            self.compute(chunk)
        assert len(self.running) <= self.limits.max_num_seqs
        assert [s.seq_id for s in self.running] == sorted(s.seq_id for s in self.running)
        for seq in [s for s in self.running if s.known == s.wanted]:
            self.running.remove(seq)
            self.finished.append(seq.seq_id)

    def compute(self, chunk: Chunk) -> None:
        if chunk.seq_id not in {s.seq_id for s in self.running}:
            assert self.waiting[0].seq_id == chunk.seq_id, "first come, first served"
            self.running.append(self.waiting.pop(0))
        seq = next(s for s in self.running if s.seq_id == chunk.seq_id)
        assert chunk.start == seq.computed
        assert 1 <= chunk.num_tokens <= seq.known - seq.computed
        seq.computed += chunk.num_tokens
        seq.blocks = max(seq.blocks, self.limits.blocks(seq.computed))
        assert self.free >= 0
        assert chunk.last == (seq.computed == seq.known)
        seq.known += chunk.last


@st.composite
def _workloads(draw: st.DrawFn) -> tuple[_Engine, list[tuple[int, _Seq]]]:
    max_num_seqs = draw(st.integers(1, 6))
    limits = BatchLimits(max_num_seqs, draw(st.integers(max_num_seqs, 24)), draw(st.integers(1, 5)))
    num_blocks = draw(st.integers(2, 14))
    room = num_blocks * limits.block_tokens
    arrivals = []
    for seq_id in range(draw(st.integers(1, 12))):
        prompt = draw(st.integers(1, room - 1))
        wanted = draw(st.integers(prompt + 1, room))
        arrivals.append((draw(st.integers(0, 30)), _Seq(seq_id, prompt, wanted)))
    arrivals.sort(key=lambda a: (a[0], a[1].seq_id))
    for i, (_, seq) in enumerate(arrivals):
        seq.seq_id = i
    return _Engine(limits, num_blocks), arrivals


@settings(max_examples=200, deadline=None)
@given(_workloads())
def test_every_sequence_ends_with_all_its_tokens_whatever_arrives(
    workload: tuple[_Engine, list[tuple[int, _Seq]]],
) -> None:
    engine, arrivals = workload
    total = sum(seq.wanted for _, seq in arrivals)
    step = 0
    while len(engine.finished) < len(arrivals):
        engine.waiting += [seq for at, seq in arrivals if at == step]
        if engine.running or engine.waiting:
            engine.step()
        step += 1
        # each sequence is computed again at most once for each older one's token: far more than is ever seen
        assert step <= 31 + 4 * total * len(arrivals), "starvation"
    assert sorted(engine.finished) == [seq.seq_id for _, seq in sorted(arrivals, key=lambda a: a[1].seq_id)]


@settings(max_examples=100, deadline=None)
@given(_workloads())
def test_the_oldest_running_sequence_is_never_preempted(workload: tuple[_Engine, list[tuple[int, _Seq]]]) -> None:
    engine, arrivals = workload
    engine.waiting = [seq for _, seq in arrivals]
    while engine.running or engine.waiting:
        oldest = engine.running[0] if engine.running else None
        before = oldest.computed if oldest else 0
        engine.step()
        if oldest is not None:
            assert oldest.computed > before, "the oldest one gets on in every step"
