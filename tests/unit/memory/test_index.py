import pytest

from moesaic.core.routing import ExpertId
from moesaic.memory.index import ExpertIndex, n_by_m, spread
from moesaic.policies.eviction import EVICTION

E = ExpertId


def always(slot: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("num_slots", "ways"),
    [(0, (0,)), (1, (1,)), (2, (1, 1)), (3, (1, 1, 1)), (4, (2, 1, 1)), (9, (3, 3, 3)), (11, (4, 4, 3))],
)
def test_spread_gives_every_layer_as_even_a_share_as_the_slots_allow(num_slots: int, ways: tuple[int, ...]) -> None:
    geometry = spread(num_slots, (0, 2, 5))
    assert geometry.ways == ways
    assert [geometry.set_of(E(layer, 9)) for layer in (0, 2, 5)] == [i % len(ways) for i in range(3)]


def test_n_by_m_is_the_published_form() -> None:
    geometry = n_by_m(3, 4, range(8))
    assert geometry.ways == (4, 4, 4)
    assert [geometry.set_of(E(layer, 0)) for layer in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_layers_that_share_a_set_never_see_each_others_experts() -> None:
    index = ExpertIndex(*n_by_m(14, 4, range(32)), EVICTION["lru"])
    index.insert(E(0, 3), 0, always)
    assert index.lookup(E(14, 3)) is None


def test_sets_own_consecutive_slots() -> None:
    index = ExpertIndex((2, 0, 1), lambda expert: expert.layer, EVICTION["lru"])
    assert index.insert(E(0, 0), 0, always) == (0, None)
    assert index.insert(E(2, 0), 0, always) == (2, None)
    assert index.insert(E(1, 0), 0, always) is None
    assert index.insert(E(0, 1), 0, always) == (1, None)
    assert index.insert(E(0, 2), 0, always) == (0, E(0, 0))
    index.check()


def test_a_way_whose_slot_is_not_evictable_is_not_given_up() -> None:
    index = ExpertIndex(*spread(2, (0,)), EVICTION["lru"])
    index.insert(E(0, 0), 0, always), index.insert(E(0, 1), 0, always)
    assert index.insert(E(0, 2), 1, lambda slot: slot != 0) == (1, E(0, 1))


def test_a_failed_insert_changes_nothing() -> None:
    index = ExpertIndex(*spread(1, (0,)), EVICTION["lru"])
    index.insert(E(0, 0), 0, always)
    assert index.insert(E(0, 1), 1, lambda slot: False) is None
    assert index.items() == ((E(0, 0), 0),)
    index.check()


def test_a_removed_expert_leaves_its_way_to_the_next() -> None:
    index = ExpertIndex(*spread(3, (0,)), EVICTION["lru"])
    for e in range(3):
        index.insert(E(0, e), 0, always)
    assert index.remove(E(0, 1)) == 1
    assert index.insert(E(0, 7), 1, always) == (1, None)
    index.check()


def test_a_hit_makes_its_expert_the_youngest() -> None:
    index = ExpertIndex(*spread(2, (0,)), EVICTION["lru"])
    index.insert(E(0, 0), 0, always), index.insert(E(0, 1), 0, always)
    index.touch(E(0, 0), 1)
    assert index.insert(E(0, 2), 1, always) == (1, E(0, 1))
