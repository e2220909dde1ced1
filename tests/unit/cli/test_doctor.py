"""`moesaic doctor`: its report, its JSON, its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from moesaic.cli import doctor
from moesaic.runtime.checks import Check

GOOD = Check("torch", "ok", "2.13.0")
POOR = Check("CPU kernels", "note", "not built", "apt-get install -y g++")
BAD = Check("Triton", "failed", "no [C] compiler", "apt-get install -y gcc python3-dev")


def run(monkeypatch: pytest.MonkeyPatch, checks: list[Check], as_json: bool) -> int:
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    monkeypatch.setenv("COLUMNS", "160")
    with pytest.raises(typer.Exit) as end:
        doctor.run(as_json)
    return end.value.exit_code


def test_notes_alone_are_success(monkeypatch, capsys):
    assert run(monkeypatch, [GOOD, POOR], as_json=False) == 0
    out = capsys.readouterr().out
    assert "Everything that is needed works. 1 note(s)." in out
    assert "fix: apt-get install -y g++" in out


def test_a_failure_exits_with_1_and_shows_the_line_that_mends_it(monkeypatch, capsys):
    assert run(monkeypatch, [GOOD, BAD], as_json=False) == 1
    out = capsys.readouterr().out
    assert "no [C] compiler" in out
    assert "fix: apt-get install -y gcc python3-dev" in out
    assert "1 part(s) need mending." in out


def test_json_holds_every_check_and_the_verdict(monkeypatch, capsys):
    assert run(monkeypatch, [GOOD, BAD], as_json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["checks"][1] == {"name": BAD.name, "status": "failed", "value": BAD.value, "fix": BAD.fix}


def test_this_machine_is_examined_whole():
    found = doctor.examine()
    names = {check.name for check in found}
    assert {"system", "processor", "memory", "torch", "CPU kernels", "compiler", "GPU", "checkpoints"} <= names
    assert all(check.fix for check in found if check.status != "ok")
    assert all("\n" not in check.value for check in found)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/data/hub", "HF_HOME": "/x"}, "/data/hub"),
        ({"HF_HOME": "/x"}, "/x/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_hub_cache_follows_the_hubs_own_variables(monkeypatch, environment, folder):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert doctor.hub_cache() == Path(folder).expanduser()
