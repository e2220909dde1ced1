"""Dummy weights have the statistics of make-checkpoint, fill every page, and repeat with the seed."""

import pytest
import torch

from moesaic.core.errors import UserError
from moesaic.core.units import slab_bytes
from moesaic.kernels import formats
from moesaic.kernels.layout import QUANTIZED
from moesaic.memory.buffers import DevicePool, HostArena
from moesaic.memory.pages import PageLayout
from moesaic.runtime.dummy import dummy_dense, dummy_experts
from moesaic.specs import read_spec, tensor_specs
from tests.checkpoints import MIXTRAL, QWEN3

CONFIG = MIXTRAL | {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 512}


def _experts(dtype, seed):
    spec = read_spec(CONFIG)
    layout = PageLayout.cut(64, 256, dtype.itemsize)
    arena = HostArena(spec.num_experts * layout.num_pages, layout.page_bytes)
    dummy_experts(spec, layout, dtype, arena, seed)
    pages = arena.slab_SB[:, : 3 * layout.block_bytes].view(dtype).float().view(-1, 3, layout.page_units * 64).clone()
    arena.close()
    return pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_page_of_every_expert_is_noise_of_the_right_size(dtype):
    pages = _experts(dtype, 0)
    assert pages.shape[0] == 4 * 4 * 2
    gate_up, down = pages[:, :2], pages[:, 2]
    assert ((gate_up.std(dim=-1) > 0.017) & (gate_up.std(dim=-1) < 0.023)).all()
    assert ((down.std(dim=-1) > 0.0045) & (down.std(dim=-1) < 0.0055)).all()  # 0.02 / (2 sqrt(4 layers))
    assert gate_up.mean().abs() < 1e-3


def test_experts_differ_and_repeat_with_the_seed():
    first = _experts(torch.bfloat16, 3)
    assert torch.equal(first, _experts(torch.bfloat16, 3))
    assert not torch.equal(first, _experts(torch.bfloat16, 4))
    assert len({page[0, :8].numpy().tobytes() for page in first}) == len(first)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_pages_are_the_same_noise_and_differ(name):
    spec = read_spec(CONFIG)
    layout = PageLayout.cut(64, 256, 2, QUANTIZED[name])
    arena = HostArena(spec.num_experts * layout.num_pages, layout.page_bytes)
    errors = dummy_experts(spec, layout, torch.bfloat16, arena, 0)
    gate, up, down = formats.unpack(arena.slab_SB, layout.page)
    for block, low, high in ((gate, 0.017, 0.023), (up, 0.017, 0.023), (down, 0.0045, 0.0055)):
        assert ((block.std(dim=(1, 2)) > low) & (block.std(dim=(1, 2)) < high)).all()
    assert len({bytes(page) for page in arena.slab_SB.numpy()}) == arena.num_slots
    arena.close()
    assert list(errors) == list(spec.moe_layers)
    assert all(0.001 < error < 0.13 for error in errors.values())


def test_other_weights_have_their_shapes_and_statistics_and_are_counted():
    spec = read_spec(QWEN3 | {"hidden_size": 64, "vocab_size": 512, "num_experts": 32})
    specs = tensor_specs(spec)
    pool = DevicePool(torch.device("cpu"), 1 << 30)
    weights = dummy_dense(spec, specs, torch.float32, pool, seed=0)
    assert {part: tuple(w.shape) for part, w in weights.items()} == {t.part: t.shape for t in specs if t.expert is None}
    assert pool.held == {"weights": sum(slab_bytes(4 * w.numel()) for w in weights.values())}
    assert weights["embed_tokens"].std() == pytest.approx(1.0, abs=0.1)
    assert (weights["layers.0.q_norm"] == 1).all()
    assert weights["lm_head"].std() == pytest.approx(0.02, rel=0.15)
    assert weights["layers.0.o_proj"].std() == pytest.approx(0.01 / 3**0.5, rel=0.15)
    rows = weights["layers.0.router"].std(dim=1)
    assert rows.max() / rows.min() > 2  # some experts are hotter
    again = dummy_dense(spec, specs, torch.float32, DevicePool(torch.device("cpu"), 1 << 30), seed=0)
    assert all(torch.equal(weights[part], again[part]) for part in weights)


def test_the_budget_holds_for_dummies_too():
    spec = read_spec(CONFIG)
    with pytest.raises(UserError, match="no room for weights"):
        dummy_dense(spec, tensor_specs(spec), torch.float32, DevicePool(torch.device("cpu"), 1000), seed=0)
