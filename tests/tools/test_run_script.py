"""The `run` script without a network: its words, and what it says when Python is not as it should be."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLS = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]


def call(folder: Path, *argv: str, path: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    wanted = {"PATH": path or os.environ["PATH"], **environment}
    return subprocess.run(
        ["/bin/sh", str(folder / "run"), *argv], capture_output=True, text=True, env=wanted, check=False, timeout=60
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Only what the script reads before it needs Python."""
    for name in ("run", "pyproject.toml", "CMakeLists.txt", "csrc", "tools"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def fake_python(folder: Path, script: str) -> str:
    """A PATH whose every Python is `script`, beside the tools that the script itself needs."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for tool in ("sh", "cat", "cksum", "find", "sort", "xargs", "dirname", "rm", "env", "grep"):
        (bin_folder / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool}"))
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"):
        (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_folder / name).chmod(0o755)
    return str(bin_folder)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_parses(shell):
    assert subprocess.run([shell, "-n", str(ROOT / "run")], check=False).returncode == 0


def test_ci_calls_the_script_and_parses():
    text = (ROOT / ".ci" / "run").read_text()
    assert text.index("./run test ") < text.index("./run test-long ")
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=False).returncode == 0


@pytest.mark.parametrize("argv", [(), ("help",), ("-h",), ("--help",)])
def test_help_needs_no_setup(clone, argv):
    answer = call(clone, *argv)
    assert answer.returncode == 0
    assert all(verb in answer.stdout for verb in ("demo", "test", "test-long", "doctor", "wheel", "moesaic"))
    assert not (clone / ".venv").exists()


def test_an_unknown_verb_fails_without_setup(clone):
    answer = call(clone, "tset")
    assert answer.returncode == 1
    assert "unknown verb 'tset'" in answer.stderr
    assert not (clone / ".venv").exists()


def test_without_the_venv_module_it_names_the_apt_line(clone, tmp_path):
    script = 'case "$2" in *ensurepip*) exit 1 ;; *version_info*print*|*print*) echo 3.12 ;; esac'
    answer = call(clone, "demo", path=fake_python(tmp_path, script))
    assert answer.returncode == 1
    assert "apt-get install -y python3-venv" in answer.stderr
    assert "python3.12-venv" in answer.stderr


def test_without_a_new_enough_python_it_names_the_apt_line(clone, tmp_path):
    answer = call(clone, "doctor", path=fake_python(tmp_path, "exit 1"))
    assert answer.returncode == 1
    assert "no Python 3.11 or newer" in answer.stderr
    assert "apt-get install -y python3 python3-venv" in answer.stderr


def test_an_offline_python_without_torch_is_refused(clone, tmp_path):
    path = fake_python(tmp_path, 'case "$2" in *torch*) exit 1 ;; esac')
    answer = call(clone, "doctor", path=path, MOESAIC_SYSTEM_SITE="1")
    assert answer.returncode == 1
    assert "lacks venv, pip or torch" in answer.stderr


def test_machines_without_a_gpu_get_the_pinned_torch_and_nothing_names_an_index():
    text = (ROOT / "run").read_text()
    assert "'torch==2.13.0'" in text
    assert "index-url" not in text
    assert "find-links" not in text


def test_torch_is_no_build_requirement():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert not any(requirement.startswith("torch") for requirement in project["build-system"]["requires"])
    assert not any("<" in requirement or "==" in requirement for requirement in project["project"]["dependencies"])
