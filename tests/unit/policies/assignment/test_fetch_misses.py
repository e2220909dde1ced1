from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import Assignment, ExpertId, Move, Share
from moesaic.policies.assignment.fetch_misses import FetchMisses
from tests.unit.policies.assignment.costs import Rates

A, B = ExpertId(1, 0), ExpertId(1, 3)


def test_a_miss_is_copied_and_a_hit_stays_and_no_cost_is_asked() -> None:
    cost = Rates()
    answer = FetchMisses().assign(
        {(DEVICE, B): 1, (DEVICE, A): 1}, {A: frozenset({HOST, DEVICE}), B: frozenset({HOST})}, cost
    )
    assert answer == Assignment(
        (Share(A, DEVICE, DEVICE, 1, "resident"), Share(B, DEVICE, DEVICE, 1, "copied")),
        (Move(B, HOST, DEVICE, blocking=True),),
    )
    assert not cost.asked
