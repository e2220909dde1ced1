from moesaic.core.routing import ExpertId
from moesaic.policies.eviction.lfu import LFU

A, B, C = (ExpertId(0, e) for e in range(3))
BOTH = frozenset({0, 1})


def test_the_least_wanted_goes() -> None:
    policy = LFU(2)
    policy.insert(0, A, 0), policy.insert(1, B, 0)
    policy.touch(0, A, 1)
    policy.touch(0, A, 2)
    policy.touch(1, B, 3)
    assert policy.victim(BOTH) == 1
    assert policy.victim(frozenset({0})) == 0
    assert policy.victim(frozenset()) is None


def test_of_equally_wanted_ones_the_longest_unused_goes() -> None:
    policy = LFU(2)
    policy.insert(0, A, 0), policy.insert(1, B, 0)
    policy.touch(1, B, 1), policy.touch(0, A, 2)
    assert policy.victim(BOTH) == 1


def test_counts_outlive_eviction_and_misses_count() -> None:
    policy = LFU(2)
    policy.insert(0, A, 0), policy.insert(1, B, 0)
    for step in range(3):
        policy.miss(C, step)
    policy.touch(1, B, 3)
    policy.insert(0, C, 4)
    policy.touch(1, B, 5)
    assert policy.victim(BOTH) == 1
    policy.insert(1, A, 6)
    assert policy.victim(BOTH) == 1
