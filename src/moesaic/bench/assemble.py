"""Measured samples to numbers with units, and numbers to a RunRecord. Pure: what was measured is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from moesaic.bench.measure import Counters, Sample
from moesaic.bench.peaks import Peaks
from moesaic.bench.workloads import Budget, DecodeWorkload
from moesaic.observe.record import Quantity, RunRecord, Value


@dataclass(frozen=True, slots=True)
class Provenance:
    """What all records of one call share."""

    started: str
    command: tuple[str, ...]
    version: str
    commit: str
    machine: Mapping[str, Value]
    versions: Mapping[str, str]
    rates: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """What the bound was computed from: seconds of a decode step, experts found by the clairvoyant policy."""

    step_s: float
    hit_rate: float
    link_bytes_s: float


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """All samples of one mode under one budget, over every round."""

    mode: str
    budget: Budget
    samples: tuple[Sample, ...]
    peaks: tuple[Peaks, ...]
    bound: BoundInputs
    plan: Mapping[str, Value]
    notes: tuple[str, ...] = ()


def record_of(workload: DecodeWorkload, run: DecodeRun, provenance: Provenance) -> RunRecord:
    return RunRecord(
        workload=workload.name,
        mode=run.mode if workload.device_bytes is not None else f"{run.mode} {run.budget.expert_memory}",
        started=provenance.started,
        command=provenance.command,
        version=provenance.version,
        commit=provenance.commit,
        machine=provenance.machine,
        versions=provenance.versions,
        plan=run.plan,
        numbers={
            **speed(run.samples),
            **yardsticks(run.samples, run.bound),
            **traffic(run.samples),
            **peak_bytes(run.peaks),
            **{f"machine_{name}": quantity for name, quantity in provenance.rates.items()},
        },
        notes=run.notes,
    )


def speed(samples: Sequence[Sample]) -> dict[str, Quantity]:
    """Tokens a second over all samples together, their spread, and the waiting times of a reader."""
    rates = [s.num_decoded / s.decode_s for s in samples]
    gaps = [gap for s in samples for gap in s.itl_s]
    numbers = {
        "decode": Quantity(decode_rate(samples), "tok/s"),
        "decode_slowest": Quantity(min(rates), "tok/s"),
        "decode_fastest": Quantity(max(rates), "tok/s"),
        "prefill": Quantity(sum(len(s.prompt.token_ids) for s in samples) / sum(s.ttft_s for s in samples), "tok/s"),
        "time_to_first_token": Quantity(quantile([s.ttft_s for s in samples], 0.5), "s"),
        "inter_token_p50": Quantity(quantile(gaps, 0.5), "s"),
        "inter_token_p99": Quantity(quantile(gaps, 0.99), "s"),
        "samples": Quantity(len(samples), "1"),
    }
    return numbers


def yardsticks(samples: Sequence[Sample], bound: BoundInputs) -> dict[str, Quantity]:
    """The bound, how much of it was reached, and how much of the link decoding kept busy."""
    decode_s = sum(s.decode_s for s in samples)
    link = total(s.decode for s in samples).bytes_by_path.get("h2d", 0) / decode_s
    return {
        "bound": Quantity(1.0 / bound.step_s, "tok/s"),
        "bound_reached": Quantity(decode_rate(samples) * bound.step_s, "share"),
        "bound_hit_rate": Quantity(bound.hit_rate, "share"),
        "link_in_decode": Quantity(link, "B/s"),
        "link_reached": Quantity(link / bound.link_bytes_s, "share"),
    }


def traffic(samples: Sequence[Sample]) -> dict[str, Quantity]:
    """Counters of prefill and decode apart, summed over samples, and each lane's busy share of decoding."""
    numbers: dict[str, Quantity] = {}
    for phase, counters in (
        ("decode", total(s.decode for s in samples)),
        ("prefill", total(s.prefill for s in samples)),
    ):
        wanted = counters.hits + counters.misses
        if wanted:
            numbers[f"{phase}_hit_rate"] = Quantity(counters.hits / wanted, "share")
        for name in ("hits", "misses", "fills", "evictions", "dropped"):
            numbers[f"{phase}_{name}"] = Quantity(getattr(counters, name), "1")
        for path, num_bytes in sorted(counters.bytes_by_path.items()):
            numbers[f"{phase}_{path}"] = Quantity(num_bytes, "B")
    decode_s = sum(s.decode_s for s in samples)
    for lane, busy_s in sorted(total(s.decode for s in samples).lane_busy_s.items()):
        numbers[f"busy_{lane}"] = Quantity(busy_s / decode_s, "share")
    return {**numbers, **_by_domain(samples)}


def peak_bytes(peaks: Sequence[Peaks]) -> dict[str, Quantity]:
    """The highest of all rounds; what the machine does not tell is left out. Energy is per round."""
    numbers: dict[str, Quantity] = {}
    for name in (
        "device_counted_bytes",
        "device_allocated_bytes",
        "device_reserved_bytes",
        "device_driver_bytes",
        "host_bytes",
    ):
        seen = [value for p in peaks if (value := getattr(p, name)) is not None]
        if seen:
            numbers[f"peak_{name.removesuffix('_bytes')}"] = Quantity(max(seen), "B")
    energy = [p.energy_j for p in peaks if p.energy_j is not None]
    if energy:
        numbers["energy_with_warm_up"] = Quantity(sum(energy) / len(energy), "J")
    return numbers


def decode_rate(samples: Sequence[Sample]) -> float:
    return sum(s.num_decoded for s in samples) / sum(s.decode_s for s in samples)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def total(counters: Iterable[Counters]) -> Counters:
    return reduce(add, counters)


def _by_domain(samples: Sequence[Sample]) -> dict[str, Quantity]:
    domains = dict.fromkeys(s.prompt.domain for s in samples)
    if len(domains) < 2:
        return {}
    numbers = {}
    for domain in domains:
        counters = total(s.decode for s in samples if s.prompt.domain == domain)
        numbers[f"decode_hit_rate_{domain}"] = Quantity(
            counters.hits / max(1, counters.hits + counters.misses), "share"
        )
    return numbers
