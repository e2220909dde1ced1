"""`moesaic demo`: text from the embedded model, within 40 % of its experts' bytes, and the figures with it."""

import json
import re

import pytest

from moesaic.cli.demo import PROMPT
from moesaic.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["demo", *words])
    assert not end.value.code
    return capsys.readouterr().out


def test_the_demo_streams_text_and_ends_with_figures_and_the_grid(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--max-tokens", "12")
    assert PROMPT in out
    assert re.search(r"[\d.]+ tokens/s", out)
    assert re.search(r"expert hit rate [\d.]+%", out)
    assert re.search(r"bytes moved: host to device [\d.]+ [KMG]iB", out)
    counts = re.search(r"device (\d+)  \S host (\d+)", out)
    assert counts is not None
    on_device, on_host = map(int, counts.groups())
    assert on_device + on_host == 48, "six layers of eight"
    assert 0 < on_device <= 0.4 * 48
    assert all(f"L{layer} " in out for layer in range(6))


def test_json_says_the_same_in_one_object_and_greedy_text_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(run(capsys, "--json", "--max-tokens", "12")) for _ in range(2))
    assert first["text"] == second["text"]
    assert first["num_tokens"] == 12
    stats = first["stats"]
    assert stats["hits"] + stats["misses"] > 0
    assert stats["hit_rate"] == pytest.approx(stats["hits"] / (stats["hits"] + stats["misses"]))
    assert sum(where == "dev" for where in stats["residency"].values()) <= 19
    assert stats["bytes_by_path"]["h2d"] > 0


def test_the_prompt_is_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    out = json.loads(run(capsys, "--json", "--max-tokens", "2", "--prompt", "import os"))
    assert out["prompt"] == "import os"
    assert out["num_tokens"] == 2


def test_an_empty_prompt_is_one_line_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", "--prompt", ""])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("moesaic: ")
    assert error.count("\n") == 1
