"""The trace file is one that a viewer can read: valid JSON, one process per place, one track per lane, no overlap."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from moesaic.core.errors import UserError
from moesaic.core.ops import Compute, Copy, Exchange, Op
from moesaic.core.places import DEVICE, DISK, HOST, Lane, Place, Space
from moesaic.core.timeline import Span
from moesaic.observe.chrome import TraceWriter, process_id, track_id, write_trace

COMPUTE, LOAD, CPU = Lane(DEVICE, "compute"), Lane(DEVICE, "load"), Lane(HOST, "compute")


def timeline(num_layers: int = 4) -> tuple[Span, ...]:
    spans = []
    for layer in range(num_layers):
        start, first = layer * 3e-3 + 1e-7 / 3, 3 * layer
        fetch = Op(f"L{layer}.fetch.e5", LOAD, Copy(HOST, DEVICE, 1e6))
        attn = Op(f"L{layer}.attn", COMPUTE, Compute(2e9, 3e6), after=(first - 1,) if layer else ())
        moe = Op(f"L{layer}.moe.e5", COMPUTE, Compute(1e9, 1e6), after=(first, first + 1), background=layer == 3)
        spans += [
            Span(first, fetch, start, start + 2e-3),
            Span(first + 1, attn, start, start + 1e-3),
            Span(first + 2, moe, start + 2e-3, start + 3e-3),
        ]
    return tuple(spans)


def events(path: Path, phase: str) -> list[dict]:
    data = json.loads(path.read_text())
    return [e for e in data["traceEvents"] if e["ph"] == phase]


def test_every_span_is_one_complete_event_with_its_work(tmp_path: Path) -> None:
    spans = timeline()
    write_trace(tmp_path / "t.json", spans)
    found = events(tmp_path / "t.json", "X")
    assert [e["args"]["index"] for e in found] == [s.index for s in spans]
    fetch, attn, moe = found[-3:]
    assert fetch["name"] == "L3.fetch.e5"
    assert fetch["args"]["bytes"] == 1e6
    assert fetch["args"]["way"] == "host0->dev0"
    assert attn["args"]["flops"] == 2e9
    assert attn["dur"] == pytest.approx(1000, abs=1e-3)
    assert moe["args"]["after"] == [9, 10]
    assert moe["args"]["background"] is True
    assert moe["cat"] == "background"


def test_one_process_per_place_and_one_track_per_lane(tmp_path: Path) -> None:
    lanes = [COMPUTE, LOAD, CPU, Lane(Place(Space.DEVICE, 1), "net"), Lane(DISK, "load")]
    spans = [Span(i, Op(f"op{i}", lane, Exchange((DEVICE,), 8)), i, i + 1) for i, lane in enumerate(lanes)]
    write_trace(tmp_path / "t.json", spans * 2)
    named = events(tmp_path / "t.json", "M")
    processes = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in named if e["name"] == "thread_name"}
    assert processes == {process_id(p): str(p) for p in {lane.place for lane in lanes}}
    assert tracks == {(process_id(lane.place), track_id(lane)): str(lane) for lane in lanes}
    assert sum(e["name"] == "process_name" for e in named) == 4, "names are written once"


def test_spans_of_a_track_do_not_overlap(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline(50))
    tracks: dict[tuple[int, int], list[dict]] = {}
    for event in events(tmp_path / "t.json", "X"):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(tracks) == 2
    for track in tracks.values():
        for before, after in pairwise(sorted(track, key=lambda e: e["ts"])):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6


def test_arrows_join_lanes_and_pair_up(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.json", timeline(2))
    starts, ends = events(tmp_path / "t.json", "s"), events(tmp_path / "t.json", "f")
    assert [e["id"] for e in starts] == [e["id"] for e in ends] == ["0-2", "3-5"], "only fetch -> moe crosses lanes"
    assert all(a["ts"] <= b["ts"] and a["tid"] != b["tid"] for a, b in zip(starts, ends, strict=True))


def test_file_is_valid_after_an_exception(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with TraceWriter(path) as writer:
            writer.append(timeline(1))
            writer.append(timeline(2)[3:])
            raise RuntimeError("a step failed")

    with pytest.raises(RuntimeError):
        fail(tmp_path / "t.json")
    assert len(events(tmp_path / "t.json", "X")) == 6
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_run_without_a_span_leaves_what_was_there(tmp_path: Path) -> None:
    write_trace(tmp_path / "new.json", ())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.json").write_text("mine")
    with TraceWriter(tmp_path / "old.json") as writer:
        pass
    assert (tmp_path / "old.json").read_text() == "mine"
    with TraceWriter(tmp_path / "old.json") as writer:
        writer.append(timeline(1))
        assert (tmp_path / "old.json").read_text() == "mine", "replaced at the close"
    assert len(events(tmp_path / "old.json", "X")) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("")
    (tmp_path / "link.json").symlink_to("real.json")
    write_trace(tmp_path / "link.json", timeline(1))
    assert (tmp_path / "link.json").is_symlink()
    assert len(events(tmp_path / "real.json", "X")) == 3


def test_a_full_disk_is_said_once_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path / "t.json")
    monkeypatch.setattr(writer, "_file", open("/dev/full", "w"))  # noqa: PTH123, SIM115
    with pytest.raises(UserError, match=r"t\.json: No space left on device"):
        writer.append(timeline(400))
    writer.append(timeline(1))
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_the_users_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trace file"):
        TraceWriter(tmp_path / "no" / "such" / "t.json")
    for name in ("x" * 300, "a\0b", "."):
        with pytest.raises(UserError, match="trace file"):
            TraceWriter(tmp_path / name)
    with pytest.raises(UserError, match="/dev/full: No space"):
        write_trace(Path("/dev/full"), timeline(1))
