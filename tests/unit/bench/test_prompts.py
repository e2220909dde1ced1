"""Prompts are of the asked length, the same for the same seed, and bad text is refused by name."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import moesaic
from moesaic.bench.prompts import own_documents, random_prompt, read_documents, text_prompts
from moesaic.core.errors import UserError


@given(st.integers(2, 200_000), st.integers(1, 600), st.integers(0, 1 << 30))
def test_random_tokens_are_seeded_in_range_and_never_the_end_token(vocab: int, num_tokens: int, seed: int) -> None:
    prompt = random_prompt(vocab, num_tokens, seed)
    assert prompt == random_prompt(vocab, num_tokens, seed)
    assert len(prompt.token_ids) == num_tokens
    assert all(1 <= token < vocab for token in prompt.token_ids)


def test_the_first_document_that_is_long_enough_is_cut_to_length() -> None:
    prompts = text_prompts({"a": ["xy", "long enough"], "b": ["12", "34", "5"]}, lambda t: [ord(c) for c in t], 5)
    assert [(p.domain, "".join(map(chr, p.token_ids))) for p in prompts] == [("a", "long "), ("b", "12345")]


def test_text_that_is_too_short_names_its_domain() -> None:
    with pytest.raises(UserError, match="domain 'b' has 2 tokens"):
        text_prompts({"a": ["long enough"], "b": ["12"]}, lambda t: [ord(c) for c in t], 5)


def test_documents_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    path.write_text(json.dumps({"code": ["a", "b"]}))
    assert read_documents(path) == {"code": ["a", "b"]}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"a": "b"}', '{"a": []}', '{"a": [1]}'])
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "text.json").write_text(text)
    with pytest.raises(UserError, match=r"text\.json"):
        read_documents(tmp_path / "text.json")
    with pytest.raises(UserError, match=r"none\.json"):
        read_documents(tmp_path / "none.json")


def test_our_own_source_is_text_enough_for_a_prompt() -> None:
    documents = own_documents(Path(moesaic.__file__).parent)
    assert len(documents["code"][0]) > 4 * 512, "the longest file comes first"
