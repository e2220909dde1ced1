"""`moesaic bench`: flags that would change nothing are refused, not ignored."""

from __future__ import annotations

import json

import pytest

from moesaic.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["bench", *words])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "no workload named"),
        (("no-such-workload",), "known: "),
        (("--list", "decode/small"), "a workload has no meaning with --list"),
        (("--list", "--device", "cpu"), "--device has no meaning with --list"),
        (("--list", "--runs", "2"), "--runs has no meaning with --list"),
        (("machine", "--mode", "fetch_misses"), "--mode has no meaning with machine"),
        (("machine", "--model", "x"), "--model has no meaning with machine"),
        (("machine", "--record", "x"), "--record has no meaning with machine"),
    ],
)
def test_what_would_be_ignored_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1


def test_the_list_says_what_each_workload_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list", "--json")
    assert code == 0
    assert "decode/small" in json.loads(out)
