"""Router rules: weights by the published formulas, exact ties by lower id, NaN rows without repeated experts."""

from __future__ import annotations

import pytest
import torch

from moesaic.core.errors import UserError
from moesaic.models.router import ROUTERS, softmax_topk, softmax_topk_renorm
from tests.kernels.cases import DEVICES


def _logits(num_tokens, num_experts, seed=0):
    return torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed)) * 3


def _by_hand(row, top_k):
    """Sorted by (logit descending, id ascending), with plain floats."""
    order = sorted(range(len(row)), key=lambda e: (-row[e], e))[:top_k]
    shifted = [torch.tensor(x - max(row), dtype=torch.float64).exp().item() for x in row]
    return order, [shifted[e] / sum(shifted) for e in order]


@pytest.mark.parametrize("rule", ROUTERS)
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (8, 2), (60, 4), (64, 8), (128, 128)])
@pytest.mark.parametrize("device", DEVICES)
def test_rules_choose_and_weigh_as_published(device, num_experts, top_k, rule):
    logits = _logits(20, num_experts)
    ids_TK, weights_TK = ROUTERS[rule](logits.to(device), top_k)
    assert (ids_TK.dtype, weights_TK.dtype) == (torch.int64, torch.float32)
    for row, ids, weights in zip(logits.tolist(), ids_TK.tolist(), weights_TK.cpu(), strict=True):
        order, expected = _by_hand(row, top_k)
        scale = 1 / sum(expected) if rule == "softmax_topk_renorm" else 1.0
        assert ids == order
        torch.testing.assert_close(weights, torch.tensor(expected) * scale, rtol=1e-5, atol=1e-7)


def test_the_two_rules_differ_by_the_sum_of_the_chosen():
    logits = _logits(50, 64)
    whole, chosen = softmax_topk(logits, 8), softmax_topk_renorm(logits, 8)
    sums = whole.topk_weights_TK.sum(1, keepdim=True)
    assert sums.max() < 1
    torch.testing.assert_close(whole.topk_weights_TK / sums, chosen.topk_weights_TK)


@pytest.mark.parametrize("rule", ROUTERS)
@pytest.mark.parametrize("num_experts", [8, 64, 128, 300])
@pytest.mark.parametrize("device", DEVICES)
def test_exact_ties_go_to_the_lower_id(device, num_experts, rule):
    # few distinct values, signed zeros among them: almost every choice is a tie
    logits = torch.randint(-1, 3, (40, num_experts), generator=torch.Generator().manual_seed(1)).float()
    logits[:, ::3] *= -0.0 if num_experts == 64 else 1.0
    ids_TK = ROUTERS[rule](logits.to(device), 6).topk_ids_TK
    assert ids_TK.tolist() == [_by_hand(row, 6)[0] for row in logits.tolist()]


@pytest.mark.parametrize("rule", ROUTERS)
@pytest.mark.parametrize("device", DEVICES)
def test_broken_rows_get_distinct_experts_and_leave_the_others_alone(device, rule):
    logits = _logits(6, 16).to(device)
    good = ROUTERS[rule](logits, 4)
    logits[1], logits[3, 5], logits[4] = float("nan"), float("inf"), float("-inf")
    broken = ROUTERS[rule](logits, 4)
    assert all(len(set(ids)) == 4 and set(ids) <= set(range(16)) for ids in broken.topk_ids_TK.tolist())
    for a, b in zip(good, broken, strict=True):
        assert torch.equal(a[[0, 2, 5]], b[[0, 2, 5]])


@pytest.mark.parametrize("rule", ROUTERS)
def test_no_tokens_give_no_choices(rule):
    ids_TK, weights_TK = ROUTERS[rule](torch.empty(0, 8), 2)
    assert ids_TK.shape == weights_TK.shape == (0, 2)


def test_narrow_logits_are_refused():
    with pytest.raises(AssertionError, match="bfloat16"):
        softmax_topk(torch.zeros(1, 4, dtype=torch.bfloat16), 1)


def test_an_unknown_rule_is_named_with_the_known_ones():
    with pytest.raises(UserError, match=r"router rule 'sigmoid'.*softmax_topk"):
        ROUTERS["sigmoid"]
