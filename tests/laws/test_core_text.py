"""Law 10: text forms and JSON round-trip; and the figures read from a Timeline agree with each other."""

import contextlib
import string
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.errors import UserError
from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec
from moesaic.core.ops import Compute, Copy, Exchange, Op, Schedule, format_grid, format_schedule, parse_schedule
from moesaic.core.places import HardwareProfile, Lane, LinkSpec, Place, Space, TierSpec
from moesaic.core.plan import Estimate, Pipeline, Placement, Plan, Workload
from moesaic.core.timeline import Span, busy_s, busy_share, copied_bytes, critical_path, drain_s, foreground_end_s
from moesaic.core.units import format_bytes, parse_bytes

SHORT = settings(max_examples=60, deadline=None)
DEEP = settings(max_examples=2000, deadline=None)

places = st.builds(Place, st.sampled_from(Space), st.integers(0, 99))
lanes = st.builds(Lane, places, st.sampled_from(["compute", "load", "store", "net"]))
amounts = st.floats(0, 1e18)
works = st.one_of(
    st.builds(Compute, amounts, amounts),
    st.builds(Copy, places, places, amounts),
    st.builds(Exchange, st.lists(places, min_size=1, max_size=4).map(tuple), amounts),
)
names = st.text(string.ascii_letters + string.digits + "._", min_size=1, max_size=12)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    schedule = Schedule(first=draw(st.integers(0, 1000)))
    for _ in range(draw(st.integers(1, 10))):
        earlier = st.integers(0, schedule.first + len(schedule.ops) - 1)
        after = draw(st.lists(earlier, max_size=3)) if schedule.first + len(schedule.ops) else []
        schedule.add(Op(draw(names), draw(lanes), draw(works), tuple(after), draw(st.booleans())))
    return schedule


tiers = st.builds(TierSpec, st.integers(0, 1 << 50), amounts, amounts, amounts)
links = st.builds(LinkSpec, amounts, amounts)
free_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
profiles = st.builds(
    HardwareProfile,
    free_text,
    st.dictionaries(places, tiers, min_size=1, max_size=4),
    st.dictionaries(st.tuples(places, places), links, max_size=4),
    free_text,
)
counts = st.integers(0, 1 << 20)
shares = st.dictionaries(places, st.floats(0, 1), max_size=3)
attentions = st.builds(
    AttentionSpec, counts, counts, counts, amounts, st.sampled_from(["none", "head", "full"]), st.booleans(),
    st.one_of(st.none(), counts), st.one_of(st.none(), amounts),
)  # fmt: skip
models = st.builds(
    ModelSpec, names, counts, counts, attentions,
    st.lists(st.one_of(counts, st.builds(MoESpec, counts, counts, counts, names)), max_size=4).map(tuple),
    amounts, counts, st.booleans(), names,
)  # fmt: skip
plans = st.builds(
    Plan,
    models,
    profiles,
    st.builds(
        Workload, counts, counts, counts, st.sampled_from(["throughput", "latency", "goodput"]),
        st.one_of(st.none(), amounts), st.one_of(st.none(), amounts),
    ),
    st.builds(Placement, shares, shares),
    st.builds(Pipeline, names, names, counts, counts, places, places, names, names, names, counts, counts, counts),
    st.builds(Estimate, amounts, amounts, lanes, st.dictionaries(places, counts, max_size=3)),
)  # fmt: skip


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Span, ...]:
    """What an executor leaves: each lane in order, each op after its `after`. The run starts at 0."""
    lane_end: dict[Lane, float] = {}
    spans: list[Span] = []
    used = draw(st.lists(lanes, min_size=1, max_size=3))
    for index in range(draw(st.integers(1, 10))):
        after = tuple(draw(st.lists(st.integers(0, index - 1), max_size=2))) if index else ()
        lane = draw(st.sampled_from(used))
        ready = max([lane_end.get(lane, 0.0), *(spans[i].end_s for i in after)])
        start = ready + draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
        end = start + draw(st.sampled_from([0.0, 1.0, 3.0]))
        lane_end[lane] = end
        op = Op(f"op{index}", lane, draw(works), after, draw(st.booleans()))
        spans.append(Span(index, op, start, end))
    return tuple(spans)


