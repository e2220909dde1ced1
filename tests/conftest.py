"""Shared by all tests: gpu tests skip, and are counted, where there is no NVIDIA GPU; one thread per test process,
since the models are tiny and tests run side by side."""

from __future__ import annotations

import os

import pytest

from tests.paths import SMALL


def pytest_configure() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch


def pytest_report_header() -> str:
    """What is not here is said once, at the top, instead of once a test."""
    here = (SMALL / "config.json").is_file()
    return "small trained checkpoint: " + ("beside the checkout" if here else "not beside the checkout, its tests skip")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
