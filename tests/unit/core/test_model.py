import pytest

from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec
from moesaic.core.routing import ExpertId

MOE = MoESpec(num_experts=2, top_k=1, intermediate=8, router="softmax_topk")
SPEC = ModelSpec("olmoe", 16, 10, AttentionSpec(2, 2, 8, 1e4), (32, MOE, 32, MOE), 1e-5, 128, True)


def test_only_sparse_layers_have_experts() -> None:
    assert SPEC.moe_layers == (1, 3)
    assert SPEC.num_experts == 4
    assert SPEC.experts() == (ExpertId(1, 0), ExpertId(1, 1), ExpertId(3, 0), ExpertId(3, 1))


def test_a_dense_layer_has_no_sparse_spec() -> None:
    assert SPEC.moe(1) is MOE
    with pytest.raises(AssertionError, match="layer 0 is dense"):
        SPEC.moe(0)
