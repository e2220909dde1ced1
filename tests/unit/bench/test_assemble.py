"""Records are computed from samples by plain formulas: rates over all tokens, ratios against bound and link."""

import pytest

from moesaic.bench.assemble import (
    BoundInputs,
    DecodeRun,
    Provenance,
    peak_bytes,
    quantile,
    record_of,
    speed,
    traffic,
    yardsticks,
)
from moesaic.bench.measure import Counters, Sample
from moesaic.bench.peaks import Peaks
from moesaic.bench.prompts import Prompt
from moesaic.bench.workloads import WORKLOADS
from moesaic.observe.record import Quantity, RunRecord

PREFILL = Counters(8, 8, 8, 4, 0, {"h2d": 800}, {"dev0.load": 0.5})
FAST = Sample(
    Prompt("code", (1,) * 100), (0.5, 0.6, 0.8), PREFILL, Counters(3, 1, 1, 1, 0, {"h2d": 60}, {"dev0.load": 0.15})
)
SLOW = Sample(
    Prompt("prose", (1,) * 100), (1.5, 1.6, 2.2), PREFILL, Counters(1, 3, 3, 3, 1, {"h2d": 140}, {"dev0.load": 0.35})
)
BOUND = BoundInputs(step_s=0.05, hit_rate=0.75, link_bytes_s=400.0)


def test_rates_are_tokens_over_seconds_of_all_samples() -> None:
    numbers = speed((FAST, SLOW))
    assert numbers["decode"].value == pytest.approx(4 / 1.0)
    assert numbers["decode_slowest"].value == pytest.approx(2 / 0.7)
    assert numbers["decode_fastest"].value == pytest.approx(2 / 0.3)
    assert numbers["prefill"].value == pytest.approx(200 / 2.0)
    assert numbers["time_to_first_token"].value == 0.5
    assert numbers["inter_token_p50"].value == pytest.approx(0.1)
    assert numbers["inter_token_p99"].value == pytest.approx(0.6)
    assert {q.unit for q in numbers.values()} == {"tok/s", "s", "1"}


def test_the_ratio_is_speed_over_bound_and_the_link_is_bytes_over_decode_time() -> None:
    numbers = yardsticks((FAST, SLOW), BOUND)
    assert numbers["bound"].value == pytest.approx(20)
    assert numbers["bound_reached"].value == pytest.approx(4 / 20)
    assert numbers["link_in_decode"] == Quantity(pytest.approx(200), "B/s")
    assert numbers["link_reached"].value == pytest.approx(0.5)


def test_traffic_is_summed_and_lanes_are_shares_of_decoding() -> None:
    numbers = traffic((FAST, SLOW))
    assert numbers["decode_hit_rate"].value == 0.5
    assert numbers["prefill_hit_rate"].value == 0.5
    assert numbers["decode_misses"].value == 4
    assert numbers["decode_dropped"].value == 1
    assert numbers["decode_h2d"] == Quantity(200, "B")
    assert numbers["prefill_h2d"] == Quantity(1600, "B")
    assert numbers["busy_dev0.load"].value == pytest.approx(0.5)
    assert numbers["decode_hit_rate_code"].value == 0.75
    assert numbers["decode_hit_rate_prose"].value == 0.25
    assert "decode_hit_rate_code" not in traffic((FAST,)), "one domain needs no row of its own"


def test_peaks_are_the_highest_and_what_is_not_told_is_left_out() -> None:
    numbers = peak_bytes((Peaks(host_bytes=5, device_allocated_bytes=7), Peaks(host_bytes=9, energy_j=3.0)))
    assert numbers == {
        "peak_device_allocated": Quantity(7, "B"),
        "peak_host": Quantity(9, "B"),
        "energy_with_warm_up": Quantity(3.0, "J"),
    }


def test_nearest_rank_quantiles() -> None:
    values = list(range(1, 101))
    assert [quantile(values, q) for q in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    assert quantile([4.0], 0.99) == 4.0


@pytest.mark.parametrize(("name", "mode"), [("decode/small", "cpu_misses 40%"), ("decode/mixtral-8l", "cpu_misses")])
def test_a_record_is_whole_and_round_trips(name: str, mode: str) -> None:
    workload = WORKLOADS[name]
    budget = workload.budgets()[len(workload.budgets()) // 2]
    run = DecodeRun("cpu_misses", budget, (FAST, SLOW), (Peaks(host_bytes=1),), BOUND, {"slots": 13}, ("note",))
    provenance = Provenance(
        "2026-01-02T03:04:05+00:00", ("moesaic",), "0.1.0", "", {}, {}, {"link": Quantity(1.0, "B/s")}
    )
    record = record_of(workload, run, provenance)
    assert record.mode == mode
    assert record.workload == name
    assert record.numbers["machine_link"].value == 1.0
    assert {"decode", "bound", "bound_reached", "decode_h2d", "peak_host"} <= record.numbers.keys()
    assert RunRecord.from_json(record.to_json()) == record
