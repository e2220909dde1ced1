"""Prompts are read with a bound, and refused before the model is loaded."""

from __future__ import annotations

import io
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from moesaic.cli import prompts
from moesaic.cli.prompts import check_prompts, read_prompts
from moesaic.core.errors import UserError
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.options import EngineOptions

TINY = str(files("moesaic") / "models/data/tiny")


def test_texts_come_first_and_a_files_last_line_end_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"two\nlines\r\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"piped\n")))
    assert read_prompts(["one", "-"], [str(tmp_path / "a")]) == ["one", "piped", "two\nlines"]


@pytest.mark.parametrize(
    ("texts", "names", "words"),
    [
        ([], [], "no prompt"),
        (["-"], ["-"], "more than once"),
        ([], ["/no/such/file"], "/no/such/file: No such file"),
        ([], ["/dev/zero"], "/dev/zero is longer than"),
        ([], ["x" * 300], "File name too long"),
        ([], ["/"], "directory"),
    ],
)
def test_what_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], names: list[str], words: str
) -> None:
    monkeypatch.setattr(prompts, "MAX_PROMPT_BYTES", 1 << 20)
    with pytest.raises(UserError, match=words):
        read_prompts(texts, names)


def test_bytes_that_are_no_text_and_a_closed_stdin_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        read_prompts([], [str(tmp_path / "a")])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="stdin, which is closed"):
        read_prompts(["-"], [])


@pytest.mark.parametrize(
    ("texts", "options", "params", "words"),
    [
        ([""], {}, {}, "the prompt is empty"),
        (["a", ""], {}, {}, "prompt 1: the prompt is empty"),
        (["a " * 400], {"max_model_len": 64}, {}, "context holds 64"),
        (["a " * 4000], {}, {}, "context holds 1024"),
        (["a\ud800"], {}, {}, "Unicode"),
        (["a"], {}, {"stop_token_ids": [10**6]}, "stop_token_ids"),
        (["a"], {}, {"logit_bias": {10**6: 1}}, "logit_bias"),
    ],
)
def test_what_can_never_run_is_refused(texts: list[str], options: dict, params: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_prompts(EngineOptions(TINY, **options), texts, SamplingParams(**params))


def test_what_can_run_passes() -> None:
    check_prompts(EngineOptions(TINY), ["a", "b"], SamplingParams())
