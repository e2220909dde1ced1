import pytest

from moesaic.core.errors import UserError
from moesaic.core.registry import Registry

TABLE = Registry("eviction policy", {"lru": 1, "fifo": 2})


def test_a_known_name_gives_its_thing() -> None:
    assert (TABLE["lru"], len(TABLE), sorted(TABLE), "fifo" in TABLE, "x" in TABLE) == (
        1,
        2,
        ["fifo", "lru"],
        True,
        False,
    )


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown eviction policy 'lfru': known: fifo, lru"):
        TABLE["lfru"]


def test_later_changes_of_the_source_do_not_reach_it() -> None:
    source = {"a": 1}
    table = Registry("thing", source)
    source["b"] = 2
    assert "b" not in table
