"""Law 5: ExpertIndex equals a naive dictionary model under any calls; one set under LRU is plain LRU."""

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.routing import ExpertId
from moesaic.memory.index import ExpertIndex
from moesaic.policies.eviction import EVICTION

EXPERTS = st.builds(ExpertId, st.integers(0, 3), st.integers(0, 4))
CALLS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "touch", "remove"]), EXPERTS, st.integers(0, 255)), max_size=80
)
WAYS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def run_against_dicts(ways: Sequence[int], eviction: str, calls: Sequence[tuple[str, ExpertId, int]]) -> None:
    """`bits` of an insert says which slots are evictable."""
    index = ExpertIndex(ways, lambda expert: expert.layer % len(ways), EVICTION[eviction])
    model: dict[ExpertId, int] = {}
    for step, (name, expert, bits) in enumerate(calls):
        number = expert.layer % len(ways)
        own = range(sum(ways[:number]), sum(ways[: number + 1]))
        if name == "touch":
            index.touch(expert, step)
        elif name == "remove" and expert in model:
            assert index.remove(expert) == model.pop(expert)
        elif name == "insert" and expert not in model:
            by_slot = {slot: e for e, slot in model.items()}
            free = [slot for slot in own if slot not in by_slot]
            candidates = [slot for slot in own if bits >> slot & 1]
            inserted = index.insert(expert, step, lambda slot, bits=bits: bool(bits >> slot & 1))
            assert (inserted is None) == (not free and not candidates)
            if inserted is not None:
                slot, evicted = inserted
                assert slot in (free or candidates)
                assert evicted == by_slot.get(slot)
                if evicted is not None:
                    del model[evicted]
                model[expert] = slot
        assert dict(index.items()) == model
        assert all(
            index.lookup(ExpertId(layer, e)) == model.get(ExpertId(layer, e)) for layer in range(4) for e in range(5)
        )
        index.check()


def run_against_ordered_dict(num_ways: int, wanted: Sequence[ExpertId]) -> None:
    index = ExpertIndex((num_ways,), lambda expert: 0, EVICTION["lru"])
    model: OrderedDict[ExpertId, None] = OrderedDict()
    for step, expert in enumerate(wanted):
        assert (index.lookup(expert) is not None) == (expert in model)
        index.touch(expert, step)
        if expert in model:
            model.move_to_end(expert)
            continue
        inserted = index.insert(expert, step, lambda slot: True)
        assert inserted is not None
        evicted = model.popitem(last=False)[0] if len(model) == num_ways else None
        assert inserted[1] == evicted
        model[expert] = None


@settings(max_examples=100, deadline=None)
@given(WAYS, st.sampled_from(sorted(EVICTION)), CALLS)
def test_index_equals_the_naive_model(ways: list[int], eviction: str, calls: list[tuple[str, ExpertId, int]]) -> None:
    run_against_dicts(ways, eviction, calls)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.lists(EXPERTS, max_size=100))
def test_one_set_under_lru_is_plain_lru(num_ways: int, wanted: list[ExpertId]) -> None:
    run_against_ordered_dict(num_ways, wanted)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(WAYS, st.sampled_from(sorted(EVICTION)), CALLS)
def test_index_equals_the_naive_model_deep(
    ways: list[int], eviction: str, calls: list[tuple[str, ExpertId, int]]
) -> None:
    run_against_dicts(ways, eviction, calls)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(st.integers(1, 8), st.lists(EXPERTS, max_size=300))
def test_one_set_under_lru_is_plain_lru_deep(num_ways: int, wanted: list[ExpertId]) -> None:
    run_against_ordered_dict(num_ways, wanted)
