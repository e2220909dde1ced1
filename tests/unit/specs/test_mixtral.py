"""Mixtral: w1 is gate, w3 is up, w2 is down; the window is that of every layer."""

from moesaic.core.routing import ExpertId
from moesaic.specs import read_spec, tensor_specs
from tests.checkpoints import MIXTRAL

PUBLISHED = MIXTRAL | {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "vocab_size": 32000, "rope_theta": 1e6,
}  # fmt: skip


def test_the_published_geometry_has_the_published_size():
    spec = read_spec(PUBLISHED)
    sizes = {t.name: _product(t.shape) for t in tensor_specs(spec)}
    assert sum(sizes.values()) == 46_702_792_704
    assert sum(n for name, n in sizes.items() if ".experts." in name) * 2 == 90_194_313_216
    assert spec.attention.head_dim == 128
    assert spec.moe(31).router == "softmax_topk_renorm"


def test_w2_is_down():
    parts = {t.name: t for t in tensor_specs(read_spec(MIXTRAL)) if t.expert == ExpertId(1, 3)}
    stem = "model.layers.1.block_sparse_moe.experts.3."
    assert {name: (t.part, t.shape) for name, t in parts.items()} == {
        stem + "w1.weight": ("gate", (48, 32)),
        stem + "w3.weight": ("up", (48, 32)),
        stem + "w2.weight": ("down", (32, 48)),
    }


def test_a_window_is_read_and_null_is_none():
    assert read_spec(MIXTRAL).attention.sliding_window is None
    assert read_spec(MIXTRAL | {"sliding_window": 4096}).attention.sliding_window == 4096


def test_null_key_value_heads_are_as_many_as_heads():
    assert read_spec(MIXTRAL | {"num_key_value_heads": None}).attention.num_kv_heads == 4


def test_head_dim_may_differ_from_hidden_over_heads():
    spec = read_spec(MIXTRAL | {"head_dim": 10})
    shapes = {t.part: t.shape for t in tensor_specs(spec)}
    assert shapes["layers.0.q_proj"] == (40, 32)
    assert shapes["layers.0.o_proj"] == (32, 40)
    assert read_spec(MIXTRAL | {"head_dim": None}).attention.head_dim == 8


def _product(shape):
    result = 1
    for n in shape:
        result *= n
    return result
