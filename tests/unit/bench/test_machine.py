"""Provenance names this machine, the versions and the commit of the checkout the package is in."""

import subprocess
import sys
from pathlib import Path

import torch

from moesaic.bench.machine import commit, describe_machine, versions


def test_the_machine_is_named() -> None:
    machine = describe_machine(torch.device("cpu"))
    assert machine["cpu"]
    assert machine["gpu"] is None
    assert isinstance(machine["cores"], int)
    assert machine["cores"] >= 1
    assert isinstance(machine["memory_bytes"], int)
    assert machine["memory_bytes"] > 1 << 28


def test_versions_are_those_that_run() -> None:
    found = versions()
    assert found["torch"] == torch.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(["git", "-C", str(root), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commit_of_a_checkout_and_its_changes(tmp_path: Path) -> None:
    package = tmp_path / "src" / "moesaic"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    assert commit(package) == "", "no checkout"
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(package) == head[:12]
    (package / "untracked.py").write_text("")
    assert commit(package) == head[:12]
    (package / "a.py").write_text("a = 2\n")
    assert commit(package) == f"{head[:12]}+changes"


def test_a_foreign_checkout_around_an_installed_package_is_not_ours(tmp_path: Path) -> None:
    package = tmp_path / "venv" / "lib" / "moesaic"
    package.mkdir(parents=True)
    git(tmp_path, "init", "-q")
    assert commit(package) == ""
