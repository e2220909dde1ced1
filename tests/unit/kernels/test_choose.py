"""What choose.kernels answers with: one implementation and one reason per op."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from moesaic.kernels import reference
from moesaic.kernels.api import Kernels
from moesaic.kernels.choose import kernels

OPS = {field.name for field in dataclasses.fields(Kernels)} - {"why"}


@pytest.mark.parametrize("prefer", ["auto", "reference"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_op_has_an_implementation_and_a_reason(device, prefer):
    chosen = kernels(torch.device(device), torch.bfloat16, prefer)
    assert set(chosen.why) == OPS
    assert all(callable(getattr(chosen, op)) and chosen.why[op] for op in OPS)


def test_reference_gives_the_slow_twin_of_every_op():
    chosen = kernels(torch.device("cpu"), torch.float32, "reference")
    assert all(getattr(chosen, op) is getattr(reference, op) for op in OPS)


def test_auto_gives_no_slow_twin():
    chosen = kernels(torch.device("cpu"), torch.float32)
    assert not any(getattr(chosen, op) is getattr(reference, op) for op in OPS)
