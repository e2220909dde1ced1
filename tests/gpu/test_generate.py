"""Whole engines on a GPU: the same tokens as transformers on the CPU, float32; several sequences; the budget held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moesaic.bench.presets import geometry_of
from moesaic.bench.source import write_outline
from moesaic.models.tiny import random_config, write_checkpoint
from tests.engines import TINY, Oracle, answer, greedy, num_experts, open_llm

pytestmark = pytest.mark.gpu

STEPS = 64
PROMPT = [7, 3, 11, 5, 19, 2, 31, 17, 3, 8, 13]


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe", "olmoe", "tiny"])
def case(request, tmp_path_factory) -> tuple[Path, Oracle]:
    directory = TINY
    if request.param != "tiny":
        directory = tmp_path_factory.mktemp(request.param)
        write_checkpoint(directory, random_config(request.param, seed=3), seed=3)
    return directory, Oracle(directory, PROMPT, STEPS)


@pytest.mark.parametrize("assignment", ["fetch_misses", "cpu_misses", "auto"])
def test_float32_tokens_and_logits_are_those_of_transformers_on_the_cpu(case, assignment):
    directory, oracle = case
    total = num_experts(directory)
    for slots in {1, 2, 3, total // 2, total}:
        with open_llm(directory, slots, device="cuda", assignment=assignment, max_num_batched_tokens=8) as llm:
            oracle.check(answer(llm, PROMPT, STEPS))
            llm.engine.parts.run.runner.store.check()


def test_a_batch_gives_each_sequence_its_solo_answer(case):
    directory, _ = case
    prompts = [[(7 * i + j) % 50 + 1 for j in range(1 + 5 * i)] for i in range(8)]
    with open_llm(directory, num_experts(directory) // 3, device="cuda", max_num_batched_tokens=32) as llm:
        solo = [llm.generate([p], greedy(24), use_tqdm=False)[0].outputs[0].token_ids for p in prompts]
        batch = [o.outputs[0].token_ids for o in llm.generate(prompts, greedy(24), use_tqdm=False)]
    assert batch == solo


BUDGET_SCRIPT = """
import json, sys, torch
from moesaic import LLM, SamplingParams
from moesaic.bench.peaks import take_baseline, watch
from moesaic.core.units import parse_bytes
model, budget, assignment = sys.argv[1:]
device = torch.device("cuda", 0)
baseline = take_baseline(device)
with watch(device, baseline) as peaks, LLM(
    model, device="cuda", device_memory=budget, assignment=assignment, load_format="dummy", max_model_len=1024
) as llm:
    plan = llm.engine.parts.plan.budget
    limit = parse_bytes(budget) - plan.context_bytes
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    prompts = [[(7 * i + j) % 30000 for j in range(900 - 100 * i)] for i in range(3)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=24, temperature=1.0, top_p=0.9, ignore_eos=True))
    assert all(o.outputs[0].finish_reason == "length" for o in outputs), [o.outputs[0].error for o in outputs]
print(json.dumps({"budget": parse_bytes(budget), "reserved": peaks.device_reserved_bytes + plan.context_bytes,
    "allocated": peaks.device_allocated_bytes, "driver": peaks.device_driver_bytes, "slots": plan.expert_slots,
    "workspace": plan.workspace_bytes, "context": plan.context_bytes, "planned": plan.used_bytes}))
"""


@pytest.mark.parametrize(
    ("preset", "layers", "budget", "assignment"),
    [
        ("mixtral", 3, "3GiB", "fetch_misses"),
        ("mixtral", 6, "4GiB", "cpu_misses"),
        ("qwen3", 24, "6GiB", "fetch_misses"),
        ("olmoe", 16, "3GiB", "cpu_misses"),
    ],
)
def test_the_device_peak_stays_under_the_budget_by_allocator_and_driver(tmp_path, preset, layers, budget, assignment):
    directory = tmp_path / preset
    directory.mkdir()
    write_outline(directory, geometry_of(preset, layers))
    done = subprocess.run(
        [sys.executable, "-c", BUDGET_SCRIPT, str(directory), budget, assignment],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    print(seen)
    assert seen["reserved"] <= seen["budget"], seen
    assert seen["driver"] <= seen["budget"], seen
