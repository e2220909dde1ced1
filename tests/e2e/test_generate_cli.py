"""`moesaic generate` as a user runs it, on the embedded model."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from moesaic.cli.main import main

TINY = Path(str(files("moesaic") / "models/data/tiny"))
FAST = ("--max-tokens", "6", "--temperature", "0", "--dtype", "float32", "--max-model-len", "128")


class Run(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Moesaic(Protocol):
    def __call__(self, *args: str, stdin: bytes = b"") -> Run: ...


@pytest.fixture
def moesaic(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Moesaic:
    """The command in this process, which has torch loaded already."""

    def run(*args: str, stdin: bytes = b"") -> Run:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main(args)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Run(code, *capfd.readouterr())

    return run


def test_text_goes_to_stdout_and_the_figures_to_stderr(moesaic: Moesaic) -> None:
    done = moesaic("generate", str(TINY), "-p", "def read_file(path):", *FAST, "--expert-memory=40%")
    assert done.code == 0, done.stderr
    stderr = done.stderr
    assert "tokens/s" in stderr
    assert "expert hits" in stderr
    assert "19 slots" in stderr, "the effective plan is printed: 40 % of 48 experts"
    assert done.stdout.strip()
    assert "tokens/s" not in done.stdout


def test_json_is_one_object_with_outputs_and_stats_and_equals_the_text(moesaic: Moesaic, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("The file\n")
    args = ("generate", str(TINY), "--prompt-file", str(prompt), "-p", "-", *FAST, "--logprobs=2", "--json")
    done = moesaic(*args, "--assignment", "fetch_misses", stdin="naïve 🦀".encode())
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert [o["prompt"] for o in data["outputs"]] == ["naïve 🦀", "The file"]
    for output in data["outputs"]:
        [completion] = output["outputs"]
        assert len(completion["token_ids"]) == len(completion["logprobs"]) <= 6
        for token, entry in zip(completion["token_ids"], completion["logprobs"], strict=True):
            assert entry[str(token)]["rank"] == 1
    assert data["stats"]["decode_tokens"] > 0
    assert data["plan"]


def test_bad_input_ends_in_one_line_and_exit_code_2(moesaic: Moesaic, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(TINY, broken)
    (broken / "tokenizer.json").write_text("{")
    cases = [
        ((str(TINY), "-p", ""), "empty"),
        ((str(TINY), "-p", "a " * 400, "--max-model-len", "64"), "64"),
        ((str(broken), "-p", "x"), "tokenizer.json"),
    ]
    for args, words in cases:
        done = moesaic("generate", *args)
        lines = done.stderr.strip().splitlines()
        assert done.code == 2, (args, lines)
        assert words in lines[-1]
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        assert len(lines) == 1, "refused before the model is loaded and its plan printed"


def test_a_trace_is_written_by_a_run_and_left_alone_by_a_refused_one(moesaic: Moesaic, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    trace.write_text("mine")
    refused = moesaic("generate", str(TINY), "-p", "x", "--trace", str(trace), "--device-memory", "1MiB")
    assert refused.code == 2, refused.stderr
    assert trace.read_text() == "mine"
    done = moesaic("generate", str(TINY), "-p", "x", "--trace", str(trace), *FAST)
    assert done.code == 0, done.stderr
    assert json.loads(trace.read_text())["traceEvents"]
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-p", "x", "--temperature=-1"), "temperature"),
        (("-p", "x", "--cache", "4"), "cache"),
        ((), "no prompt"),
        (("--prompt-file", "/nowhere/at/all"), "/nowhere/at/all"),
        (("-p", "-", "--prompt-file", "-"), "stdin"),
        (("-p", "x", "--no-such-flag"), "--no-such-flag"),
        (("-p", "x", "--device-memory", "9" * 400 + "GiB"), "device_memory"),
        (("-p", "x", "--max-num-batched-tokens", "100000000"), "max_num_batched_tokens"),
        (("-p", "x", "--trace", ""), "trace"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_heavy(moesaic: Moesaic, args: tuple[str, ...], words: str) -> None:
    done = moesaic("generate", str(TINY), *args)
    assert done.code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_reader_that_leaves_is_no_error_worth_a_traceback() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = "from moesaic.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "generate", str(TINY), "-p", "a", *FAST, "--ignore-eos"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read().decode()
    process.wait(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr
