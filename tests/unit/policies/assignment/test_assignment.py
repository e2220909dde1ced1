import pytest

from moesaic.core.errors import UserError
from moesaic.policies.assignment import ASSIGNMENT


@pytest.mark.parametrize("name", ASSIGNMENT)
def test_every_policy_is_built_from_an_experts_size(name: str) -> None:
    policy = ASSIGNMENT[name](expert_bytes=1.0, flops_per_token=1.0)
    assert not policy.assign({}, {}, None).shares  # type: ignore[arg-type]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"assignment policy 'fetch'.*fetch_misses"):
        ASSIGNMENT["fetch"]
