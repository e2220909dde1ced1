"""The device budget: parts sum to no more than the budget, and what cannot work is refused with what can."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.core.errors import UserError
from moesaic.core.units import MiB
from moesaic.cost.budget import BudgetWishes, DeviceNeeds, fit


def needs(min_slots: int = 2, context: int = 10 * MiB, max_positions: int = 4096) -> DeviceNeeds:
    return DeviceNeeds(
        context_bytes=context,
        dense_bytes=100 * MiB,
        workspace_bytes=lambda length: 20 * MiB + length * 1024,
        kv_block_bytes=MiB // 4,
        block_tokens=16,
        expert_bytes=8 * MiB,
        num_experts=64,
        min_slots=min_slots,
        max_positions=max_positions,
    )


@given(
    budget=st.integers(100 * MiB, 2000 * MiB),
    length=st.one_of(st.none(), st.integers(1, 4096)),
    seqs=st.integers(1, 64),
    min_slots=st.integers(0, 64),
)
def test_parts_sum_to_at_most_the_budget_or_it_is_refused(budget, length, seqs, min_slots):
    try:
        cut = fit(needs(min_slots), BudgetWishes(budget, None, length, seqs))
    except UserError:
        return
    assert cut.used_bytes <= budget
    assert cut.expert_slots >= min_slots
    assert cut.kv_blocks * 16 >= cut.max_model_len >= min(length or 256, 256)


@given(length=st.one_of(st.none(), st.integers(1, 4096)), seqs=st.integers(1, 64), min_slots=st.integers(0, 64))
def test_the_least_budget_that_a_refusal_names_works_and_one_mib_less_does_not(length, seqs, min_slots):
    with pytest.raises(UserError) as refused:
        fit(needs(min_slots), BudgetWishes(MiB, None, length, seqs))
    least = int(re.search(r"--device-memory (\d+)MiB", str(refused.value)).group(1)) * MiB
    cut = fit(needs(min_slots), BudgetWishes(least, None, length, seqs))
    assert cut.expert_slots >= min_slots
    with pytest.raises(UserError):
        fit(needs(min_slots), BudgetWishes(least - MiB, None, length, seqs))


def test_no_budget_takes_all_experts_and_room_for_every_sequence():
    cut = fit(needs(), BudgetWishes(max_num_seqs=4))
    assert cut.expert_slots == 64
    assert cut.kv_blocks == 4 * 4096 // 16


def test_expert_limit_caps_the_slots_and_one_below_the_policy_s_needs_is_refused():
    assert fit(needs(), BudgetWishes(expert_limit_bytes=40 * MiB)).expert_slots == 5
    with pytest.raises(UserError, match=r"--expert-memory 16MiB"):
        fit(needs(), BudgetWishes(expert_limit_bytes=9 * MiB))


def test_a_context_longer_than_the_model_s_is_refused():
    with pytest.raises(UserError, match="4096 positions"):
        fit(needs(), BudgetWishes(max_model_len=4097))


def test_without_a_wished_length_kv_leaves_three_quarters_to_the_experts():
    cut = fit(needs(min_slots=0), BudgetWishes(budget_bytes=400 * MiB))
    spare = 400 * MiB - cut.context_bytes - cut.dense_bytes - cut.workspace_bytes
    assert cut.kv_bytes <= spare // 4
    assert cut.expert_slots * cut.expert_bytes >= spare * 3 // 4 - cut.expert_bytes
