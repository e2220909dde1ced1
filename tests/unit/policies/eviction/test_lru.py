from moesaic.core.routing import ExpertId
from moesaic.policies.eviction.lru import LRU

E = [ExpertId(0, e) for e in range(4)]
ALL = frozenset(range(3))


def filled() -> LRU:
    policy = LRU(3)
    for way in range(3):
        policy.insert(way, E[way], 0)
    return policy


def test_the_longest_unused_way_goes() -> None:
    policy = filled()
    policy.touch(0, E[0], 1)
    assert policy.victim(ALL) == 1


def test_only_evictable_ways_go_and_without_one_nobody() -> None:
    policy = filled()
    assert policy.victim(frozenset({1, 2})) == 1
    assert policy.victim(frozenset()) is None


def test_asking_changes_nothing() -> None:
    policy = filled()
    assert [policy.victim(ALL) for _ in range(3)] == [0, 0, 0]
