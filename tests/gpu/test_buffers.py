"""On a GPU: registered chunks copy without staging, the budget counts what the allocator holds."""

import pytest
import torch

from moesaic.memory.buffers import DevicePool, HostArena

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_every_expert_of_an_arena_in_many_chunks_copies_whole():
    arena = HostArena(24, 3 << 18)
    arena.slab_SB.copy_(torch.arange(24, dtype=torch.uint8)[:, None].expand_as(arena.slab_SB))
    registration = arena.register(chunk_bytes=5 << 20, unit_slots=3)
    assert registration.registered_bytes == arena.num_bytes
    assert arena.slab_SB[7].is_pinned()
    for first in range(0, 24, 3):
        there = torch.empty((3, 3 << 18), dtype=torch.uint8, device="cuda")
        there.copy_(arena.slab_SB[first : first + 3], non_blocking=True)
        assert torch.equal(there.cpu(), arena.slab_SB[first : first + 3])
    arena.close()


def test_a_pool_holds_on_the_device_what_it_counts():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    pool = DevicePool(torch.device("cuda"), 1 << 30)
    weight = pool.allocate("weights", (1024, 1024), torch.float32)
    assert weight.is_cuda
    assert torch.cuda.memory_allocated() - before == pool.used_bytes == 4 << 20
