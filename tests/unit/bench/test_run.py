"""A workload runs whole: each mode and budget gives a record whose numbers agree with each other."""

import dataclasses
import json
from pathlib import Path

import pytest

from moesaic.bench import run as bench_run
from moesaic.bench import source
from moesaic.bench.rates import RateReport
from moesaic.bench.run import BenchOptions, plain_plan, run_workload
from moesaic.bench.workloads import DecodeWorkload, RandomModel, TrainedModel
from moesaic.core.errors import UserError
from moesaic.core.units import MiB
from moesaic.observe.record import RunRecord
from moesaic.sim.bounds import MeasuredRates
from moesaic.sim.routing_trace import generate

SMALL = DecodeWorkload("decode/x", "a test", TrainedModel(), expert_shares=(0.3, 1.0), prompt_tokens=24, new_tokens=6)
MODES = ("fetch_misses", "cpu_misses")


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes seconds and has tests of its own."""
    report = RateReport(MeasuredRates(8e9, 4e9, 8e9, 9e9, 2e-6), 2, 2, 64 * MiB, ("rates are made up",))
    monkeypatch.setattr(bench_run, "measure_rates", lambda device, block_bytes: report)


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """The embedded model and two domains of text, whatever lies beside the checkout."""
    text = tmp_path / "text.json"
    text.write_text(json.dumps({"code": ["def read(path):\n    return 1\n" * 8], "docs": ["The file is opened. " * 8]}))
    return {"model": bench_run.PACKAGE / "models" / "data" / "tiny", "text": text}


def run(workload: DecodeWorkload, said: list[str] | None = None, **options: object) -> tuple[RunRecord, ...]:
    say = said.append if said is not None else lambda line: None
    return run_workload(workload, BenchOptions(runs=1, device="cpu", **options), ("moesaic", "bench"), say)


def test_every_mode_and_budget_gives_a_record_that_adds_up(own: dict[str, Path]) -> None:
    records = run(SMALL, modes=MODES, **own)
    assert [r.mode for r in records] == [f"{mode} {share}" for share in ("30%", "100%") for mode in MODES]
    for record in records:
        numbers = {name: q.value for name, q in record.numbers.items()}
        # every decoded token asks six layers for two experts, once per prompt
        assert numbers["decode_hits"] + numbers["decode_misses"] == 5 * 6 * 2 * numbers["samples"]
        assert numbers["bound_reached"] == pytest.approx(numbers["decode"] / numbers["bound"])
        assert numbers["samples"] == 2
        assert {"decode_hit_rate_code", "decode_hit_rate_docs"} <= numbers.keys()
        assert numbers["bound_hit_rate"] >= numbers["decode_hit_rate"]
        assert "peak_host" in numbers
        assert numbers["machine_link_to_device"] == 4e9
        assert record.plan["model"] == "tiny"
        assert record.plan["device_expert_slots"] in (14, 48)
        assert "rates are made up" in record.notes
        assert RunRecord.from_json(record.to_json()) == record
    fetched, computed = records[0].numbers, records[1].numbers
    assert fetched["decode_host_read"].value == 0 < computed["decode_host_read"].value
    expert_bytes = records[0].plan["device_expert_bytes"]
    assert fetched["decode_h2d"].value == pytest.approx(fetched["decode_misses"].value * expert_bytes, rel=0.05)


def test_a_forced_trace_decides_the_hits_and_is_named(tmp_path: Path, own: dict[str, Path]) -> None:
    trace = tmp_path / "same.jsonl"
    generate(6, 8, 2, 1, seed=0).save(trace)  # one token: the same experts for ever
    (record,) = run(dataclasses.replace(SMALL, expert_shares=(0.3,)), modes=("fetch_misses",), **own, routing=trace)
    assert record.numbers["decode_hit_rate"].value == record.numbers["bound_hit_rate"].value == 1.0
    assert any("forced from" in note and "same.jsonl" in note for note in record.notes)


def test_a_random_model_is_made_for_the_run_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(source, "choose_place", lambda sizes, room: "dummy")
    workload = DecodeWorkload(
        "decode/y", "a test", RandomModel("qwen3-tiny"), device_bytes=128 * MiB, prompt_tokens=24, new_tokens=4
    )
    said: list[str] = []
    (record,) = run(workload, said, modes=("cpu_misses",))
    assert record.mode == "cpu_misses"
    assert record.plan["device_budget_bytes"] == 128 * MiB
    assert 0 < record.numbers["peak_device_counted"].value <= 128 * MiB
    assert record.plan["load_format"] == "dummy"
    assert record.plan["model"] == "random weights, preset qwen3-tiny, seed 0"
    assert "text: random tokens, seed 0" in record.notes
    assert any("dummy load" in note for note in said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"modes": ("magic",)}, "magic"),
        ({"routing": Path("none.jsonl")}, "none.jsonl"),
        ({"text": Path("none.json")}, "none.json"),
        ({"model": Path("none")}, "none: neither a directory here"),
        ({"model": Path("/none")}, "/none': no such directory"),
    ],
)
def test_bad_input_is_refused_by_name_before_anything_is_loaded(options: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        run(SMALL, **options)


def test_the_plan_is_plain_values_and_names_the_model_by_its_label() -> None:
    from moesaic.cost.budget import DeviceBudget
    from moesaic.memory.pages import PageLayout
    from moesaic.runtime.decide import EffectivePlan

    budget = DeviceBudget(None, 0, 1, 2, 3, 4, 5, 6, 7)
    layout = PageLayout.cut(64, 64, 4)
    plan = EffectivePlan("/tmp/abc", "cpu", "float32", "cpu_misses", "lru", "auto", budget, 9, layout, ("a note",))
    values = plain_plan(plan, "tiny", "auto")
    assert values["model"] == "tiny"
    assert values["device_expert_slots"] == 7
    assert "notes" not in values
    assert all(value is None or isinstance(value, (str, int, float)) for value in values.values())
