"""One sequence's way from sampled tokens to text: stops, ends, deltas."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.runtime.outputs import CompletionOutput
from moesaic.runtime.requests import Request, RequestLimits, Vocabulary
from moesaic.runtime.sampler import Sampled, TokenLogprobs
from tests.toy import LetterTokenizer

EOS = 256


def start(max_tokens: int | None = 100, **params: object) -> Request:
    tokenizer = LetterTokenizer()
    vocabulary = Vocabulary(tokenizer, frozenset({EOS, 257}), tokenizer.special_ids, tokenizer.textless(300))
    filled = GenerationDefaults().fill(SamplingParams(max_tokens=max_tokens, **params))  # type: ignore[arg-type]
    request = Request("r", "p", [112], filled, vocabulary, RequestLimits(200, 1000, 300), 0.0)
    request.start(0, "0.0")
    return request


def feed(request: Request, text: str, *ids: int) -> list[CompletionOutput]:
    outputs = []
    for token_id in [*map(ord, text), *ids]:
        if request.finished:
            break
        request.sequences[0].accept(Sampled(token_id))
        outputs.append(request.output().outputs[0])
    return outputs


def test_deltas_add_up_to_the_text_and_ids_keep_the_end_token() -> None:
    outputs = feed(start(), "hello", EOS)
    assert "".join(o.delta for o in outputs) == outputs[-1].text == "hello"
    assert outputs[-1].token_ids == [*map(ord, "hello"), EOS]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", None)


def test_a_stop_text_over_several_tokens_never_shows() -> None:
    outputs = feed(start(stop=["DEFG"]), "ABCDEFGH")
    assert [o.text for o in outputs] == ["A", "AB", "ABC", "ABC", "ABC", "ABC", "ABC"]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", "DEFG")


def test_held_text_comes_out_when_it_is_no_stop() -> None:
    assert feed(start(stop="DEFG"), "ABCDE!")[-1].text == "ABCDE!"
    assert feed(start(stop="DEFG"), "ABCDE", EOS)[-1].text == "ABCDE"
    assert feed(start(max_tokens=5, stop="DEFG"), "ABCDE")[-1].text == "ABCDE"


def test_the_stop_text_stays_where_asked() -> None:
    outputs = feed(start(stop="CD", include_stop_str_in_output=True), "ABCDE")
    assert outputs[-1].text == "ABCD"
    assert feed(start(include_stop_str_in_output=True), "AB", EOS)[-1].text == "AB"
    kept = feed(start(include_stop_str_in_output=True, skip_special_tokens=False), "AB", EOS)
    assert kept[-1].text == "AB<256>"


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    assert feed(start(), "a", 260, 98)[-1].text == "ab"
    assert feed(start(skip_special_tokens=False), "a", 260, 98)[-1].text == "a<260>b"


def test_stops_are_ignored_until_min_tokens() -> None:
    outputs = feed(start(stop="a", min_tokens=3), "aaaa")
    assert (outputs[-1].text, len(outputs[-1].token_ids)) == ("aaa", 4)


def test_a_stop_text_wins_over_the_length_at_the_same_token() -> None:
    assert feed(start(max_tokens=3, stop="c"), "abc")[-1].finish_reason == "stop"


def test_a_stop_token_says_which() -> None:
    outputs = feed(start(stop_token_ids=[99, EOS], ignore_eos=True), "ab", EOS)
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason, outputs[-1].text) == ("stop", EOS, "ab")


def test_no_detokenizing_gives_ids_only() -> None:
    assert feed(start(detokenize=False), "ab", EOS)[-1].text == ""


def test_the_chosen_token_comes_first_in_its_logprobs() -> None:
    request = start(logprobs=2)
    request.sequences[0].accept(Sampled(98, TokenLogprobs(-3.0, 7, ((97, -0.5), (98, -3.0)))))
    request.sequences[0].accept(Sampled(97, TokenLogprobs(-0.25, 1, ((97, -0.25), (99, -2.0)))))
    output = request.output().outputs[0]
    assert output.logprobs is not None
    assert list(output.logprobs[0]) == [98, 97]
    assert output.logprobs[0][98] == (-3.0, 7, "b")
    assert output.logprobs[1][99] == (-2.0, 2, "c")
    assert output.cumulative_logprob == -3.25


def test_a_failure_keeps_what_was_written() -> None:
    request = start(stop="xy")
    feed(request, "abx")
    request.sequences[0].accept(Sampled(None))
    output = request.output().outputs[0]
    assert (output.text, output.finish_reason) == ("abx", "error")
    assert "NaN" in (output.error or "")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([97, 98, 99, 256, 257, 260, 295]), min_size=1, max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(1, 30),
)
def test_streamed_text_is_final_text_and_no_stop_leaks(
    ids: list[int], stops: list[str], include: bool, ignore_eos: bool, max_tokens: int
) -> None:
    request = start(max_tokens, stop=stops, include_stop_str_in_output=include, ignore_eos=ignore_eos)
    outputs = feed(request, "", *ids)
    text = outputs[-1].text
    assert "".join(o.delta for o in outputs) == text
    for before, after in pairwise(outputs):
        assert after.text == before.text + after.delta
    if not include:
        assert not any(stop in text for stop in stops)
    elif outputs[-1].stop_reason in stops:
        assert text.endswith(str(outputs[-1].stop_reason))
    assert len(outputs[-1].token_ids) <= max_tokens


@pytest.mark.parametrize("reason", ["abort", "fail"])
def test_ending_from_outside_gives_the_held_text_out(reason: str) -> None:
    request = start(stop="cd")
    feed(request, "abc")
    seq = request.sequences[0]
    seq.abort() if reason == "abort" else seq.fail("why")
    assert request.output().outputs[0].delta == "c"
