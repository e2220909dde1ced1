"""The GPU half of doctor, on machines with and without one."""

from __future__ import annotations

import pytest
import torch

from moesaic.runtime import checks, gpu_checks
from moesaic.runtime.machine import MemoryFacts

MEMORY = MemoryFacts(64 << 30, 32 << 30, None, None, None)


def test_no_driver_means_no_checks():
    assert gpu_checks.gpu_checks(MEMORY, lambda: None) == []


def test_a_driver_that_does_not_answer_fails_with_a_fix():
    (check,) = gpu_checks.gpu_checks(MEMORY, list)
    assert (check.name, check.status) == ("NVIDIA driver", "failed")
    assert "--gpus all" in check.fix


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU build of torch")
def test_a_cpu_build_of_torch_beside_a_gpu_is_a_failure_and_stops_there():
    found = gpu_checks.gpu_checks(MEMORY, lambda: ["NVIDIA H200, 143771 MiB, 580.159.04"])
    assert [(check.name, check.status) for check in found] == [("NVIDIA driver", "ok"), ("GPU", "failed")]
    assert found[0].value == "580.159.04, 1 GPU"
    assert "CPU build" in found[1].value


@pytest.mark.gpu
def test_on_a_gpu_the_driver_triton_and_pinning_all_work():
    found = gpu_checks.gpu_checks(MEMORY)
    assert [check.name for check in found] == ["NVIDIA driver", "GPU", "Triton", "pinnable memory"]
    assert {check.status for check in found[:3]} == {"ok"}, found
    assert found[3].status in ("ok", "note")
    assert checks.compiler_check(True).status == "ok"
