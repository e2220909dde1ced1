"""The command line's shell: what it imports, how errors end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import moesaic
from moesaic.cli import main, verbs
from moesaic.core.errors import UserError

HEAVY = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub", "triton")


@pytest.mark.parametrize("module", ["moesaic", "moesaic.cli.verbs", "moesaic.cli.doctor"])
def test_importing_the_command_line_imports_nothing_heavy(module):
    code = f"import {module}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main.main(argv)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture
def break_down():
    """Registers a verb that raises what it is given, for one test."""
    commands = list(verbs.app.registered_commands)

    def register(error: BaseException) -> None:
        import typer

        def verb(as_json: bool = typer.Option(False, "--json")) -> None:
            raise error

        verbs.app.command("break-down")(verb)

    yield register
    verbs.app.registered_commands[:] = commands


def test_version_names_the_package(capsys):
    assert run(capsys, "--version") == (0, f"moesaic {moesaic.__version__}\n", "")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_verb(capsys, flag):
    code, out, _ = run(capsys, flag)
    assert code == 0
    assert all(verb in out for verb in verbs.VERBS)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("no-such-verb",), ("no-such-verb", "see `moesaic --help`")),
        (("--no-such-flag",), ("no-such-flag", "see `moesaic --help`")),
        (("doctor", "--no-such-flag"), ("no-such-flag", "see `moesaic doctor --help`")),
        (("demo", "--max-tokens", "x"), ("--max-tokens", "see `moesaic demo --help`")),
        (("demo", "--max-tokens", "0"), ("--max-tokens", "see `moesaic demo --help`")),
        (("demo", "--max-tokens"), ("--max-tokens", "see `moesaic")),
        (("doctor", "more"), ("more", "see `moesaic doctor --help`")),
        (("make-checkpoint",), ("argument", "see `moesaic make-checkpoint --help`")),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(capsys, argv, words):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("moesaic: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words)


def test_with_json_a_wrong_word_is_an_object_too(capsys):
    code, out, err = run(capsys, "demo", "--json", "--bogus")
    assert code == 2
    assert json.loads(out)["error"] == {"what": "no such option: --bogus", "fix": "see `moesaic demo --help`"}
    assert err.count("\n") == 1


def test_no_word_at_all_shows_the_help(capsys):
    code, out, err = run(capsys)
    assert code == 2
    assert all(verb in out + err for verb in verbs.VERBS)
    assert "moesaic: " not in err


def test_a_user_error_is_one_line_and_exit_code_2(capsys, break_down):
    break_down(UserError("config.json: key 'top_k' is missing", "copy the file\nagain"))
    assert run(capsys, "break-down") == (2, "", "moesaic: config.json: key 'top_k' is missing: copy the file again\n")


def test_with_json_the_error_is_an_object_on_stdout_as_well(capsys, break_down):
    break_down(UserError("what", "fix"))
    code, out, err = run(capsys, "break-down", "--json")
    assert (code, json.loads(out), err) == (2, {"error": {"what": "what", "fix": "fix"}}, "moesaic: what: fix\n")


def test_debug_shows_the_traceback_of_a_user_error(capsys, break_down):
    break_down(UserError("what", "fix"))
    code, _, err = run(capsys, "--debug", "break-down")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.endswith("moesaic: what: fix\n")


def test_our_own_fault_shows_its_traceback_and_exits_with_1(capsys, break_down):
    break_down(AssertionError("slots"))
    code, _, err = run(capsys, "break-down")
    assert code == 1
    assert "Traceback" in err
    assert "internal error: AssertionError: slots" in err.splitlines()[-1]


def test_an_interrupt_exits_with_130_and_no_traceback(capsys, break_down):
    break_down(KeyboardInterrupt())
    assert run(capsys, "break-down") == (130, "", "moesaic: interrupted\n")


def test_a_signal_to_end_cleans_up_and_exits_with_143(capsys, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def verb() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned.append(True)

    monkeypatch.setattr(main, "_run", lambda args: verb())
    assert run(capsys) == (143, "", "moesaic: terminated\n")
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) is before


def test_output_that_cannot_be_written_is_one_line(capsys, break_down):
    break_down(OSError(errno.ENOSPC, "No space left on device"))
    code, _, err = run(capsys, "break-down")
    assert code == 2
    assert err == "moesaic: the output cannot be written (No space left on device): send it where there is room\n"


def test_an_os_error_of_a_file_is_our_own_fault(capsys, break_down):
    break_down(OSError(errno.ENOSPC, "No space left on device", "a/file"))
    code, _, err = run(capsys, "break-down")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize("words", ["--help >/dev/full", "bench --list --json >/dev/full", "--bogus --json >/dev/full"])
def test_a_full_output_is_one_line_and_no_traceback(words):
    answer = shell(words)
    assert answer.returncode == 2
    assert answer.stderr.startswith("moesaic: ")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["bench --list >&-", "generate x -p - <&-", "bench --list 2>&- >/dev/full"])
def test_a_closed_stream_is_no_traceback(words):
    answer = shell(words)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == (0 if "2>&-" in words else 1)
    assert "None" not in answer.stderr


def test_a_stream_that_lacks_a_character_shows_a_question_mark():
    answer = shell("--bogus-é", PYTHONIOENCODING="ascii")
    assert answer.returncode == 2
    assert "--bogus-?" in answer.stderr


def test_a_reader_that_leaves_early_is_no_error():
    answer = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m moesaic --help | head -c 1 >/dev/null"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")


def shell(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m moesaic {words}"],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(("own", "seen"), [(None, "passive"), ("active", "active")])
def test_threads_wait_passively_unless_the_user_says_otherwise(capsys, monkeypatch, own, seen):
    monkeypatch.setenv("OMP_WAIT_POLICY", own or "")
    if own is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    run(capsys, "--version")
    assert os.environ["OMP_WAIT_POLICY"] == seen


def test_the_package_exports_sampling_params_and_nothing_it_has_not():
    from moesaic.core.sampling import SamplingParams

    assert moesaic.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no_such_name"):
        moesaic.no_such_name  # noqa: B018
