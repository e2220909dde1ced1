"""The sampler against transformers' own logits processors, against probabilities, and against its neighbours."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import generation as hf

from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.runtime.sampler import Sampled, SampleRow, invert_cdf, keep_top, read_scores, sample, score_tokens
from moesaic.runtime.staging import Staging

STAGING = Staging(torch.device("cpu"), 0)
VOCAB = 50


def row(
    params: SamplingParams,
    uniform: float = 0.5,
    prompt: tuple[int, ...] = (1, 2),
    output: tuple[int, ...] = (),
    ends: tuple[int, ...] = (),
) -> SampleRow:
    return SampleRow(GenerationDefaults().fill(params), prompt, output, frozenset(ends), uniform)


def random_logits(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def support(logits_V: Tensor, params: SamplingParams, **history: tuple[int, ...]) -> dict[int, float]:
    """Token -> share of the unit interval that draws it, by 2,000 evenly spaced uniforms."""
    draws = 2000
    rows = [row(params, (i + 0.5) / draws, **history) for i in range(draws)]
    counts: dict[int, float] = {}
    for sampled in sample(logits_V.expand(draws, -1), rows, STAGING):
        assert sampled.token_id is not None
        counts[sampled.token_id] = counts.get(sampled.token_id, 0) + 1 / draws
    return counts


GREEDY = SamplingParams(temperature=0.0)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 9, 30]] = 2.0
    assert sample(logits, [row(GREEDY)], STAGING) == [Sampled(7)]


def test_temperature_draws_follow_the_softmax() -> None:
    logits = random_logits(1)[0]
    shares = support(logits, SamplingParams(temperature=0.7))
    expected = (logits.double() / 0.7).softmax(-1)
    for token in range(VOCAB):
        assert shares.get(token, 0.0) == pytest.approx(float(expected[token]), abs=2e-3)


@pytest.mark.parametrize(
    ("params", "processor"),
    [
        ({"top_k": 5}, hf.TopKLogitsWarper(5)),
        ({"top_p": 0.8}, hf.TopPLogitsWarper(0.8)),
        ({"min_p": 0.1}, hf.MinPLogitsWarper(0.1)),
    ],
)
def test_each_cut_keeps_what_transformers_keeps(params: dict[str, float], processor: hf.LogitsProcessor) -> None:
    for seed in range(3):
        logits = random_logits(1, seed)
        kept = processor(torch.zeros(1, 0, dtype=torch.long), logits.clone()).isfinite()[0]
        expected = set(kept.nonzero().flatten().tolist())
        shares = support(logits[0], SamplingParams(temperature=1.0, **params))  # type: ignore[arg-type]
        seen = {token for token, share in shares.items() if share > 2 / 2000}
        assert seen <= expected
        masked = logits.double().masked_fill(~kept, -math.inf).softmax(-1)[0]
        assert all(shares.get(t, 0.0) == pytest.approx(float(masked[t]), abs=2e-3) for t in expected)


def test_cuts_apply_one_after_the_other() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # top_k 3 leaves 0.444, 0.333, 0.222; of these top_p 0.7 keeps two, of which min_p 0.8 keeps the first
    params = SamplingParams(temperature=1.0, top_k=3, top_p=0.7)
    assert support(logits[0], params).keys() == {0, 1}
    assert support(logits[0], replace(params, min_p=0.8)).keys() == {0}
    assert support(logits[0], replace(params, top_p=0.79)).keys() == {0, 1, 2}


def test_penalties_equal_the_published_formulas() -> None:
    prompt, output = (3, 3, 8), (5, 8, 8)
    logits = random_logits(1, 3)
    expected = hf.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())[0]
    for token in set(output):
        expected[token] -= 0.4 * output.count(token) + 0.6
    params = SamplingParams(temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.6)
    shares = support(logits[0], params, prompt=prompt, output=output)
    probs = expected.double().softmax(-1)
    assert all(shares.get(t, 0.0) == pytest.approx(float(probs[t]), abs=2e-3) for t in range(VOCAB))


def test_the_prompt_counts_for_repetition_only() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 4], logits[0, 6] = 1.0, 0.9
    asked = SamplingParams(temperature=0.0, presence_penalty=1.0, frequency_penalty=1.0)
    assert sample(logits, [row(asked, prompt=(4,))], STAGING)[0].token_id == 4
    assert sample(logits, [row(asked, output=(4,))], STAGING)[0].token_id == 6
    asked = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    assert sample(logits, [row(asked, prompt=(4,))], STAGING)[0].token_id == 6


def test_end_tokens_are_masked_until_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 3], logits[0, 4] = 3.0, 2.0, 1.0
    asked = SamplingParams(temperature=0.0, min_tokens=2)
    assert sample(logits, [row(asked, output=(9,), ends=(2, 3))], STAGING)[0].token_id == 4
    assert sample(logits, [row(asked, output=(9, 9), ends=(2, 3))], STAGING)[0].token_id == 2


def test_logit_bias_moves_the_choice() -> None:
    asked = SamplingParams(temperature=0.0, logit_bias={11: 100.0, 12: -5.0})
    assert sample(random_logits(1), [row(asked)], STAGING)[0].token_id == 11


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_row_does_not_depend_on_its_neighbours(data: st.DataObject) -> None:
    def params() -> st.SearchStrategy[SamplingParams]:
        return st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
            top_k=st.sampled_from([None, 1, 3, 40]),
            top_p=st.sampled_from([None, 0.1, 0.9]),
            min_p=st.sampled_from([None, 0.05]),
            repetition_penalty=st.sampled_from([None, 1.2]),
            frequency_penalty=st.sampled_from([0.0, 0.5]),
            min_tokens=st.sampled_from([0, 3]),
            logprobs=st.sampled_from([None, 0, 4]),
            logit_bias=st.sampled_from([None, {4: 2.0}]),
        )

    rows = [
        row(data.draw(params()), data.draw(st.floats(0, 1, exclude_max=True)), output=(1, 5, 5)[:n], ends=(0,))
        for n in data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    ]
    logits = random_logits(len(rows), data.draw(st.integers(0, 100)))
    before = logits.clone()
    together = sample(logits, rows, STAGING)
    alone = [sample(logits[i : i + 1], [rows[i]], STAGING)[0] for i in range(len(rows))]
    assert together == alone
    assert torch.equal(logits, before), "the model's logits are not written to"


def test_logprobs_are_those_of_the_raw_logits_with_ranks() -> None:
    logits = random_logits(1, 5)
    reference = logits.log_softmax(-1)[0]
    asked = SamplingParams(temperature=0.0, logprobs=3, logit_bias={17: 100.0})
    [sampled] = sample(logits, [row(asked)], STAGING)
    assert sampled.token_id == 17
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == float(reference[17])
    assert sampled.logprobs.rank == 1 + int((reference > reference[17]).sum())
    values, ids = reference.topk(3)
    assert sampled.logprobs.top == tuple(zip(ids.tolist(), values.tolist(), strict=True))


def test_given_tokens_score_as_the_reference() -> None:
    logits, targets = random_logits(4, 6), torch.tensor([3, 0, 49, 7])
    scores = read_scores(score_tokens(logits, targets, 2), 2)
    reference = logits.log_softmax(-1)
    assert [s.logprob for s in scores] == reference.gather(1, targets[:, None])[:, 0].tolist()
    assert [len(s.top) for s in scores] == [2] * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits_spoil_their_own_row_only(bad: float) -> None:
    logits = random_logits(3)
    rows = [row(SamplingParams(temperature=1.0, top_p=0.9, logprobs=2), u) for u in (0.1, 0.5, 0.9)]
    clean = sample(logits, rows, STAGING)
    logits[1, 20] = bad
    spoiled = sample(logits, rows, STAGING)
    assert spoiled[1] == Sampled(None)
    assert (spoiled[0], spoiled[2]) == (clean[0], clean[2])


def test_a_row_that_penalties_push_past_the_numbers_is_refused_alone() -> None:
    logits = random_logits(2)
    logits[1, 3] = 1e34
    asked = SamplingParams(temperature=1.0, repetition_penalty=1e-6)
    kept, refused = sample(logits, [row(asked), row(asked, prompt=(3,))], STAGING)
    assert kept.token_id is not None
    assert refused == Sampled(None)


def test_tokens_that_the_model_rules_out_are_never_drawn() -> None:
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, [10, 20]] = 0.0
    assert support(logits[0], SamplingParams(temperature=1.0)).keys() == {10, 20}
    assert sample(torch.full((1, VOCAB), -math.inf), [row(GREEDY)], STAGING) == [Sampled(None)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1, exclude_max=True))
def test_the_inverse_cdf_never_draws_what_has_no_probability(weights: list[float], uniform: float) -> None:
    weights[len(weights) // 2] = 1.0
    probs = torch.tensor([weights], dtype=torch.float64)
    for u in (uniform, 0.0, 1 - 2**-53):
        assert weights[int(invert_cdf(probs, torch.tensor([u], dtype=torch.float64)))] > 0


def test_the_top_cut_always_leaves_the_likeliest() -> None:
    logits = random_logits(2).double()
    kept = keep_top(logits, torch.tensor([1.0, VOCAB]).double(), torch.tensor([1.0, 1e-9]).double())
    assert kept.isfinite().sum(dim=1).tolist() == [1, 1]
    assert torch.equal(kept.argmax(-1), logits.argmax(-1))


def test_a_chi_square_test_finds_the_draws_right() -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    rng = random.Random(11)
    draws = 4000
    rows = [row(SamplingParams(temperature=1.0), rng.random()) for _ in range(draws)]
    counts = [0] * 4
    for sampled in sample(logits.expand(draws, -1), rows, STAGING):
        counts[sampled.token_id or 0] += 1
    chi = sum((c - draws * p) ** 2 / (draws * p) for c, p in zip(counts, (0.5, 0.25, 0.15, 0.1), strict=True))
    assert chi < 16.3  # 0.1 % of right samplers are above


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.zeros(0, VOCAB), [], STAGING) == []
