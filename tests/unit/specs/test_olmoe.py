"""OLMoE: norms over the full width, an optional clamp, weights not renormalised."""

import pytest

from moesaic.core.errors import UserError
from moesaic.specs import read_spec, tensor_specs
from tests.checkpoints import OLMOE


def test_the_published_geometry_has_the_published_size():
    published = OLMOE | {
        "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50304,
    }  # fmt: skip
    total = 0
    for tensor in tensor_specs(read_spec(published)):
        size = 1
        for n in tensor.shape:
            size *= n
        total += size
    assert total == 6_919_161_856


def test_norms_span_all_heads():
    shapes = {t.part: t.shape for t in tensor_specs(read_spec(OLMOE | {"num_key_value_heads": 2}))}
    assert shapes["layers.0.q_norm"] == (32,)
    assert shapes["layers.0.k_norm"] == (16,)


def test_weights_are_not_renormalised_unless_the_config_says_so():
    assert read_spec(OLMOE).moe(0).router == "softmax_topk"
    assert read_spec(OLMOE | {"norm_topk_prob": True}).moe(0).router == "softmax_topk_renorm"


def test_the_clamp_is_read():
    assert read_spec(OLMOE).attention.clip_qkv is None
    assert read_spec(OLMOE | {"clip_qkv": 8}).attention.clip_qkv == 8.0
    with pytest.raises(UserError, match="clip_qkv"):
        read_spec(OLMOE | {"clip_qkv": -1.0})


def test_a_missing_epsilon_is_the_trained_one():
    assert read_spec({k: v for k, v in OLMOE.items() if k != "rms_norm_eps"}).norm_eps == 1e-5


def test_a_window_is_refused():
    with pytest.raises(UserError, match="sliding_window"):
        read_spec(OLMOE | {"sliding_window": 128})
