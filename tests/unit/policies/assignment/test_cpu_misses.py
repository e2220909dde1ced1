import pytest

from moesaic.core.places import DEVICE, HOST, Place, Space
from moesaic.core.routing import Assignment, ExpertId, Move, Share
from moesaic.policies.assignment.cpu_misses import CpuMisses
from tests.unit.policies.assignment.costs import Rates

A, B, C = (ExpertId(2, e) for e in range(3))
THERE, ABSENT = frozenset({HOST, DEVICE}), frozenset({HOST})
POLICY = CpuMisses(expert_bytes=100.0, flops_per_token=10.0)


def test_one_token_misses_run_on_the_host_and_are_filled_behind_in_order() -> None:
    answer = POLICY.assign(
        {(DEVICE, e): 1 for e in (C, B, A)}, {A: ABSENT, B: THERE, C: ABSENT}, Rates(link_bytes_s=1e9)
    )
    assert answer == Assignment(
        (
            Share(A, DEVICE, HOST, 1, "host"),
            Share(B, DEVICE, DEVICE, 1, "resident"),
            Share(C, DEVICE, HOST, 1, "host"),
        ),
        (Move(A, HOST, DEVICE, blocking=False), Move(C, HOST, DEVICE, blocking=False)),
    )


@pytest.mark.parametrize(("num_tokens", "place"), [(2, HOST), (20, HOST), (21, DEVICE), (500, DEVICE)])
def test_with_several_tokens_the_faster_way_is_taken(num_tokens: int, place: Place) -> None:
    # the host needs max(100 / 4, n * 10 / 4) s, the copy 100 / 2 = 50 s: they meet at 20 tokens
    cost = Rates(host_bytes_s=4.0, host_flops_s=4.0, link_bytes_s=2.0)
    answer = POLICY.assign({(DEVICE, A): num_tokens}, {A: ABSENT}, cost)
    assert [share.place for share in answer.shares] == [place]
    assert [move.blocking for move in answer.moves] == [place == DEVICE]


def test_each_expert_is_decided_alone_by_its_tokens_from_all_sources() -> None:
    other = Place(Space.DEVICE, 1)
    cost = Rates(host_bytes_s=4.0, host_flops_s=4.0, link_bytes_s=2.0)
    answer = POLICY.assign({(DEVICE, A): 11, (other, A): 10, (DEVICE, B): 20}, {A: ABSENT, B: ABSENT}, cost)
    assert [(share.expert, share.way) for share in answer.shares] == [(A, "copied"), (A, "copied"), (B, "host")]
    assert answer.moves == (Move(A, HOST, DEVICE, blocking=True), Move(B, HOST, DEVICE, blocking=False))


def test_the_cost_model_is_asked_about_the_work_that_would_run() -> None:
    cost = Rates()
    POLICY.assign({(DEVICE, B): 3}, {B: ABSENT}, cost)
    assert [str(op.lane) for op in cost.asked] == ["host0.compute", "dev0.load", "dev0.compute"]
    assert [op.work.num_bytes for op in cost.asked] == [100.0, 100.0, 100.0]  # type: ignore[union-attr]
    assert cost.asked[0].work == cost.asked[2].work


def test_the_copied_way_costs_its_compute_on_the_device_as_well():
    # host 20 * 10 / 4 = 50 s; copy 100 / 4 = 25 s, then 100 / 3 = 33 s on a slow device: together more than the host
    cost = Rates(host_bytes_s=4.0, host_flops_s=4.0, link_bytes_s=4.0, device_bytes_s=3.0)
    answer = POLICY.assign({(DEVICE, A): 20}, {A: ABSENT}, cost)
    assert [share.place for share in answer.shares] == [HOST]
