import pytest

from moesaic.core.routing import ExpertId, imbalance


def test_experts_sort_by_layer_then_number_and_print_greppably() -> None:
    assert sorted([ExpertId(1, 0), ExpertId(0, 9)]) == [ExpertId(0, 9), ExpertId(1, 0)]
    assert str(ExpertId(3, 5)) == "L3.e5"


@pytest.mark.parametrize(
    ("loads", "value"), [([2, 2, 2], 1.0), ([6, 0, 0], 3.0), ([3, 1], 1.5), ([0, 0], 1.0), ([], 1.0)]
)
def test_imbalance_is_largest_over_mean(loads: list[float], value: float) -> None:
    assert imbalance(loads) == value
