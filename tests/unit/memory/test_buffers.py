"""Device bytes are counted exactly against a hard budget; the host arena registers in chunks and frees what it took."""

import math
import mmap
from pathlib import Path

import pytest
import torch

from moesaic.core.errors import UserError
from moesaic.memory.buffers import DevicePool, HostArena, Registration


@pytest.fixture
def pool():
    return DevicePool(torch.device("cpu"), 1000)


def test_bytes_are_counted_by_name(pool):
    first = pool.allocate("weights", (10, 4), torch.float32)
    pool.allocate("weights", (5,), torch.bfloat16)
    pool.reserve("workspace", 30)
    assert (first.shape, first.dtype, first.device) == ((10, 4), torch.float32, torch.device("cpu"))
    assert pool.held == {"weights": 170, "workspace": 30}
    assert (pool.used_bytes, pool.free_bytes) == (200, 800)


def test_the_budget_is_hard_and_a_refusal_counts_nothing(pool):
    pool.reserve("context", 900)
    with pytest.raises(UserError, match=r"no room for kv.*--device-memory"):
        pool.allocate("kv", (101,), torch.uint8)
    with pytest.raises(UserError, match="no room for workspace"):
        pool.reserve("workspace", 101)
    assert pool.held == {"context": 900}
    pool.allocate("kv", (100,), torch.uint8)
    assert pool.free_bytes == 0


def test_what_the_machine_cannot_give_is_a_user_error_and_counts_nothing():
    pool = DevicePool(torch.device("cpu"), 1 << 62)
    with pytest.raises(UserError, match="slab: cpu did not give"):
        pool.allocate("slab", (1 << 60,), torch.uint8)
    assert pool.used_bytes == 0


def test_freed_names_make_room(pool):
    pool.allocate("a", (600,), torch.uint8)
    assert pool.free("a") == 600
    pool.allocate("b", (1000,), torch.uint8)
    pool.close()
    assert pool.used_bytes == 0


class FakeDriver:
    """Registers up to `limit` calls, then fails; knows what is registered."""

    def __init__(self, limit=1 << 30):
        self.limit, self.held = limit, {}

    def register(self, address, num_bytes):
        if len(self.held) >= self.limit:
            return "out of memory"
        self.held[address] = num_bytes
        return None

    def unregister(self, address):
        del self.held[address]


def test_slots_are_separate_and_start_as_zeros():
    arena = HostArena(5, 192)
    assert arena.slab_SB.shape == (5, 192)
    assert arena.slab_SB.dtype == torch.uint8
    assert not arena.slab_SB.any()
    arena.slab_SB[2].fill_(7)
    assert arena.slab_SB.sum() == 7 * 192
    arena.close()


@pytest.mark.parametrize(
    ("num_slots", "page_bytes", "unit", "chunk"),
    [(100, 4096, 1, 1 << 16), (100, 4160, 1, 1 << 20), (96, 6144, 3, 1 << 16), (7, 64, 2, 1), (50, 192, 1, 1 << 14)],
)
def test_chunks_cover_the_arena_and_never_cut_an_expert_or_a_memory_page(num_slots, page_bytes, unit, chunk):
    arena, driver = HostArena(num_slots, page_bytes), FakeDriver()
    base = arena.slab_SB.data_ptr()
    registration = arena.register(chunk, unit, driver)
    assert registration.registered_bytes == num_slots * page_bytes
    end = base
    for address, size in driver.held.items():
        assert address == end
        assert (address - base) % math.lcm(unit * page_bytes, mmap.PAGESIZE) == 0
        end += size
    assert end == base + num_slots * page_bytes
    arena.close()
    assert driver.held == {}


def test_partial_failure_is_reported_survived_and_undone():
    arena, driver = HostArena(64, 4096), FakeDriver(limit=3)
    registration = arena.register(8 * 4096, 1, driver)
    assert registration.registered_bytes == 24 * 4096
    assert "out of memory" in registration.message
    arena.slab_SB.fill_(1)
    assert len(driver.held) == 3
    arena.close()
    assert driver.held == {}


def test_failure_from_the_start_registers_nothing():
    arena, driver = HostArena(4, 4096), FakeDriver(limit=0)
    assert arena.register(registrar=driver).registered_bytes == 0
    arena.close()


def test_without_a_gpu_registration_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arena = HostArena(1, 64)
    assert arena.register() == Registration(0, "not registered: no CUDA device")
    arena.close()


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_close_gives_memory_back_even_under_a_live_view():
    arena = HostArena(64, 1 << 20)
    view = arena.slab_SB[3]
    arena.slab_SB.fill_(1)
    before = _resident_bytes()
    arena.close()
    arena.close()
    assert before - _resident_bytes() > 56 << 20
    assert not view.any()
    assert arena.slab_SB.numel() == 0


def test_an_arena_that_cannot_be_is_a_user_error():
    with pytest.raises(UserError, match="host memory"):
        HostArena(1 << 40, 1 << 20)


def test_an_arena_without_slots_is_fine():
    arena = HostArena(0, 64)
    assert arena.slab_SB.shape == (0, 64)
    assert arena.register(registrar=FakeDriver()).registered_bytes == 0
    arena.close()


def test_addresses_are_unmapped_once_the_last_view_is_gone():
    def mapped(address):
        spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        return any(int(low, 16) <= address < int(high, 16) for low, high in spans)

    arena = HostArena(64, 1 << 20)
    address, view = arena.slab_SB.data_ptr() + (32 << 20), arena.slab_SB[:1]
    arena.close()
    assert mapped(address)
    del view
    assert not mapped(address)
