"""The command line's shell: what it imports, how errors end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import moesaic
from moesaic.cli import errors, main
from moesaic.core.errors import UserError

HEAVY = ("torch", "transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub", "triton")


@pytest.mark.parametrize("module", ["moesaic", "moesaic.cli.main", "moesaic.cli.doctor"])
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
    commands = list(main.app.registered_commands)

    def register(error: BaseException) -> None:
        import typer

        def verb(as_json: bool = typer.Option(False, "--json")) -> None:
            raise error

        main.app.command("break-down")(verb)

    yield register
    main.app.registered_commands[:] = commands


def test_version_names_the_package(capsys):
    assert run(capsys, "--version") == (0, f"moesaic {moesaic.__version__}\n", "")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_verb(capsys, flag):
    code, out, _ = run(capsys, flag)
    assert code == 0
    assert all(verb in out for verb in main.VERBS)


@pytest.mark.parametrize("argv", [("no-such-verb",), ("doctor", "--no-such-flag"), ("--no-such-flag",)])
def test_an_unknown_word_exits_with_2(capsys, argv):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert "no-such" in err


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
    code, _, err = run(capsys, "break-down")
    assert code == 130
    assert "Traceback" not in err


def test_an_interrupt_reported_by_hand_says_so(capsys):
    assert errors.report(KeyboardInterrupt(), as_json=True, debug=True) == errors.INTERRUPTED
    assert capsys.readouterr() == ("", "moesaic: interrupted\n")


def test_a_reader_that_leaves_early_is_no_error():
    pipe = f"{sys.executable} -m moesaic --help | head -n 1 >/dev/null"
    answer = subprocess.run(["bash", "-c", f"set -o pipefail; {pipe}"], capture_output=True, text=True, check=False)
    assert answer.stderr == ""


def test_the_package_exports_sampling_params_and_nothing_it_has_not():
    from moesaic.core.sampling import SamplingParams

    assert moesaic.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no_such_name"):
        moesaic.no_such_name  # noqa: B018
