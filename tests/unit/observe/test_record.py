"""A record round-trips, and a line that is not exactly a record is refused by name."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.core.errors import UserError
from moesaic.observe.record import Quantity, RunRecord, append_record, check_appendable, read_records

RECORD = RunRecord(
    workload="decode/small",
    mode="cpu_misses",
    started="2026-01-02T03:04:05+00:00",
    command=("moesaic", "bench", "decode/small"),
    version="0.1.0",
    commit="1234abc+changes",
    machine={"cpu": "some cpu", "cores": 2, "gpu": None},
    versions={"python": "3.11.2", "torch": "2.13.0"},
    plan={"assignment": "cpu_misses", "expert_slots": 13, "eviction": "lru"},
    numbers={"decode": Quantity(19.5, "tok/s"), "moved_h2d": Quantity(1 << 30, "B")},
    notes=("no GPU: the device is a bounded pool",),
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@given(
    numbers=st.dictionaries(NAMES, st.tuples(st.floats(allow_nan=False, allow_infinity=False), NAMES)),
    plan=st.dictionaries(NAMES, st.none() | st.booleans() | st.integers() | NAMES),
    notes=st.lists(NAMES).map(tuple),
)
def test_json_is_one_line_and_round_trips(numbers, plan, notes) -> None:
    quantities = {k: Quantity(*v) for k, v in numbers.items()}
    record = dataclasses.replace(RECORD, numbers=quantities, plan=plan, notes=notes)
    text = record.to_json()
    assert "\n" not in text
    assert RunRecord.from_json(text) == record


def test_writing_appends_and_reading_keeps_order(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("\n")
    for mode in ("a", "b"):
        append_record(path, dataclasses.replace(RECORD, mode=mode))
    assert [r.mode for r in read_records(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.pop("plan"), "missing key 'plan'"),
        (lambda d: d.update(speed=1), "unknown key 'speed'"),
        (lambda d: d.update(schema=2), "schema is 2"),
        (lambda d: d.update(mode=3), "mode is not a string"),
        (lambda d: d.update(command="moesaic bench"), "command is not a list"),
        (lambda d: d.update(machine=[]), "machine is not an object"),
        (lambda d: d["plan"].update(slots=[1]), "plan.slots is not a plain value"),
        (lambda d: d["versions"].update(torch=2), "versions.torch is not a string"),
        (lambda d: d["numbers"].update(x=3), "numbers.x is not an object"),
        (lambda d: d["numbers"].update(x={"value": True, "unit": "s"}), "numbers.x.value is not a number"),
        (lambda d: d["numbers"].update(x={"value": float("nan"), "unit": "s"}), "numbers.x.value is not finite"),
        (lambda d: d["numbers"].update(x={"value": 1, "unit": ""}), "numbers.x.unit is not a unit"),
    ],
)
def test_schema_is_strict_and_the_error_names_the_place(tmp_path: Path, change, named: str) -> None:
    data = json.loads(RECORD.to_json())
    change(data)
    path = tmp_path / "r.jsonl"
    path.write_text(RECORD.to_json() + "\n" + json.dumps(data) + "\n")
    with pytest.raises(UserError) as error:
        list(read_records(path))
    assert named in str(error.value)
    assert "r.jsonl line 2" in str(error.value)


def test_a_broken_line_and_a_missing_file_are_user_errors(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"workload": "x"')
    with pytest.raises(UserError, match="line 1: no JSON"):
        list(read_records(tmp_path / "r.jsonl"))
    with pytest.raises(UserError, match=r"none\.jsonl"):
        list(read_records(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="record file"):
        append_record(tmp_path / "no" / "r.jsonl", RECORD)


def test_a_file_is_checked_before_a_run_without_changing_it(tmp_path: Path) -> None:
    append_record(tmp_path / "r.jsonl", RECORD)
    check_appendable(tmp_path / "r.jsonl")
    assert list(read_records(tmp_path / "r.jsonl")) == [RECORD]
    with pytest.raises(UserError, match="record file"):
        check_appendable(tmp_path / "no" / "r.jsonl")
