"""PagePool under any calls: free + held = capacity, what is pinned stays, a slot has one holder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.memory.pool import PagePool

CALLS = st.lists(
    st.tuples(st.sampled_from(["alloc", "take", "free", "pin", "release"]), st.integers(0, 7)), max_size=80
)


def run(num_slots: int, calls: list[tuple[str, int]]) -> None:
    pool = PagePool(num_slots)
    pins: dict[int, int] = {}  # the naive model: held slot -> pins
    for name, number in calls:
        slot = number % num_slots if num_slots else 0
        if name == "alloc":
            got = pool.alloc()
            assert (got is None) == (len(pins) == num_slots)
            if got is not None:
                assert got not in pins
                pins[got] = 0
        elif name == "take" and num_slots and slot not in pins:
            pool.take(slot)
            pins[slot] = 0
        elif name == "free" and pins.get(slot) == 0:
            pool.free(slot)
            del pins[slot]
        elif name == "pin" and slot in pins:
            pool.pin(slot)
            pins[slot] += 1
        elif name == "release" and pins.get(slot, 0) > 0:
            pool.release(slot)
            pins[slot] -= 1
        assert pool.num_free + len(pins) == num_slots
        assert pool.unpinned == {s for s, n in pins.items() if n == 0}
        assert all(pool.pinned(s) == (pins.get(s, 0) > 0) and pool.held(s) == (s in pins) for s in range(num_slots))
        pool.check()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), CALLS)
def test_pool_equals_the_naive_model(num_slots: int, calls: list[tuple[str, int]]) -> None:
    run(num_slots, calls)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(st.integers(0, 8), CALLS)
def test_pool_equals_the_naive_model_deep(num_slots: int, calls: list[tuple[str, int]]) -> None:
    run(num_slots, calls)
