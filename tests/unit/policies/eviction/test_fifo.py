from moesaic.core.routing import ExpertId
from moesaic.policies.eviction.fifo import FIFO

E = [ExpertId(0, e) for e in range(4)]


def test_the_way_filled_first_goes_however_often_it_is_used() -> None:
    policy = FIFO(2)
    policy.insert(0, E[0], 0), policy.insert(1, E[1], 0)
    policy.touch(0, E[0], 1)
    assert policy.victim(frozenset({0, 1})) == 0
    policy.insert(0, E[2], 2)
    assert policy.victim(frozenset({0, 1})) == 1
    assert policy.victim(frozenset({0})) == 0
    assert policy.victim(frozenset()) is None
