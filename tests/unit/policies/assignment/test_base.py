from moesaic.core.places import DEVICE, HOST, Place, Space
from moesaic.core.routing import Assignment, ExpertId, Move, Share
from moesaic.policies.assignment.base import by_expert, on_device

A, B = ExpertId(0, 2), ExpertId(0, 10)
OTHER = Place(Space.DEVICE, 1)
THERE, ABSENT = frozenset({HOST, DEVICE}), frozenset({HOST})


def test_demand_is_grouped_by_ascending_id_and_empty_entries_left_out() -> None:
    grouped = by_expert({(DEVICE, B): 1, (OTHER, A): 2, (DEVICE, A): 3, (DEVICE, ExpertId(0, 4)): 0})
    assert list(grouped) == [A, B]
    assert [(share.source, share.num_tokens) for share in grouped[A]] == [(DEVICE, 3), (OTHER, 2)]


def test_what_is_missing_moves_once_and_its_tokens_wait() -> None:
    answer = on_device({(DEVICE, A): 3, (OTHER, A): 2, (DEVICE, B): 1}, {A: ABSENT, B: THERE})
    assert answer == Assignment(
        (
            Share(A, DEVICE, DEVICE, 3, "copied"),
            Share(A, OTHER, DEVICE, 2, "copied"),
            Share(B, DEVICE, DEVICE, 1, "resident"),
        ),
        (Move(A, HOST, DEVICE, blocking=True),),
    )
