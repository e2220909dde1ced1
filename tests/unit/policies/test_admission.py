import pytest

from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import ExpertId, Move
from moesaic.policies.admission import ADMISSION

FILL = Move(ExpertId(0, 0), HOST, DEVICE, blocking=False)


@pytest.mark.parametrize("in_flight_bytes", [0, 1 << 40])
def test_always_admits(in_flight_bytes: int) -> None:
    assert ADMISSION["always"](0).admit(FILL, in_flight_bytes)


@pytest.mark.parametrize(("in_flight_bytes", "admitted"), [(0, True), (99, True), (100, False), (101, False)])
def test_limit_admits_below_its_bytes_in_flight(in_flight_bytes: int, admitted: bool) -> None:
    assert ADMISSION["limit"](100).admit(FILL, in_flight_bytes) is admitted


def test_a_limit_of_zero_admits_nothing() -> None:
    assert not ADMISSION["limit"](0).admit(FILL, 0)
