"""Text as it comes equals text at once; characters and stop texts are never cut."""

from __future__ import annotations

import random
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from moesaic.runtime.detokenizer import LONGEST_RUN, REPLACEMENT, Detokenizer, StopChecker
from moesaic.runtime.tokenizer import TransformersTokenizer, load_tokenizer

EMOJI = "I like 🦀, naïve café and 漢字 — «ok» 👩‍👩‍👧‍👦 end"


@cache
def tiny() -> TransformersTokenizer:
    return load_tokenizer(Path(str(files("moesaic") / "models/data/tiny")))


def stream(ids: list[int], skipped: frozenset[int] = frozenset()) -> list[str]:
    detokenizer = Detokenizer(tiny().decode, skipped)
    return [detokenizer.push(i) for i in ids]


def check_equals_full_decoding(ids: list[int]) -> None:
    text, full = "".join(stream(ids)), tiny().decode(ids)
    assert full.startswith(text)
    assert set(full[len(text) :]) <= {REPLACEMENT}, "only a cut character at the end may be missing"
    assert len(full) - len(text) <= 8


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 4095), max_size=40))
def test_streamed_text_is_the_full_decoding_of_random_ids(ids: list[int]) -> None:
    check_equals_full_decoding(ids)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(3, 260), max_size=100))
def test_streamed_text_is_the_full_decoding_of_random_bytes(ids: list[int]) -> None:
    check_equals_full_decoding(ids)


@pytest.mark.long
def test_streamed_text_is_the_full_decoding_of_ten_thousand_sequences() -> None:
    rng = random.Random(20261)
    for _ in range(10_000):
        top = rng.choice((260, 4096))
        check_equals_full_decoding([rng.randrange(top) for _ in range(rng.randrange(1, 120))])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_real_text_comes_back_whole_and_no_piece_holds_half_a_character(text: str) -> None:
    deltas = stream(tiny().encode(text))
    if not text.endswith(REPLACEMENT):
        assert "".join(deltas) == text
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in delta for delta in deltas)


def test_a_character_cut_by_the_end_is_left_out() -> None:
    ids = tiny().encode("ab 🦀")
    assert "".join(stream(ids[:-1])) == "ab "
    assert "".join(stream(ids)) == "ab 🦀"


def test_bytes_that_are_no_character_do_not_stop_the_stream() -> None:
    [lone] = [i for i in range(3, 260) if tiny().hf.convert_ids_to_tokens(i) == "Ģ"]  # byte 0x80
    deltas = stream([lone] * (3 * LONGEST_RUN))
    assert len("".join(deltas)) >= 3 * LONGEST_RUN - 8
    ids = [lone] * (2 * LONGEST_RUN + 5) + tiny().encode(EMOJI)
    assert "".join(stream(ids)) == tiny().decode(ids)


def test_skipped_ids_leave_no_trace_even_inside_a_character() -> None:
    ids = tiny().encode(EMOJI)
    mixed = [x for i in ids for x in (1, i, 2)]
    assert "".join(stream(mixed, frozenset({0, 1, 2}))) == EMOJI
    assert "".join(stream(mixed)).count("<|im_start|>") == len(ids)


def test_ids_that_no_token_has_give_no_text() -> None:
    ids = [5000, *tiny().encode("a b"), 4999, *tiny().encode(" c")]
    assert "".join(stream(ids)) == "a b c"


def test_leading_spaces_survive_a_decoder_that_strips_the_first_one() -> None:
    pieces = ["<unk>", "▁the", "▁cat", "s", "▁", "▁▁", ",", "<0xE2>", "<0x82>", "<0xAC>"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = FastTokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rng = random.Random(4)
    for _ in range(300):
        ids: list[int] = []
        for _ in range(rng.randrange(1, 30)):
            ids += rng.choice(([1], [2], [3], [4], [5], [6], [7, 8, 9]))
        detokenizer = Detokenizer(lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False))
        assert "".join(map(detokenizer.push, ids)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_token_without_text_does_not_cost_the_next_one_its_space() -> None:
    words = ["", " b", "a"]
    detokenizer = Detokenizer(lambda ids: "".join(words[i] for i in ids).removeprefix(" "))
    assert "".join(map(detokenizer.push, [2, 0, 0, 1, 1])) == "a b b"


# -- stop texts --------------------------------------------------------------------------------------------------
def run_stops(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    checker, given_out = StopChecker(stops, include), ""
    for piece in pieces:
        text, match = checker.push(piece)
        given_out += text
        if match is not None:
            return given_out, match.stop
    return given_out + checker.flush(), None


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Character by character: the first that completes a stop text ends it, the longest stop counts."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("abc", max_size=5), max_size=10),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
)
def test_stops_cut_at_the_same_character_however_text_is_pieced(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    assert run_stops(pieces, stops, include) == reference("".join(pieces), stops, include)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text("abc", max_size=4), max_size=10), st.text("abc", min_size=1, max_size=5))
def test_no_piece_given_out_could_still_become_a_stop(pieces: list[str], stop: str) -> None:
    checker, received, given_out = StopChecker([stop], include=False), "", ""
    for piece in pieces:
        text, match = checker.push(piece)
        received, given_out = received + piece, given_out + text
        if match is not None:
            return
        held = received[len(given_out) :]
        assert received == given_out + held
        assert stop.startswith(held), "only a beginning of the stop is held back"
        beginnings = [n for n in range(1, len(stop)) if received.endswith(stop[:n])]
        assert len(held) == max(beginnings, default=0)


def test_a_stop_that_is_not_armed_is_text_and_does_not_begin_there() -> None:
    checker = StopChecker(["ab"], include=False)
    assert checker.push("ab a", armed=False) == ("ab a", None)
    text, match = checker.push("b ab")
    assert (text, match and match.stop) == ("b ", "ab")
