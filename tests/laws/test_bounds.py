"""Law 6: the clairvoyant with bypass is never beaten at equal sizes, and it is the optimum by exhaustive search."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.routing import ExpertId
from moesaic.memory.index import ExpertIndex, n_by_m, spread
from moesaic.policies.assignment import ASSIGNMENT
from moesaic.policies.eviction import EVICTION
from moesaic.policies.eviction.next_use import NextUse
from moesaic.sim.bounds import Requests, clairvoyant, clairvoyant_by_set
from moesaic.sim.replay import replay
from moesaic.sim.routing_trace import RoutingTrace, generate

GROUPS = st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), max_size=9)
POLICIES = st.tuples(st.sampled_from(sorted(EVICTION)), st.sampled_from(["fetch_misses", "cpu_misses"]))


def most_hits(groups: tuple[frozenset[int], ...], num_slots: int) -> int:
    """Tries every content that the slots can have after every layer step."""

    @cache
    def best(position: int, held: frozenset[int]) -> int:
        if position == len(groups):
            return 0
        group = groups[position]
        pool = sorted(held | group)
        keeps = combinations(pool, min(num_slots, len(pool)))
        return len(held & group) + max(best(position + 1, frozenset(kept)) for kept in keeps)

    return best(0, frozenset())


def run_exhaustive(groups: list[set[int]], num_slots: int) -> None:
    requests: Requests = [tuple(ExpertId(0, e) for e in sorted(group)) for group in groups]
    result = clairvoyant(requests, num_slots)
    assert result.hits == most_hits(tuple(frozenset(g) for g in groups), num_slots)
    assert result.hits + result.misses == sum(len(g) for g in groups)


def run_never_beaten(trace: RoutingTrace, num_slots: int, policies: tuple[str, str]) -> None:
    eviction, assignment = policies
    total = len(trace.layers) * trace.top_k * len(trace)
    for geometry in (spread(num_slots, trace.layers), n_by_m(2, num_slots // 2, trace.layers)):
        if assignment == "fetch_misses" and 0 in geometry.ways:
            continue  # a copy needs a slot
        index = ExpertIndex(*geometry, EVICTION[eviction])
        counters = replay(trace, index, ASSIGNMENT[assignment](1.0, 1.0))
        hits = sum(counters.hits.values())
        assert hits + sum(counters.misses.values()) == total
        by_set = clairvoyant_by_set(trace, *geometry)
        pooled = clairvoyant(trace, num_slots)
        assert hits <= by_set.hits <= pooled.hits
        assert by_set.hits + by_set.misses == pooled.hits + pooled.misses == total


TRACES = st.builds(
    generate,
    num_layers=st.integers(1, 4),
    num_experts=st.integers(3, 9),
    top_k=st.integers(1, 3),
    num_steps=st.integers(0, 25),
    seed=st.integers(0, 1 << 16),
    locality=st.floats(0, 1),
    skew=st.floats(0, 3),
)


@settings(max_examples=100, deadline=None)
@given(GROUPS, st.integers(0, 4))
def test_clairvoyant_is_the_optimum(groups: list[set[int]], num_slots: int) -> None:
    run_exhaustive(groups, num_slots)


@settings(max_examples=100, deadline=None)
@given(TRACES, st.integers(0, 16), POLICIES)
def test_no_policy_beats_the_clairvoyant(trace: RoutingTrace, num_slots: int, policies: tuple[str, str]) -> None:
    run_never_beaten(trace, num_slots, policies)


@settings(max_examples=50, deadline=None)
@given(TRACES, st.integers(1, 16), st.integers(1, 16))
def test_more_slots_never_hit_less(trace: RoutingTrace, few: int, more: int) -> None:
    assert clairvoyant(trace, few).hits <= clairvoyant(trace, few + more).hits


@pytest.mark.parametrize("eviction", EVICTION)
def test_next_use_in_the_shipped_index_hits_more_than_policies_that_do_not_know_the_future(eviction: str) -> None:
    trace = generate(4, 16, 2, 300, seed=5)
    uses: dict[ExpertId, list[int]] = {}
    for number, group in enumerate(trace.requests()):
        for expert in group:
            uses.setdefault(expert, []).append(number // 4)
    geometry = spread(24, trace.layers)
    knowing = replay(trace, ExpertIndex(*geometry, lambda num_ways: NextUse(num_ways, uses)))
    blind = replay(trace, ExpertIndex(*geometry, EVICTION[eviction]))
    bound = clairvoyant_by_set(trace, *geometry)
    assert sum(blind.hits.values()) < sum(knowing.hits.values()) <= bound.hits


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(GROUPS, st.integers(0, 4))
def test_clairvoyant_is_the_optimum_deep(groups: list[set[int]], num_slots: int) -> None:
    run_exhaustive(groups, num_slots)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(TRACES, st.integers(0, 16), POLICIES)
def test_no_policy_beats_the_clairvoyant_deep(trace: RoutingTrace, num_slots: int, policies: tuple[str, str]) -> None:
    run_never_beaten(trace, num_slots, policies)
