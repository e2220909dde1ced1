import pytest

from moesaic.memory.pool import PagePool


def test_slots_are_handed_out_once_from_zero_up_until_none_is_left() -> None:
    pool = PagePool(3)
    assert [pool.alloc() for _ in range(4)] == [0, 1, 2, None]
    assert pool.num_free == 0


def test_a_freed_slot_is_handed_out_again() -> None:
    pool = PagePool(2)
    pool.alloc(), pool.alloc()
    pool.free(0)
    assert pool.alloc() == 0


def test_take_holds_the_named_slot_and_alloc_never_gives_it() -> None:
    pool = PagePool(3)
    pool.take(1)
    assert pool.held(1)
    assert {pool.alloc(), pool.alloc()} == {0, 2}
    assert pool.alloc() is None


def test_a_slot_stays_pinned_until_its_last_pin_is_off() -> None:
    pool = PagePool(1)
    pool.alloc()
    pool.pin(0), pool.pin(0)
    pool.release(0)
    assert pool.pinned(0)
    assert 0 not in pool.unpinned
    pool.release(0)
    assert not pool.pinned(0)
    assert 0 in pool.unpinned


@pytest.mark.parametrize("misuse", ["free_free", "free_pinned", "release_unpinned", "pin_free", "take_held"])
def test_misuse_is_an_assertion(misuse: str) -> None:
    pool = PagePool(2)
    pool.take(0)
    if misuse == "free_pinned":
        pool.pin(0)
    call, slot = {
        "free_free": (pool.free, 1),
        "free_pinned": (pool.free, 0),
        "release_unpinned": (pool.release, 0),
        "pin_free": (pool.pin, 1),
        "take_held": (pool.take, 0),
    }[misuse]
    with pytest.raises(AssertionError):
        call(slot)
    pool.check()


def test_a_pool_of_no_slots_has_none_to_give() -> None:
    assert PagePool(0).alloc() is None
