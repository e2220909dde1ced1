"""Rates come out consistent on any machine: positive, together at least the best alone, memory given back."""

import gc
from collections.abc import Iterator

import pytest
import torch

from moesaic.bench import rates
from moesaic.bench.rates import RateReport, measure_rates, thread_counts
from moesaic.core.errors import UserError
from moesaic.core.units import MiB
from moesaic.runtime.machine import MemoryFacts


@pytest.fixture(scope="module")
def report() -> Iterator[RateReport]:
    yield measure_rates(torch.device("cpu"), 1 * MiB, host_bytes=64 * MiB)
    gc.collect()


def test_rates_are_positive_and_together_is_no_less_than_alone(report: RateReport) -> None:
    r = report.rates
    assert min(r.device_bytes_s, r.link_bytes_s, r.host_read_bytes_s, r.handoff_s) > 0
    assert r.together_bytes_s >= max(r.host_read_bytes_s, r.link_bytes_s)
    assert r.device_bytes_s == r.host_read_bytes_s, "without a GPU the device is host memory"


def test_the_report_says_what_it_is_not(report: RateReport) -> None:
    assert any("no GPU" in note for note in report.notes)
    assert report.host_bytes == 64 * MiB
    units = {name: quantity.unit for name, quantity in report.quantities().items()}
    assert units["link_to_device"] == "B/s"
    assert units["hand_off"] == "s"
    assert units["host_read_threads"] == "1"


def test_every_byte_is_read_by_the_number_of_threads_asked_for() -> None:
    seen: list[tuple[int, int]] = []

    def read(data: torch.Tensor, num_threads: int) -> None:
        seen.append((data.nbytes, num_threads))
        data.sum()

    measure_rates(torch.device("cpu"), 1 * MiB, read, host_bytes=16 * MiB)
    assert {threads for _, threads in seen} == set(thread_counts(rates._num_cores()))
    assert max(num_bytes for num_bytes, _ in seen) == 16 * MiB


def test_little_free_memory_is_used_in_part_and_said_and_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "memory_facts", lambda: MemoryFacts(1 << 34, 512 * MiB, None, None, None))
    report = measure_rates(torch.device("cpu"), 1 * MiB, host_bytes=1 << 33)
    assert report.host_bytes == 128 * MiB
    assert any("host rates over 128 MiB" in note for note in report.notes)
    monkeypatch.setattr(rates, "memory_facts", lambda: MemoryFacts(1 << 34, 100 * MiB, None, None, None))
    with pytest.raises(UserError, match="of memory are free"):
        measure_rates(torch.device("cpu"), 1 * MiB)


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (16, (1, 2, 4, 8, 10, 12, 14, 16))]
)
def test_thread_counts_are_dense_where_the_best_is(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores) == counts
