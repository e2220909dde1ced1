"""`--expert-format`: a whole engine with experts quantized at loading stays near the float one, whatever the budget."""

from __future__ import annotations

import json

import pytest
import torch

from moesaic.models.tiny import random_config, write_checkpoint
from tests.engines import TINY, Answer, answer, num_experts, open_llm

PROMPT = [7, 3, 11, 5, 19, 2, 31, 17, 3, 8, 13]
STEPS = 24
# Kullback-Leibler divergence from the float model's next token, in nats, on the embedded trained model: about
# three times what is seen
DIVERGENCE = {"int8": 1e-3, "fp8": 0.007, "int4": 0.15, "int4-32-zp": 0.1, "mxfp4": 0.25}


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mixtral")
    write_checkpoint(directory, random_config("mixtral", seed=3), seed=3)
    return directory


def next_token(directory, prompts, **options) -> torch.Tensor:
    """Log-probabilities of each prompt's next token, float32 [prompts, vocab]."""
    with open_llm(directory, **options) as llm:
        return torch.stack([answer(llm, prompt, 1).logits[0] for prompt in prompts]).log_softmax(-1)


@pytest.mark.parametrize("name", DIVERGENCE)
def test_a_trained_model_s_next_token_stays_near_the_float_one(name):
    text = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs, said the printer."
    prompts = [list(text.encode()[: 12 + 9 * i]) for i in range(10)]
    exact, quantized = next_token(TINY, prompts), next_token(TINY, prompts, expert_format=name)
    divergence = (exact.exp() * (exact - quantized)).sum(-1).mean()
    assert 0 < divergence < DIVERGENCE[name]


@pytest.mark.parametrize("name", ["int8", "int4-64-zp", "mxfp4"])
def test_every_budget_gives_the_same_answer(mixtral, name):
    """float32 activations: weights are the same bytes in every place, so only the order of sums may differ."""
    total = num_experts(mixtral)
    answers: list[Answer] = []
    for slots, assignment in ((None, "cpu_only"), (1, "fetch_misses"), (total // 2, "cpu_misses"), (total, "auto")):
        with open_llm(mixtral, slots, expert_format=name, assignment=assignment) as llm:
            answers.append(answer(llm, PROMPT, STEPS))
            llm.engine.parts.run.runner.store.check()
    for other in answers[1:]:
        assert other.tokens == answers[0].tokens
        torch.testing.assert_close(other.logits, answers[0].logits, rtol=0, atol=1e-3)


def test_dummy_weights_are_quantized_too(mixtral):
    with open_llm(mixtral, expert_format="int4", load_format="dummy") as llm:
        assert len(answer(llm, PROMPT, 4).tokens) == 4
        assert all(0.05 < error < 0.12 for error in llm.stats().expert_error_by_layer.values())


def test_the_plan_and_the_statistics_say_the_format_and_what_it_cost(mixtral):
    with open_llm(mixtral, expert_format="int4-32") as llm:
        lines = llm.engine.parts.plan.lines()
        stats = json.loads(json.dumps(llm.stats().to_json()))
        host_bytes = llm.engine.parts.plan.host_bytes
    assert "experts in int4-32" in lines[0]
    assert any("quantized to int4-32" in line and "L0 " in line for line in lines)
    errors = stats["expert_error_by_layer"]
    assert list(errors) == ["0", "1"]
    assert all(0.05 < error < 0.12 for error in errors.values())
    with open_llm(mixtral) as llm:
        assert llm.stats().expert_error_by_layer == {}
        assert "experts in" not in llm.engine.parts.plan.lines()[0]
        assert host_bytes < llm.engine.parts.plan.host_bytes / 5