@SHORT
@given(schedules())
def test_schedules_round_trip(schedule: Schedule) -> None:
    again = parse_schedule(format_schedule(schedule))
    assert (again.first, again.ops) == (schedule.first, schedule.ops)


@SHORT
@given(schedules())
def test_the_grid_has_each_op_once_in_order(schedule: Schedule) -> None:
    head, *rows = format_grid(schedule).splitlines()
    titles = [title.strip() for title in head.split("|")]
    for op, row in zip(schedule.ops, rows, strict=True):
        cells = [cell.strip() for cell in row.split("|")]
        assert cells.count("") == len(cells) - 1
        assert cells[titles.index(str(op.lane))] == op.name + "~" * op.background


@SHORT
@given(profiles)
def test_hardware_profiles_round_trip(profile: HardwareProfile) -> None:
    assert HardwareProfile.from_toml(profile.to_toml()) == profile


@SHORT
@given(plans)
def test_plans_round_trip(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@SHORT
@given(plans, st.data())
def test_a_damaged_plan_is_the_users_fault_or_another_plan(plan: Plan, data: st.DataObject) -> None:
    text = plan.to_json()
    start = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:start] + text[start + data.draw(st.integers(1, 40)) :]
    with contextlib.suppress(UserError):  # any other error fails the test
        Plan.from_json(damaged)


@SHORT
@given(lanes)
def test_lanes_and_places_round_trip(lane: Lane) -> None:
    assert Lane.parse(str(lane)) == lane
    assert Place.parse(str(lane.place)) == lane.place


@SHORT
@given(timelines())
def test_timeline_figures_agree(timeline: tuple[Span, ...]) -> None:
    assert 0 <= foreground_end_s(timeline) <= drain_s(timeline) == max(span.end_s for span in timeline)
    assert sum(busy_s(timeline).values()) == pytest.approx(sum(span.end_s - span.start_s for span in timeline))
    assert all(0 <= share <= 1 + 1e-9 for share in busy_share(timeline).values())
    moved = sum(span.op.work.num_bytes for span in timeline if isinstance(span.op.work, Copy))
    assert sum(copied_bytes(timeline).values()) == pytest.approx(moved)


@SHORT
@given(timelines())
def test_the_critical_path_is_a_chain_to_the_foreground_end(timeline: tuple[Span, ...]) -> None:
    path = critical_path(timeline)
    if all(span.op.background for span in timeline):
        assert path == ()
        return
    assert path[-1].end_s == foreground_end_s(timeline)
    for before, span in pairwise(path):
        assert before.index in span.op.after or before.op.lane == span.op.lane
        assert before.end_s <= span.start_s
        same_lane = [s.end_s for s in timeline if s.op.lane == span.op.lane and s.index < span.index]
        waited_for = [s.end_s for s in timeline if s.index in span.op.after]
        assert before.end_s == max(same_lane + waited_for)
    assert not path[0].op.after
    assert all(s.index >= path[0].index for s in timeline if s.op.lane == path[0].op.lane)


@SHORT
@given(st.integers(0, 1 << 52))
def test_a_printed_size_reads_back_within_its_three_digits(num_bytes: int) -> None:
    text = format_bytes(num_bytes)
    assert "e" not in text.lower().removesuffix("b")
    assert parse_bytes(text) == pytest.approx(num_bytes, rel=0.0051, abs=0.5)


@pytest.mark.long
@DEEP
@given(schedules())
def test_schedules_round_trip_deep(schedule: Schedule) -> None:
    again = parse_schedule(format_schedule(schedule))
    assert (again.first, again.ops) == (schedule.first, schedule.ops)


@pytest.mark.long
@DEEP
@given(profiles, plans)
def test_profiles_and_plans_round_trip_deep(profile: HardwareProfile, plan: Plan) -> None:
    assert HardwareProfile.from_toml(profile.to_toml()) == profile
    assert Plan.from_json(plan.to_json()) == plan
