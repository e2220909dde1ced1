"""The great law: whatever the budget, the policies and the batch, the answer is the plain model's.

Float32; the plain model is transformers, each prompt alone. Slots from none to all, every assignment and eviction
policy, every cache geometry, steps of any size, several sequences at once, KV blocks so few that sequences are
preempted.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moesaic.core.errors import UserError
from moesaic.models.tiny import random_config, write_checkpoint
from moesaic.policies.eviction import EVICTION
from tests import oracle
from tests.engines import greedy, num_experts, open_llm

STEPS = 12
PROMPTS = ([5], [1, 2, 3], [9, 8, 7, 6, 5, 4], list(range(20, 37)), [3] * 40, [2, 4] * 16)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(model_type, prompt number) -> (checkpoint, transformers' greedy tokens)."""

    @cache
    def checkpoint(model_type: str) -> Path:
        directory = tmp_path_factory.mktemp(model_type)
        write_checkpoint(directory, random_config(model_type, seed=11), seed=11)
        return directory

    @cache
    def model(model_type: str):
        return oracle.load(checkpoint(model_type))

    @cache
    def tokens(model_type: str, number: int) -> oracle.Greedy:
        return oracle.greedy(model(model_type), PROMPTS[number], STEPS)

    return checkpoint, tokens


@st.composite
def engines(draw) -> dict:
    return {
        "model_type": draw(st.sampled_from(["mixtral", "qwen3_moe", "olmoe"])),
        "share": draw(st.one_of(st.sampled_from([0.0, 0.01, 0.1, 1.0]), st.floats(0, 1))),
        "cache": draw(st.one_of(st.just("auto"), st.tuples(st.integers(1, 3), st.integers(1, 4)))),
        "prompts": draw(st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=5)),
        "max_model_len": draw(st.sampled_from([52, 60])),
        "options": {
            "assignment": draw(st.sampled_from(["fetch_misses", "cpu_misses", "cpu_only", "all_on_device", "auto"])),
            "eviction": draw(st.sampled_from(sorted(EVICTION))),
            "max_num_batched_tokens": draw(st.integers(5, 48)),
            "max_num_seqs": draw(st.integers(1, 5)),
        },
    }


def check(plain, drawn: dict) -> None:
    checkpoint, expected = plain
    directory = checkpoint(drawn["model_type"])
    total = num_experts(directory)
    options = dict(drawn["options"], max_model_len=drawn["max_model_len"])
    slots = round(drawn["share"] * total)
    if options["assignment"] == "all_on_device":
        slots = total
    if options["assignment"] in ("all_on_device", "cpu_only"):
        options["eviction"] = "lru"  # another one is refused: nothing is ever evicted
    if options["assignment"] == "cpu_only":
        slots = 0
    if options["assignment"] == "fetch_misses":
        slots = max(1, slots)
    if drawn["cache"] != "auto":
        sets, ways = drawn["cache"]
        options["cache"], slots = f"{sets}x{ways}", None
        if sets * ways > total or options["assignment"] in ("all_on_device", "cpu_only"):
            with pytest.raises(UserError, match="--cache"):
                open_llm(directory, **options)
            return
    with open_llm(directory, slots, **options) as llm:
        prompts = [PROMPTS[n] for n in drawn["prompts"]]
        outputs = llm.generate(prompts, greedy(STEPS), use_tqdm=False)
        for number, output in zip(drawn["prompts"], outputs, strict=True):
            assert output.outputs[0].finish_reason == "length", output.outputs[0].error
            oracle.check_greedy(output.outputs[0].token_ids, expected(drawn["model_type"], number))
        runner = llm.engine.parts.run.runner
        runner.store.check_idle()
        assert llm.engine.parts.kv_blocks.num_free == llm.engine.parts.kv_blocks.num_blocks


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=engines())
def test_every_budget_and_policy_gives_the_plain_model_s_answer(plain, drawn):
    check(plain, drawn)


@pytest.mark.long
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=engines())
def test_every_budget_and_policy_gives_the_plain_model_s_answer_often(plain, drawn):
    check(plain, drawn)
