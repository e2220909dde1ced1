"""Qwen3-MoE: norms per head, dense layers by list and step, a window only where it is switched on."""

import pytest

from moesaic.core.errors import UserError
from moesaic.core.model import MoESpec
from moesaic.specs import read_spec, tensor_specs
from tests.checkpoints import QWEN3

PUBLISHED = QWEN3 | {
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "vocab_size": 151936, "mlp_only_layers": [],
}  # fmt: skip


def test_the_published_geometry_has_the_published_size():
    total = 0
    for tensor in tensor_specs(read_spec(PUBLISHED)):
        size = 1
        for n in tensor.shape:
            size *= n
        total += size
    assert total == 30_532_122_624


@pytest.mark.parametrize(
    ("dense", "step", "sparse_layers"),
    [
        ([], 1, [0, 1, 2, 3]),
        ([1], 1, [0, 2, 3]),
        ([], 2, [1, 3]),
        ([3], 2, [1]),
        (None, 3, [2]),
        ([1, 1], 1, [0, 2, 3]),
    ],
)
def test_dense_layers_follow_list_and_step(dense, step, sparse_layers):
    spec = read_spec(QWEN3 | {"num_hidden_layers": 4, "mlp_only_layers": dense, "decoder_sparse_step": step})
    assert list(spec.moe_layers) == sparse_layers
    assert all(layer == 80 for layer in spec.layers if not isinstance(layer, MoESpec))


@pytest.mark.parametrize("dense", ["1", [9], [-1], [True], [1.0], {}, 1])
def test_a_wrong_list_of_dense_layers_is_named(dense):
    with pytest.raises(UserError, match="mlp_only_layers"):
        read_spec(QWEN3 | {"mlp_only_layers": dense})


def test_a_model_without_sparse_layers_is_refused():
    with pytest.raises(UserError, match="decoder_sparse_step"):
        read_spec(QWEN3 | {"decoder_sparse_step": 7})


def test_dense_layers_have_their_own_tensors():
    tensors = {t.part: t for t in tensor_specs(read_spec(QWEN3))}
    assert tensors["layers.1.mlp.down"].name == "model.layers.1.mlp.down_proj.weight"
    assert tensors["layers.1.mlp.down"].shape == (32, 80)
    assert "layers.1.router" not in tensors
    assert tensors["layers.0.router"].name == "model.layers.0.mlp.gate.weight"


def test_dense_layers_are_silu_only():
    with pytest.raises(UserError, match="hidden_act"):
        read_spec(QWEN3 | {"hidden_act": "relu"})
    assert read_spec(QWEN3 | {"hidden_act": "relu", "mlp_only_layers": []}).moe(0).activation == "relu"


def test_the_window_counts_only_where_it_is_switched_on():
    assert read_spec(QWEN3 | {"sliding_window": 9}).attention.sliding_window is None
    assert read_spec(QWEN3 | {"sliding_window": 9, "use_sliding_window": True}).attention.sliding_window == 9
    assert read_spec(QWEN3 | {"use_sliding_window": True}).attention.sliding_window is None


def test_norms_are_per_head():
    shapes = {t.part: t.shape for t in tensor_specs(read_spec(QWEN3))}
    assert shapes["layers.2.q_norm"] == shapes["layers.2.k_norm"] == (16,)


@pytest.mark.parametrize(("flag", "router"), [(True, "softmax_topk_renorm"), (False, "softmax_topk")])
def test_norm_topk_prob_chooses_the_rule(flag, router):
    assert read_spec(QWEN3 | {"norm_topk_prob": flag}).moe(0).router == router


@pytest.mark.parametrize("value", [None, 1, "true"])
def test_norm_topk_prob_must_be_said(value):
    with pytest.raises(UserError, match="norm_topk_prob"):
        read_spec(QWEN3 | {"norm_topk_prob": value})


def test_null_key_value_heads_are_refused():
    with pytest.raises(UserError, match="num_key_value_heads"):
        read_spec(QWEN3 | {"num_key_value_heads": None})
