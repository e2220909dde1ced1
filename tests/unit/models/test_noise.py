"""Noise rounds as bfloat16 does, blocks hold their elements twice, cuts cover a tensor, routers have hot experts."""

import numpy as np
import pytest
import torch

from moesaic.models import noise
from moesaic.models.noise import NoiseShape, bfloat16_bits, draw_cuts, kind_of, noise_blocks, router_rows

SHAPE = NoiseShape(num_layers=4, hidden=48, vocab=100, seed=5, block_elements=10_007)


@pytest.fixture(scope="module")
def blocks():
    return noise_blocks(SHAPE)


def test_rounding_equals_that_of_torch():
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    values[:3] = [1 + 2**-8, 1 + 3 * 2**-8, -0.0]
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bfloat16_bits(values), expected)


def test_an_interrupt_does_not_wait_for_the_blocks(monkeypatch):
    began = []

    def block(shape, index, kind, scale, interrupted):
        began.append(index)
        if index == 0:
            raise KeyboardInterrupt
        assert interrupted.wait(60), "told to stop"
        return np.empty(0, np.uint16)

    monkeypatch.setattr(noise, "_block", block)
    with pytest.raises(KeyboardInterrupt):
        noise.noise_blocks(SHAPE)
    assert len(began) > 1


def test_a_cut_may_start_anywhere_in_a_block(blocks):
    for kind in ("noise", "resid"):
        for block in blocks[kind]:
            assert len(block) == 2 * SHAPE.block_elements
            assert np.array_equal(block[: SHAPE.block_elements], block[SHAPE.block_elements :])
    assert len(blocks["embed"][0]) == 100 * 48


def test_embeddings_share_a_part_and_have_unit_variance(blocks):
    rows = torch.from_numpy(blocks["embed"][0]).view(torch.bfloat16).float().view(100, 48)
    assert rows.std() == pytest.approx(1.0, abs=0.1)
    common = rows.mean(dim=0).square().mean() - rows.var() / 100
    assert common == pytest.approx(SHAPE.common, abs=0.15)


@pytest.mark.parametrize(("kind", "count"), [("noise", 25_000), ("resid", 9_999), ("embed", 12_345), ("noise", 1)])
def test_cuts_cover_a_tensor_once_in_order(blocks, kind, count):
    cuts = draw_cuts(blocks, kind, count, 10_000, np.random.default_rng(0))
    end = 0
    for cut in cuts:
        assert cut.target == end
        assert cut.start + cut.count <= len(cut.block)
        end += cut.count
    assert end == count


def test_routers_differ_by_layer_and_repeat_with_the_seed():
    first = router_rows(SHAPE, 0, 64)
    assert first.shape == (64, 48)
    assert np.array_equal(first, router_rows(SHAPE, 0, 64))
    assert not np.array_equal(first, router_rows(SHAPE, 1, 64))
    heat = np.log(first.std(axis=1) / 0.02)
    assert heat.std() == pytest.approx(SHAPE.skew, abs=0.15)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("embed_tokens", "embed"), ("norm", "ones"), ("layers.3.post_norm", "ones"), ("layers.0.q_norm", "ones"),
        ("layers.0.router", "router"), ("down", "resid"), ("layers.1.mlp.down", "resid"), ("layers.1.o_proj", "resid"),
        ("layers.1.o_proj.bias", "noise"), ("gate", "noise"), ("lm_head", "noise"), ("layers.0.q_proj", "noise"),
    ],
)  # fmt: skip
def test_each_part_has_its_kind(part, kind):
    assert kind_of(part) == kind


def test_a_cut_longer_than_its_block_is_our_fault(blocks):
    with pytest.raises(AssertionError, match="past its block"):
        draw_cuts(blocks, "noise", 20_000, 10_008, np.random.default_rng(0))
