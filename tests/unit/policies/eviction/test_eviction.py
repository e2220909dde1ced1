import pytest

from moesaic.core.errors import UserError
from moesaic.policies.eviction import EVICTION


@pytest.mark.parametrize("name", EVICTION)
def test_each_registered_policy_serves_a_set_without_ways(name: str) -> None:
    assert EVICTION[name](0).victim(frozenset()) is None


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"eviction policy 'mru'.*fifo, lfu, lru"):
        EVICTION["mru"]
