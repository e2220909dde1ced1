"""Peaks see what was held and given back meanwhile, relative to the baseline."""

import numpy as np
import pytest
import torch

from moesaic.bench.peaks import Baseline, host_rss_bytes, take_baseline, watch
from moesaic.core.units import MiB

CPU = torch.device("cpu")


def test_memory_that_came_and_went_is_in_the_peak() -> None:
    baseline = take_baseline(CPU)
    with watch(CPU, baseline) as peaks:
        block = np.ones(64 * MiB, dtype=np.uint8)
        del block
    assert peaks.host_bytes is not None
    assert 60 * MiB < peaks.host_bytes < 400 * MiB
    assert peaks.device_driver_bytes is None
    assert peaks.energy_j is None


def test_the_baseline_is_subtracted_and_never_below_zero() -> None:
    with watch(CPU, Baseline(0, host_rss_bytes() + (1 << 40))) as peaks:
        pass
    assert peaks.host_bytes == 0


def test_peaks_are_filled_when_the_body_fails() -> None:
    with pytest.raises(RuntimeError), watch(CPU, take_baseline(CPU)) as peaks:
        raise RuntimeError
    assert peaks.host_bytes is not None
