"""Sampling parameters refuse what no sampler can do."""

from __future__ import annotations

import math

import pytest

from moesaic.core.errors import UserError
from moesaic.core.sampling import SamplingParams


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0}, {"temperature": math.nan}, {"temperature": math.inf}, {"temperature": "1"},
        {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -2}, {"top_k": 2.5}, {"min_p": -0.1}, {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0}, {"frequency_penalty": -3.0}, {"n": 0}, {"n": 1000}, {"n": True}, {"max_tokens": 0},
        {"max_tokens": 1.5}, {"min_tokens": -1}, {"logprobs": 1000}, {"seed": 1.5},
        {"logit_bias": {1: math.nan}}, {"logit_bias": {"1": 1.0}}, {"logit_bias": {1: "a"}}, {"logit_bias": {1: None}},
        {"logit_bias": [1]}, {"logit_bias": {True: 1}}, {"logit_bias": {5: 1e39}}, {"logit_bias": {5: -100.5}},
        {"stop_token_ids": [-1]}, {"stop_token_ids": 5}, {"stop_token_ids": [1.5]}, {"min_tokens": None}, {"n": None},
        {"presence_penalty": None}, {"ignore_eos": "no"}, {"detokenize": None}, {"skip_special_tokens": 1},
        {"temperature": 10**5000}, {"temperature": 10**400}, {"best_of": 2}, {"temprature": 1.0},
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_its_name(values: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(values))):
        SamplingParams(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", ["", ["a", ""], [3], 5, b"a", {"a": 1}])
def test_an_empty_stop_is_refused(stop: object) -> None:
    with pytest.raises(UserError, match="stop"):
        SamplingParams(stop=stop)  # type: ignore[arg-type]


def test_what_is_kept_is_plain_python() -> None:
    class Int(int):
        pass

    params = SamplingParams(top_k=Int(3), stop=["a"], stop_token_ids=[Int(1)], logit_bias={Int(2): Int(5)})
    assert type(params.top_k) is int
    assert params.stop == ("a",)
    assert params.stop_token_ids == (1,)
    assert params.logit_bias == {2: 5.0}
    assert [type(x) for item in params.logit_bias.items() for x in item] == [int, float]


def test_combinations_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match="detokenize"):
        SamplingParams(stop="a", detokenize=False)
    with pytest.raises(UserError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(UserError, match="greedy"):
        SamplingParams(n=2, temperature=0.0)


def test_one_stop_text_or_several_read_the_same() -> None:
    assert SamplingParams(stop="a").stop_strings == SamplingParams(stop=["a"]).stop_strings == ("a",)
    assert SamplingParams().stop_strings == ()
