"""Greedy tokens and logits equal transformers', float32, at every device budget from the least that works to all."""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.models.tiny import random_config, write_checkpoint
from tests.engines import Oracle, answer, num_experts, open_llm
from tests.paths import SMALL, TINY

STEPS = 64
FAMILIES = ("mixtral", "qwen3_moe", "olmoe")
PROMPT = [7, 3, 11, 5, 19, 2, 31, 17, 3, 8, 13]
POLICIES = ("fetch_misses", "cpu_misses")


@pytest.fixture(scope="module", params=[*FAMILIES, "tiny", "small"])
def case(request, tmp_path_factory) -> tuple[Path, Oracle]:
    if request.param in FAMILIES:
        directory = tmp_path_factory.mktemp(request.param)
        write_checkpoint(directory, random_config(request.param, seed=3), seed=3, num_shards=2)
    else:
        directory = TINY if request.param == "tiny" else SMALL
        if not directory.is_dir():
            pytest.skip(f"no checkpoint at {directory}")
    return directory, Oracle(directory, PROMPT, STEPS)


def budgets(total: int) -> list[int]:
    """None at all, fewer than one token needs, exactly that, one more, half, all but one, all."""
    return sorted({0, 1, 2, 3, total // 2, total - 1, total})


def check(case: tuple[Path, Oracle], slots: int | None, assignment: str) -> None:
    directory, oracle = case
    with open_llm(directory, slots, assignment=assignment, max_num_batched_tokens=8) as llm:
        oracle.check(answer(llm, PROMPT, STEPS))
        llm.engine.parts.run.runner.store.check()


@pytest.mark.parametrize("assignment", POLICIES)
def test_tokens_and_logits_are_transformers_at_a_middle_budget(case, assignment):
    check(case, num_experts(case[0]) * 2 // 5, assignment)


@pytest.mark.long
@pytest.mark.parametrize("assignment", POLICIES)
def test_tokens_and_logits_are_transformers_at_the_edges_of_the_budget(case, assignment):
    least = 1 if assignment == "fetch_misses" else 0
    for slots in budgets(num_experts(case[0])):
        if slots >= least:
            check(case, slots, assignment)


@pytest.mark.long
def test_tokens_and_logits_are_transformers_at_every_budget(case):
    for slots in range(1, num_experts(case[0]) + 1):
        check(case, slots, POLICIES[slots % 2])


def test_everything_on_the_device_and_nothing_on_it(case):
    total = num_experts(case[0])
    for slots, assignment in ((total, "auto"), (0, "auto"), (None, "cpu_only")):
        check(case, slots, assignment)
