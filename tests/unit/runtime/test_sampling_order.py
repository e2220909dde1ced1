"""Which filter sees what: top_p counts within what top_k left, and min_p keeps a token exactly at its threshold."""

import math

import torch

from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.runtime.sampler import SampleRow, sample
from moesaic.runtime.staging import Staging


def drawn(probabilities, params: SamplingParams) -> set[int]:
    """Tokens that some uniform number draws."""
    draws = 400
    logits_V = torch.tensor([math.log(p) for p in probabilities])
    filled = GenerationDefaults().fill(params)
    rows = [SampleRow(filled, (1,), (), frozenset(), (i + 0.5) / draws) for i in range(draws)]
    sampled = sample(logits_V.expand(draws, -1), rows, Staging(torch.device("cpu"), 0))
    return {s.token_id for s in sampled}


def test_top_p_counts_within_what_top_k_left():
    # of the two that top_k leaves, the first holds 0.4 / 0.7 = 57 %: enough for 0.5; of all four it would hold 40 %
    assert drawn([0.4, 0.3, 0.2, 0.1], SamplingParams(temperature=1.0, top_k=2, top_p=0.5)) == {0}
    assert drawn([0.4, 0.3, 0.2, 0.1], SamplingParams(temperature=1.0, top_p=0.5)) == {0, 1}


def test_min_p_keeps_a_token_exactly_at_its_threshold():
    assert drawn([0.4, 0.4, 0.2], SamplingParams(temperature=1.0, min_p=1.0)) == {0, 1}
