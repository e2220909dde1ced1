import pytest

from moesaic.memory.kv import KVBlocks


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_sequence_holds_just_the_blocks_its_tokens_need(num_tokens: int, num_blocks: int) -> None:
    kv = KVBlocks(4, 16)
    assert kv.extend("a", num_tokens)
    assert kv.held("a") == len(kv.table("a")) == num_blocks
    assert kv.num_free == 4 - num_blocks


def test_growing_keeps_the_blocks_a_sequence_has() -> None:
    kv = KVBlocks(4, 2)
    kv.extend(1, 2)
    before = kv.table(1)
    kv.extend(2, 2)
    assert kv.extend(1, 5)
    assert kv.table(1)[:1] == before
    assert not set(kv.table(1)) & set(kv.table(2))


def test_an_extension_that_does_not_fit_takes_nothing() -> None:
    kv = KVBlocks(3, 1)
    kv.extend("a", 2)
    assert not kv.extend("b", 2)
    assert (kv.held("b"), kv.num_free) == (0, 1)
    assert not kv.extend("a", 4)
    assert kv.held("a") == 2
    assert kv.extend("a", 3)


def test_room_for_fewer_tokens_is_there_already() -> None:
    kv = KVBlocks(2, 4)
    kv.extend("a", 8)
    assert kv.extend("a", 3)
    assert kv.held("a") == 2


def test_freed_blocks_serve_others_and_freeing_nothing_is_no_fault() -> None:
    kv = KVBlocks(2, 1)
    kv.extend("a", 2)
    kv.free("a")
    kv.free("never seen")
    assert kv.extend("b", 2)
    assert kv.table("a") == ()
