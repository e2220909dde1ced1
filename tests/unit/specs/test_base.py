"""Fields that every family has: a missing or wrong one is refused by name, never guessed."""

import json

import pytest

from moesaic.core.errors import UserError
from moesaic.specs import ignored, read_spec, tensor_specs
from tests.checkpoints import CONFIGS, MIXTRAL, QWEN3

GEOMETRY = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"]
REQUIRED = {
    "mixtral": [*GEOMETRY, "intermediate_size", "num_local_experts", "num_experts_per_tok", "rope_theta",
                "max_position_embeddings", "rms_norm_eps", "hidden_act", "model_type"],
    "qwen3_moe": [*GEOMETRY, "moe_intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob",
                  "decoder_sparse_step", "mlp_only_layers", "rope_theta", "max_position_embeddings", "rms_norm_eps",
                  "intermediate_size"],
    "olmoe": [*GEOMETRY, "intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob", "rope_theta",
              "max_position_embeddings"],
}  # fmt: skip


@pytest.mark.parametrize(("family", "key"), [(f, k) for f, keys in REQUIRED.items() for k in keys])
def test_a_missing_geometry_or_router_key_is_named(family, key):
    config = {k: v for k, v in CONFIGS[family].items() if k != key}
    with pytest.raises(UserError, match="is missing") as caught:
        read_spec(config)
    assert key in str(caught.value) or (key == "num_local_experts" and "num_experts" in str(caught.value))


NO_COUNTS = [0, -4, 2.5, 8.0, "8", True, [8], {}, 10**30, pytest.param(10**5000, id="huge"), float("nan")]
COUNTS = [*GEOMETRY, "intermediate_size", "num_local_experts", "num_experts_per_tok"]


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", NO_COUNTS)
def test_a_count_that_is_no_count_is_named(key, value):
    with pytest.raises(UserError, match=key) as caught:
        read_spec(MIXTRAL | {key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [key for key in COUNTS if key != "num_key_value_heads"])
def test_null_is_no_count(key):
    with pytest.raises(UserError, match=key):
        read_spec(MIXTRAL | {key: None})


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
@pytest.mark.parametrize("value", [0, -1.0, "1e6", True, float("nan"), float("inf"), 10**400, []])
def test_a_number_that_is_no_positive_number_is_named(key, value):
    with pytest.raises(UserError, match=key):
        read_spec(MIXTRAL | {key: value})


def test_an_unknown_model_type_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'gpt2'.*mixtral, olmoe, qwen3_moe"):
        read_spec(MIXTRAL | {"model_type": "gpt2"})


def test_both_names_of_the_expert_count_are_read():
    config = {k: v for k, v in MIXTRAL.items() if k != "num_local_experts"}
    assert read_spec(config | {"num_experts": 4}) == read_spec(MIXTRAL)
    assert read_spec(MIXTRAL | {"num_experts": 4}) == read_spec(MIXTRAL)
    with pytest.raises(UserError, match="num_local_experts is 4 but num_experts is 5"):
        read_spec(MIXTRAL | {"num_experts": 5})


def test_old_and_new_rope_fields_mean_the_same():
    new = {k: v for k, v in MIXTRAL.items() if k != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    assert read_spec(new) == read_spec(MIXTRAL)
    assert read_spec(MIXTRAL | {"rope_scaling": None}) == read_spec(MIXTRAL)
    with pytest.raises(UserError, match=r"rope_theta is 5\.0 but rope_parameters\.rope_theta is 10000\.0"):
        read_spec(new | {"rope_theta": 5.0})


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ["rope_scaling.type", "linear"]),
        ({"rope_scaling": {"rope_type": "yarn"}}, ["rope_scaling.rope_type", "yarn"]),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, ["rope_parameters.rope_type", "longrope"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor"]),
        ({"rope_scaling": "linear"}, ["rope_scaling"]),
        ({"hidden_act": "gelu_new"}, ["hidden_act", "gelu_new"]),
        ({"num_experts_per_tok": 5}, ["num_experts_per_tok", "4 experts"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads", "does not divide"]),
        ({"hidden_size": 33}, ["hidden_size", "33"]),
        ({"head_dim": 7}, ["head_dim", "even"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config"]),
        ({"torch_dtype": "float8_e4m3fn"}, ["torch_dtype", "float8_e4m3fn"]),
        ({"dtype": 3}, ["dtype"]),
        ({"tie_word_embeddings": "no"}, ["tie_word_embeddings"]),
        ({"sliding_window": 0}, ["sliding_window"]),
        ({"num_hidden_layers": 4000, "num_local_experts": 1_000_000}, ["experts"]),
        ({"model_type": 3}, ["model_type"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(extra, words):
    with pytest.raises(UserError) as caught:
        read_spec(MIXTRAL | extra)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_stored_dtype_is_read_under_both_names():
    assert read_spec(MIXTRAL | {"torch_dtype": "float16"}).dtype == "float16"
    assert read_spec(MIXTRAL | {"dtype": "float32"}).dtype == "float32"
    assert read_spec({k: v for k, v in MIXTRAL.items() if k != "torch_dtype"}).dtype == "bfloat16"


def test_a_tied_model_has_no_head_and_tolerates_one():
    spec = read_spec(MIXTRAL | {"tie_word_embeddings": True})
    assert "lm_head" not in {t.part for t in tensor_specs(spec)}
    assert ignored(spec, "lm_head.weight")
    assert not ignored(read_spec(MIXTRAL), "lm_head.weight")


def test_saved_rotary_tables_are_ignored_and_nothing_else():
    spec = read_spec(MIXTRAL)
    assert ignored(spec, "model.layers.11.self_attn.rotary_emb.inv_freq")
    assert ignored(spec, "model.rotary_emb.inv_freq")
    assert not ignored(spec, "model.layers.1.self_attn.rotary_emb.inv_freq.weight")
    assert not ignored(spec, "model.layers.9.self_attn.q_proj.weight")


def test_a_bias_belongs_to_each_projection():
    with_bias = {t.part: t for t in tensor_specs(read_spec(QWEN3 | {"attention_bias": True}))}
    assert with_bias["layers.0.k_proj.bias"].shape == (32,)
    assert with_bias["layers.0.o_proj.bias"].name == "model.layers.0.self_attn.o_proj.bias"
    assert not any(t.part.endswith("bias") for t in tensor_specs(read_spec(QWEN3)))


@pytest.mark.parametrize("family", CONFIGS)
def test_names_and_parts_are_unique_and_experts_are_complete(family):
    spec = read_spec(json.loads(json.dumps(CONFIGS[family])))
    tensors = tensor_specs(spec)
    assert len({t.name for t in tensors}) == len(tensors)
    dense = [t.part for t in tensors if t.expert is None]
    assert len(set(dense)) == len(dense)
    by_expert = {}
    for t in tensors:
        if t.expert is not None:
            by_expert.setdefault(t.expert, []).append(t.part)
    assert set(by_expert) == set(spec.experts())
    assert all(sorted(parts) == ["down", "gate", "up"] for parts in by_expert.values())
