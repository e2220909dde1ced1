from moesaic.core.ops import Compute, Copy, Op
from moesaic.core.places import DEVICE, HOST, Lane
from moesaic.core.timeline import Span, busy_s, busy_share, copied_bytes, critical_path, drain_s, foreground_end_s

LOAD, COMPUTE = Lane(DEVICE, "load"), Lane(DEVICE, "compute")


def span(index: int, lane: Lane, start_s: float, end_s: float, *after: int, background: bool = False) -> Span:
    work = Copy(HOST, DEVICE, 10.0) if lane == LOAD else Compute()
    return Span(index, Op(f"op{index}", lane, work, after, background), start_s, end_s)


STEP = (
    span(0, COMPUTE, 1.0, 2.0),
    span(1, LOAD, 1.0, 4.0),
    span(2, COMPUTE, 4.0, 5.0, 1),
    span(3, LOAD, 4.0, 9.0, background=True),
)


def test_the_answer_is_ready_before_the_background_drains() -> None:
    assert foreground_end_s(STEP) == 5.0
    assert drain_s(STEP) == 9.0


def test_busy_share_is_over_the_time_from_first_start_to_last_end() -> None:
    assert busy_s(STEP) == {COMPUTE: 2.0, LOAD: 8.0}
    assert busy_share(STEP) == {COMPUTE: 0.25, LOAD: 1.0}


def test_copied_bytes_are_by_path() -> None:
    assert copied_bytes(STEP) == {(HOST, DEVICE): 20.0}


def test_the_critical_path_goes_through_what_was_waited_for() -> None:
    assert [s.index for s in critical_path(STEP)] == [1, 2]


def test_nothing_ran_nothing_is_busy() -> None:
    assert (foreground_end_s(()), drain_s(()), busy_s(()), busy_share(()), critical_path(())) == (0.0, 0.0, {}, {}, ())


def test_spans_of_no_length_share_nothing() -> None:
    assert busy_share((span(0, LOAD, 1.0, 1.0),)) == {LOAD: 0.0}


def test_clocks_that_disagree_do_not_trap_the_critical_path() -> None:
    # op 1 waits for op 0 on its own lane, and its clock says that it started first
    skewed = (span(0, LOAD, 3.0, 4.0), span(1, LOAD, 1.0, 2.0, 0))
    assert [s.index for s in critical_path(skewed)] == [0]
    assert [s.index for s in critical_path((*skewed, span(2, COMPUTE, 5.0, 6.0, 1)))] == [0, 1, 2]
