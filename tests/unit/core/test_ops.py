import pytest

from moesaic.core.ops import Compute, Copy, Op, Schedule, format_grid, format_schedule, parse_schedule
from moesaic.core.places import DEVICE, HOST, Lane

LOAD, COMPUTE = Lane(DEVICE, "load"), Lane(DEVICE, "compute")
TEXT = """\
7 dev0.load L3.fetch.e5 copy host0->dev0 bytes=352321536
8 dev0.compute L3.expert.e5 compute flops=1.5 bytes=0.1 after=2,7
9 dev0.load L3.fill.e6 copy host0->dev0 bytes=1 after=8 background
10 host0.net L3.combine exchange dev0,dev1 bytes=64
"""


def test_the_text_form_is_what_golden_files_hold() -> None:
    schedule = parse_schedule(TEXT)
    assert schedule.first == 7
    assert schedule.ops[0] == Op("L3.fetch.e5", LOAD, Copy(HOST, DEVICE, 352321536.0))
    assert schedule.ops[1] == Op("L3.expert.e5", COMPUTE, Compute(1.5, 0.1), after=(2, 7))
    assert schedule.ops[2].background
    assert format_schedule(schedule).startswith(TEXT.splitlines()[0])
    assert parse_schedule(format_schedule(schedule)).ops == schedule.ops


def test_no_text_is_an_empty_schedule() -> None:
    assert parse_schedule("\n  \n") == Schedule()
    assert format_schedule(Schedule()) == ""


@pytest.mark.parametrize(
    "line",
    [
        "0 dev0.load a",
        "x dev0.load a compute flops=1 bytes=1",
        "0 dev0.gpu a compute flops=1 bytes=1",
        "0 dev0.load a compute flops=1",
        "0 dev0.load a compute flops=1 bytes=1 backgroud",
        "0 dev0.load a compute flops=1 bytes=1 before=3",
        "0 dev0.load a copy host0 bytes=1",
        "0 dev0.load a copy host0->gpu0 bytes=1",
        "0 dev0.load a copy bytes=1",
        "0 dev0.load a fly bytes=1",
        "0 dev0.load a compute flops=1 bytes=1 after=0",
        "0 dev0.load a compute flops=1 bytes=1 after=-1",
        "0 dev0.load a compute flops=1 bytes=1\n2 dev0.load b compute flops=1 bytes=1",
    ],
)
def test_what_is_no_op_is_refused_by_line(line: str) -> None:
    with pytest.raises(ValueError, match=f"schedule line {1 + line.count(chr(10))} "):
        parse_schedule(line)


def test_an_op_may_wait_for_earlier_ops_of_the_run_only() -> None:
    schedule = Schedule(first=3)
    assert schedule.add(Op("a", LOAD, Compute(), after=(0, 2))) == 3
    with pytest.raises(AssertionError, match="later op"):
        schedule.add(Op("b", LOAD, Compute(), after=(4,)))


def test_the_grid_has_a_column_per_lane() -> None:
    assert format_grid(parse_schedule(TEXT)).splitlines() == [
        "dev0.compute | dev0.load   | host0.net",
        "             | L3.fetch.e5 |",
        "L3.expert.e5 |             |",
        "             | L3.fill.e6~ |",
        "             |             | L3.combine",
    ]
