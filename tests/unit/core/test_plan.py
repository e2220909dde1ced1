import json

import pytest

from moesaic.core.errors import UserError
from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec
from moesaic.core.places import DEVICE, HOST, HardwareProfile, Lane, LinkSpec, TierSpec
from moesaic.core.plan import Estimate, Pipeline, Placement, Plan, Workload

PLAN = Plan(
    ModelSpec(
        "mixtral", 64, 100, AttentionSpec(4, 2, 16, 1e6), (MoESpec(8, 2, 128, "softmax_topk_renorm"), 256),
        1e-5, 4096, False,
    ),
    HardwareProfile("m", {HOST: TierSpec(9, 1.0), DEVICE: TierSpec(5, 2.0)}, {(HOST, DEVICE): LinkSpec(3.0)}),
    Workload(4, 77, 32, "goodput", ttft_limit_s=1.5),
    Placement({HOST: 0.75, DEVICE: 0.25}, {DEVICE: 1.0}),
    Pipeline("layerwise", "cpu_misses", batch_size=4, attention=HOST),
    Estimate(12.5, 0.08, Lane(DEVICE, "load"), {DEVICE: 5}),
)  # fmt: skip


def test_a_plan_survives_its_json() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN


def test_places_and_lanes_are_text_in_the_json() -> None:
    data = json.loads(PLAN.to_json())
    assert data["estimate"]["bound_by"] == "dev0.load"
    assert data["pipeline"]["attention"] == "host0"
    assert list(data["hardware"]["links"]) == ["host0-dev0"]
    assert data["model"]["layers"][1] == 256


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"model": {}}'])
def test_what_is_no_plan_is_the_users_fault(text: str) -> None:
    with pytest.raises(UserError, match="plan file"):
        Plan.from_json(text)


@pytest.mark.parametrize(("part", "key"), [("pipeline", "colour"), ("workload", "x"), ("model", "y")])
def test_an_unknown_key_is_an_error_that_names_it(part: str, key: str) -> None:
    data = json.loads(PLAN.to_json())
    data[part][key] = 1
    with pytest.raises(UserError, match=key):
        Plan.from_json(json.dumps(data))
