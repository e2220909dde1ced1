"""The named workloads are the published ones, and every one has exactly one kind of limit."""

import pytest

from moesaic.bench.presets import PRESETS
from moesaic.bench.workloads import WORKLOADS, Budget, DecodeWorkload, RandomModel, TrainedModel
from moesaic.core.errors import UserError
from moesaic.core.units import GiB


def test_the_names_of_this_version() -> None:
    plain = ["decode/small", "decode/cpu-mid", "decode/mixtral-8l", "decode/qwen3-12l"]
    assert list(WORKLOADS) == [*plain, "decode/mixtral-8l-int4", "decode/qwen3-12l-int4"]
    assert all(name == workload.name and workload.description for name, workload in WORKLOADS.items())


def test_random_models_are_known_presets() -> None:
    presets = [w.model.preset for w in WORKLOADS.values() if isinstance(w.model, RandomModel)]
    assert presets == ["cpu-mid", "mixtral-8l", "qwen3-12l", "mixtral-8l", "qwen3-12l"]
    assert set(presets) <= PRESETS.keys()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown workload 'decode/big': known: decode/cpu-mid, .*decode/small"):
        WORKLOADS["decode/big"]


def test_budgets_are_the_published_ones() -> None:
    assert WORKLOADS["decode/mixtral-8l"].budgets() == (Budget(device_memory=6 * GiB),)
    assert WORKLOADS["decode/qwen3-12l"].budgets() == (Budget(device_memory=4 * GiB),)
    assert WORKLOADS["decode/mixtral-8l-int4"].budgets() == (Budget(device_memory=3 * GiB),)
    assert WORKLOADS["decode/qwen3-12l-int4"].budgets() == (Budget(device_memory=2 * GiB),)
    assert {w.name: w.expert_format for w in WORKLOADS.values() if w.expert_format != "auto"} == {
        "decode/mixtral-8l-int4": "int4",
        "decode/qwen3-12l-int4": "int4",
    }
    assert WORKLOADS["decode/cpu-mid"].budgets() == (Budget(device_memory=GiB),)
    assert [b.expert_memory for b in WORKLOADS["decode/small"].budgets()] == ["25%", "40%", "60%"]
    assert {(w.prompt_tokens, w.new_tokens) for w in WORKLOADS.values()} == {(512, 64)}


@pytest.mark.parametrize("limits", [{}, {"device_bytes": GiB, "expert_shares": (0.5,)}])
def test_no_limit_and_two_limits_are_our_own_fault(limits: dict) -> None:
    with pytest.raises(AssertionError):
        DecodeWorkload("decode/x", "", TrainedModel(), **limits)


def test_a_budget_reads_as_people_say_it() -> None:
    assert str(Budget(device_memory=6 * GiB)) == "6.00 GiB device"
    assert str(Budget(expert_memory="40%")) == "40% of expert bytes"
