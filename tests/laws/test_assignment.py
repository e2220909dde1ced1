"""Law 2: an Assignment conserves tokens per (source, expert); and its moves are what its shares need."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.ops import Compute, Copy, Op
from moesaic.core.places import DEVICE, HOST, Place, Space
from moesaic.core.routing import ExpertId
from moesaic.policies.assignment import ASSIGNMENT

SOURCES = st.sampled_from([DEVICE, HOST, Place(Space.DEVICE, 1)])
EXPERTS = st.builds(ExpertId, st.integers(0, 2), st.integers(0, 12))
DEMANDS = st.dictionaries(st.tuples(SOURCES, EXPERTS), st.integers(0, 5000), max_size=12)


@dataclass(frozen=True)
class Linear:
    """Any machine: seconds per byte and per flop of host, link and device."""

    host_s: float
    link_s: float
    device_s: float

    def seconds(self, op: Op, together: Sequence[Op] = ()) -> float:
        if isinstance(op.work, Copy):
            return op.work.num_bytes * self.link_s
        assert isinstance(op.work, Compute)
        rate = self.host_s if op.lane.place == HOST else self.device_s
        return max(op.work.num_bytes, op.work.num_flops) * rate


COSTS = st.builds(Linear, *(st.floats(0, 1e3) for _ in range(3)))


def check(name: str, demand: dict[tuple[Place, ExpertId], int], cost: Linear, seed: int) -> None:
    rng = random.Random(seed)
    experts = sorted({expert for _, expert in demand})
    on_device = {expert for expert in experts if rng.random() < 0.5}
    residency = {e: frozenset({HOST, DEVICE} if e in on_device else {HOST}) for e in experts}
    policy = ASSIGNMENT[name](expert_bytes=64.0, flops_per_token=3.0)
    answer = policy.assign(demand, residency, cost)

    conserved: Counter[tuple[Place, ExpertId]] = Counter()
    for share in answer.shares:
        assert share.num_tokens > 0
        assert share.pages is None
        assert (share.way == "host") == (share.place == HOST)
        assert share.way != "resident" or share.expert in on_device
        conserved[share.source, share.expert] += share.num_tokens
    assert conserved == {key: n for key, n in demand.items() if n}

    moved = [move.expert for move in answer.moves]
    assert len(set(moved)) == len(moved)
    assert not set(moved) & on_device
    assert {m.expert for m in answer.moves if m.blocking} == {s.expert for s in answer.shares if s.way == "copied"}
    assert all((move.src, move.dst) == (HOST, DEVICE) for move in answer.moves)

    order = [share.expert for share in answer.shares]
    assert order == sorted(order)
    assert moved == sorted(moved)
    backwards = dict(reversed(demand.items()))
    assert policy.assign(backwards, residency, cost) == answer


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(ASSIGNMENT)), DEMANDS, COSTS, st.integers(0, 1 << 16))
def test_assignment_conserves_tokens(
    name: str, demand: dict[tuple[Place, ExpertId], int], cost: Linear, seed: int
) -> None:
    check(name, demand, cost, seed)


@pytest.mark.long
@settings(max_examples=5000, deadline=None)
@given(st.sampled_from(sorted(ASSIGNMENT)), DEMANDS, COSTS, st.integers(0, 1 << 16))
def test_assignment_conserves_tokens_deep(
    name: str, demand: dict[tuple[Place, ExpertId], int], cost: Linear, seed: int
) -> None:
    check(name, demand, cost, seed)
