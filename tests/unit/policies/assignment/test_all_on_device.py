from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import ExpertId
from moesaic.policies.assignment.all_on_device import AllOnDevice
from tests.unit.policies.assignment.costs import Rates

A, B = ExpertId(0, 0), ExpertId(0, 1)
DEMAND = {(DEVICE, A): 2, (DEVICE, B): 1}


def test_with_all_resident_nothing_moves() -> None:
    answer = AllOnDevice().assign(DEMAND, dict.fromkeys((A, B), frozenset({HOST, DEVICE})), Rates())
    assert {share.way for share in answer.shares} == {"resident"}
    assert not answer.moves


def test_before_warm_up_each_absent_expert_is_copied_once() -> None:
    answer = AllOnDevice().assign(DEMAND, {A: frozenset({HOST}), B: frozenset({HOST, DEVICE})}, Rates())
    assert [(move.expert, move.blocking) for move in answer.moves] == [(A, True)]
