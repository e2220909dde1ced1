"""Eight sequences of different lengths at once give each its solo answer, float32."""

from __future__ import annotations

import pytest

from moesaic.models.tiny import random_config, write_checkpoint
from tests.engines import TINY, greedy, num_experts, open_llm

PROMPTS = [[(11 * i + 3 * j) % 60 + 1 for j in range(1 + 6 * i)] for i in range(8)]


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "olmoe", "tiny"])
@pytest.mark.parametrize("assignment", ["fetch_misses", "cpu_misses"])
def test_a_batch_of_eight_gives_each_sequence_its_solo_answer(model, assignment, tmp_path):
    directory = TINY
    if model != "tiny":
        directory = tmp_path / model
        write_checkpoint(directory, random_config(model, seed=5), seed=5)
    with open_llm(directory, num_experts(directory) // 3, assignment=assignment, max_num_batched_tokens=24) as llm:
        solo = [llm.generate([p], greedy(16), use_tqdm=False)[0].outputs[0].token_ids for p in PROMPTS]
        batch = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, greedy(16), use_tqdm=False)]
    assert batch == solo
