from moesaic.core.routing import ExpertId
from moesaic.policies.eviction.next_use import NextUse

A, B, C = (ExpertId(0, e) for e in range(3))
BOTH = frozenset({0, 1})


def test_the_expert_wanted_last_goes() -> None:
    policy = NextUse(2, {A: (0, 5), B: (1, 3)})
    policy.insert(0, A, 0), policy.insert(1, B, 1)
    assert policy.victim(BOTH) == 0
    policy.touch(1, B, 3)
    assert policy.victim(BOTH) == 1
    assert policy.victim(frozenset({0})) == 0
    assert policy.victim(frozenset()) is None


def test_an_expert_never_wanted_again_goes_first_and_the_lower_way_of_equals() -> None:
    policy = NextUse(2, {A: (9,)})
    policy.insert(0, A, 0), policy.insert(1, C, 0)
    assert policy.victim(BOTH) == 1
    policy.insert(0, B, 1)
    assert policy.victim(BOTH) == 0
