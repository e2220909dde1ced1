from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import Assignment, ExpertId, Share
from moesaic.policies.assignment.cpu_only import CpuOnly
from tests.unit.policies.assignment.costs import Rates

A, B = ExpertId(0, 0), ExpertId(0, 1)


def test_all_tokens_run_on_the_host_and_nothing_moves() -> None:
    answer = CpuOnly().assign({(DEVICE, B): 4, (DEVICE, A): 1}, dict.fromkeys((A, B), frozenset({HOST})), Rates())
    assert answer == Assignment((Share(A, DEVICE, HOST, 1, "host"), Share(B, DEVICE, HOST, 4, "host")))
