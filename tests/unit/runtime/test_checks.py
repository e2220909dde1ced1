"""Doctor's checks: what each says, and that a failing one tells how to mend it."""

from __future__ import annotations

import pytest

from moesaic.runtime import checks
from moesaic.runtime.checks import Check
from moesaic.runtime.machine import CpuFacts, MemoryFacts

GiB = 1 << 30


def test_a_missing_package_and_an_old_one_fail_with_the_line_to_type():
    versions = {"torch": "2.10.1+cu128", "numpy": "2.1.0", "rich": "15.0"}
    found = checks.package_checks(["torch>=2.11", "numpy>=2.0", "safetensors", "rich>=13.9"], versions.get)
    assert found == [
        Check("packages", "ok", "numpy 2.1.0, rich 15.0"),
        Check("torch", "failed", "2.10.1+cu128, older than 2.11", "pip install 'torch>=2.11'"),
        Check("safetensors", "failed", "not installed", "pip install 'safetensors'"),
    ]


def test_no_package_at_all_is_no_crash():
    found = checks.package_checks(["torch>=2.11"], lambda name: None)
    assert [check.status for check in found] == ["failed"]


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.13.0+cpu", (2, 13, 0)), ("2.11", (2, 11)), ("3.0rc1", (3, 0)), ("", ())]
)
def test_release_reads_the_leading_numbers(version, numbers):
    assert checks.release(version) == numbers


def test_two_digit_minors_are_newer_than_one_digit_ones():
    assert checks.release("2.11.0") > checks.release("2.9.1")


def test_floors_come_from_the_installation_or_the_sources():
    names = {floor.partition(">=")[0] for floor in checks.declared_floors()}
    assert {"torch", "transformers", "typer"} <= names
    assert not any(";" in floor or " " in floor for floor in checks.declared_floors())


def test_whatever_a_probe_raises_is_a_finding():
    def probe() -> Check:
        raise ImportError("libfoo.so: cannot open\nmore lines")

    assert checks.attempt("torch", "pip install torch", probe) == Check(
        "torch", "failed", "ImportError: libfoo.so: cannot open", "pip install torch"
    )


def test_an_exception_without_a_message_is_named():
    def probe() -> Check:
        raise RuntimeError

    assert checks.attempt("x", "", probe).value == "RuntimeError: no message"


def test_a_compiler_is_needed_with_a_gpu_only(tmp_path):
    def nothing(name: str) -> None:
        return None

    with_gpu = checks.compiler_check(True, nothing, tmp_path)
    assert with_gpu.status == "failed"
    assert with_gpu.value == "no C compiler and no Python.h: Triton needs both"
    assert with_gpu.fix == "apt-get install -y gcc g++ python3-dev"
    assert checks.compiler_check(False, nothing, tmp_path).status == "note"


def test_a_compiler_with_its_header_is_found(tmp_path):
    (tmp_path / "Python.h").touch()
    found = checks.compiler_check(True, {"gcc": "/usr/bin/gcc"}.get, tmp_path)
    assert found == Check("compiler", "ok", "gcc, Python.h")


def test_a_compiler_without_python_h_names_what_is_missing(tmp_path):
    assert checks.compiler_check(True, {"cc": "/usr/bin/cc"}.get, tmp_path).value.startswith("no Python.h")


def test_memory_says_the_cgroups_limit():
    value = checks.memory_check(MemoryFacts(64 * GiB, 32 * GiB, 8 * GiB, 2 * GiB, None)).value
    assert value == "64.0 GiB, 32.0 GiB available, cgroup limit 8.00 GiB, 2.00 GiB used"


def test_hardly_any_free_memory_is_a_note_with_advice():
    check = checks.memory_check(MemoryFacts(64 * GiB, 1 << 20, None, None, None))
    assert (check.status, bool(check.fix)) == ("note", True)


def test_processor_says_its_limits_and_the_threads_that_follow():
    value = checks.cpu_check(CpuFacts("Fast CPU", 16, 8, 4, 2.5), ("avx2", "amx_bf16")).value
    assert "avx2 amx_bf16" in value
    assert "8 of 16 processors allowed, 4 physical cores, cgroup quota 2.5: 2 threads" in value


def test_the_cache_check_walks_up_to_a_folder_that_exists(tmp_path):
    assert str(tmp_path / "not" / "there") in checks.cache_check(tmp_path / "not" / "there").value


def test_this_machines_torch_and_kernels_are_examined():
    assert checks.torch_check().status == "ok"
    extension = checks.extension_check()
    assert extension.status in ("ok", "note")
    assert extension.status == "ok" or "torch's own operators do the work instead" in extension.value
