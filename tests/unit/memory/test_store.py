import pytest

from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import ExpertId
from moesaic.memory.index import ExpertIndex, spread
from moesaic.memory.store import ExpertStore, Grant, State
from moesaic.policies.eviction import EVICTION

A, B, C = (ExpertId(0, e) for e in range(3))


def make_store(num_slots: int, layers: tuple[int, ...] = (0,)) -> ExpertStore:
    return ExpertStore(ExpertIndex(*spread(num_slots, layers), EVICTION["lru"]), layers)


def fill(store: ExpertStore, expert: ExpertId, op: int) -> Grant:
    grant = store.begin_fill(expert, 0)
    assert grant is not None
    store.filled_by(expert, op)
    store.release(expert)
    return grant


def done(op: int) -> bool:
    return True


def never(op: int) -> bool:
    return False


def test_an_expert_goes_from_miss_over_pending_to_resident() -> None:
    store = make_store(1)
    assert store.demand(A, 0) is State.MISS
    fill(store, A, 7)
    assert store.demand(A, 1) is State.PENDING
    store.settle(never)
    assert store.state(A) is State.PENDING
    store.settle(done)
    assert store.demand(A, 2) is State.RESIDENT
    assert (store.counters.hits, store.counters.misses, store.counters.fills) == ({0: 1}, {0: 2}, {0: 1})


def test_only_a_resident_expert_is_on_the_device() -> None:
    store = make_store(2)
    fill(store, A, 0)
    store.settle(done)
    fill(store, B, 1)
    assert store.residency([A, B, C]) == {A: {HOST, DEVICE}, B: {HOST}, C: {HOST}}
    assert store.resident() == {A: 0}
    assert (store.slot_of(A), store.slot_of(B), store.slot_of(C)) == (0, 1, None)
    assert store.num_pending == 1


def test_a_reader_follows_the_unfinished_fill_and_no_finished_one() -> None:
    store = make_store(1)
    fill(store, A, 4)
    assert store.acquire(A) == (0, (4,))
    store.settle(done)
    assert store.acquire(A) == (0, ())


def test_a_fill_follows_every_reader_of_the_slot() -> None:
    store = make_store(1)
    fill(store, A, 0)
    store.settle(done)
    store.acquire(A)
    store.read_by(A, 1), store.read_by(A, 2)
    store.release(A)
    assert store.begin_fill(B, 1) == Grant(0, (1, 2), A)
    assert store.counters.evictions == {0: 1}


def test_a_fill_follows_the_unfinished_fill_of_its_victim() -> None:
    store = make_store(1)
    fill(store, A, 3)
    assert store.begin_fill(B, 1) == Grant(0, (3,), A)
    assert store.state(A) is State.MISS


def test_finished_readers_are_forgotten_and_unfinished_ones_kept() -> None:
    store = make_store(2)
    fill(store, A, 0), fill(store, B, 1)
    store.settle(done)
    for op, expert in ((2, A), (3, B), (4, A)):
        store.acquire(expert)
        store.read_by(expert, op)
        store.release(expert)
    store.settle(lambda op: op <= 2)
    assert store.begin_fill(C, 1) == Grant(0, (4,), A)


def test_what_is_pinned_is_never_evicted_and_the_failure_changes_nothing() -> None:
    store = make_store(2)
    fill(store, A, 0), fill(store, B, 1)
    store.settle(done)
    store.acquire(A), store.acquire(B)
    before = store.counters.copy()
    assert store.begin_fill(C, 1) is None
    assert store.counters == before
    assert store.resident() == {A: 0, B: 1}
    store.release(A)
    assert store.begin_fill(C, 1) == Grant(0, (), A)


def test_a_fill_that_is_not_issued_yet_is_not_evicted_even_if_released() -> None:
    store = make_store(1)
    store.begin_fill(A, 0)
    store.release(A)
    assert store.begin_fill(B, 0) is None
    store.filled_by(A, 5)
    assert store.begin_fill(B, 0) == Grant(0, (5,), A)


def test_a_cancelled_fill_frees_its_slot_and_remembers_who_still_uses_it() -> None:
    store = make_store(1)
    fill(store, A, 3)
    store.acquire(A)
    store.read_by(A, 4)
    store.release(A)
    assert store.begin_fill(B, 1) == Grant(0, (4, 3), A)
    store.cancel_fill(B)
    store.check()
    assert store.state(B) is State.MISS
    assert store.begin_fill(C, 2) == Grant(0, (4, 3), None)
    assert (store.counters.fills, store.counters.dropped) == ({0: 1}, {0: 1})


def test_a_drop_is_counted_in_its_layer() -> None:
    store = make_store(1, layers=(0, 5))
    store.drop(ExpertId(5, 1))
    assert store.counters.dropped == {0: 0, 5: 1}


def test_an_eviction_counts_where_the_loser_lived() -> None:
    store = make_store(1, layers=(0, 5))
    fill(store, A, 0)
    fill(store, ExpertId(5, 0), 1)
    assert store.counters.evictions == {0: 1, 5: 0}


def test_a_store_without_slots_misses_everything() -> None:
    store = make_store(0, layers=(0, 1))
    for expert in (A, ExpertId(1, 0)):
        assert store.demand(expert, 0) is State.MISS
        assert store.begin_fill(expert, 0) is None
        assert store.residency([expert]) == {expert: {HOST}}
    assert store.counters.misses == {0: 1, 1: 1}
    store.settle(done)
    store.check()


@pytest.mark.parametrize("misuse", ["acquire a miss", "acquire an unissued fill", "fill twice", "release an unpinned"])
def test_misuse_is_an_assertion(misuse: str) -> None:
    store = make_store(3)
    store.begin_fill(B, 0)
    fill(store, C, 0)
    call = {
        "acquire a miss": lambda: store.acquire(A),
        "acquire an unissued fill": lambda: store.acquire(B),
        "fill twice": lambda: store.filled_by(C, 1),
        "release an unpinned": lambda: store.release(C),
    }[misuse]
    with pytest.raises(AssertionError):
        call()
