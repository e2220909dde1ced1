"""Every family's logits equal transformers': prefill, chunks, decode, ragged batches, windows; float32 and bf16."""

from __future__ import annotations

import random

import pytest
import torch

from moesaic.models.tiny import random_config, write_checkpoint
from tests import oracle
from tests.kernels.cases import DEVICES
from tests.models.harness import open_model
from tests.thresholds import BF16_ERROR_RATIO, LOGITS_FLOAT32

FAMILIES = ["mixtral", "qwen3_moe", "olmoe"]

# what a family's checkpoints may do, whatever the seeds happen to draw
TRAITS = {
    "mixtral": [
        {"sliding_window": None, "tie_word_embeddings": False},
        {"sliding_window": 5, "tie_word_embeddings": True},
    ],
    "qwen3_moe": [
        {"norm_topk_prob": True, "mlp_only_layers": [0], "head_dim": 32, "attention_bias": False},
        {"norm_topk_prob": False, "mlp_only_layers": [], "head_dim": 12, "attention_bias": True},
    ],
    "olmoe": [{"norm_topk_prob": False, "clip_qkv": None}, {"norm_topk_prob": True, "clip_qkv": 0.8}],
}
CASES = [(family, i) for family in FAMILIES for i in range(4)]


def _config(family, i):
    return random_config(family, i) | (TRAITS[family][i] if i < len(TRAITS[family]) else {})


def _prompt(spec_vocab, length, seed):
    chance = random.Random(seed)
    return [chance.randrange(spec_vocab) for _ in range(length)]


def _error(actual, expected):
    assert actual.shape == expected.shape
    error = (actual - expected).abs().max().item()
    assert error == error, "NaN"
    return error


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """(family, i) -> directory of a float32 checkpoint, and transformers' model of it; each made once."""
    made = {}

    def make(family, i):
        if (family, i) not in made:
            directory = tmp_path_factory.mktemp(f"{family}-{i}")
            write_checkpoint(directory, _config(family, i), seed=i, num_shards=1 + i, dtype="float32")
            made[family, i] = directory, oracle.load(directory)
        return made[family, i]

    return make


@pytest.mark.parametrize("prefer", ["auto", "reference"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_prefill_logits_equal_transformers(checkpoints, device, case, prefer):
    directory, hf = checkpoints(*case)
    model = open_model(directory, device=device, prefer=prefer)
    for length in (1, 2, 29):
        prompt = _prompt(model.spec.vocab, length, seed=length)
        assert _error(model.solo(prompt, length), oracle.logits(hf, prompt)) <= LOGITS_FLOAT32


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_chunks_and_single_steps_equal_transformers(checkpoints, device, case, chunk):
    directory, hf = checkpoints(*case)
    model = open_model(directory, device=device)
    prompt = _prompt(model.spec.vocab, 30, seed=2)
    assert _error(model.solo(prompt, chunk), oracle.logits(hf, prompt)) <= LOGITS_FLOAT32


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_ragged_batch_gives_each_sequence_its_solo_result(checkpoints, device, family):
    """Eight sequences join at different steps and bring chunks of different length, decodes among them."""
    directory, hf = checkpoints(family, 0)
    model = open_model(directory, device=device)
    prompts = [_prompt(model.spec.vocab, length, seed=length) for length in (1, 2, 5, 9, 16, 17, 23, 31)]
    chance, done, parts = random.Random(3), [0] * 8, [[] for _ in range(8)]
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        wanting = [r for r in range(8) if done[r] < len(prompts[r])]
        chosen = chance.sample(wanting, chance.randint(1, len(wanting)))
        chunks = [(r, prompts[r][done[r] : done[r] + chance.choice([1, 1, 3, 8])]) for r in chosen]
        for (r, tokens), logits in zip(chunks, model.forward(chunks), strict=True):
            done[r] += len(tokens)
            parts[r].append(logits)
    for r in range(8):
        assert _error(torch.cat(parts[r]), oracle.logits(hf, prompts[r])) <= LOGITS_FLOAT32


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("window", [1, 6])
@pytest.mark.parametrize("device", DEVICES)
def test_a_sliding_window_equals_transformers_around_its_edges(tmp_path, device, window, chunk):
    config = random_config("mixtral", 0) | {"sliding_window": window}
    directory = write_checkpoint(tmp_path, config, dtype="float32")
    hf, model = oracle.load(directory), open_model(directory, device=device)
    for length in (window - 1, window, window + 1, 2 * window + 3):
        if length:
            prompt = _prompt(model.spec.vocab, length, seed=length)
            assert _error(model.solo(prompt, chunk), oracle.logits(hf, prompt)) <= LOGITS_FLOAT32


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", DEVICES)
def test_bf16_strays_from_float32_no_further_than_transformers(tmp_path, device, family):
    """Root mean square over the logits of four models and prompts: single logits jump where a router flips."""
    ours = theirs = 0.0
    for i in range(4):
        directory = write_checkpoint(tmp_path / str(i), _config(family, i), seed=i)
        exact, rounded = oracle.load(directory), oracle.load(directory, torch.bfloat16, device)
        model = open_model(directory, torch.bfloat16, device)
        for seed in range(4):
            prompt = _prompt(model.spec.vocab, 48, seed)
            expected = oracle.logits(exact, prompt)
            ours += (model.solo(prompt, 48) - expected).square().mean().item()
            theirs += (oracle.logits(rounded, prompt) - expected).square().mean().item()
    assert 0 < ours <= BF16_ERROR_RATIO**2 * theirs


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(checkpoints, family):
    directory, hf = checkpoints(family, 1)
    model = open_model(directory)
    prompt = _prompt(model.spec.vocab, 11, seed=7)
    expected = oracle.greedy(hf, prompt, 32)
    tokens = [int(model.forward([(0, prompt)])[0][-1].argmax())]
    while len(tokens) < 32:
        tokens.append(int(model.forward([(0, tokens[-1:])])[0][-1].argmax()))
    oracle.check_greedy(tokens, expected)


def test_spans_are_named_and_ordered_as_the_layers_run(checkpoints):
    directory, _ = checkpoints("qwen3_moe", 0)
    model = open_model(directory)
    model.solo([1, 2, 3], 3)
    names = ["embed"]
    for i in range(len(model.spec.layers)):
        sparse = i in model.spec.moe_layers
        names += [f"L{i}.attn", f"L{i}.router", f"L{i}.experts"] if sparse else [f"L{i}.attn", f"L{i}.mlp"]
    assert 0 < len(model.spec.moe_layers) < len(model.spec.layers)
    assert model.run.ops == [*names, "head"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_no_tokens_is_allowed(checkpoints, family):
    model = open_model(checkpoints(family, 0)[0])
    assert model.forward([]) == []
