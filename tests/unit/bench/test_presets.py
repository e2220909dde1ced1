"""Presets are the published geometries: parameter counts agree, configs hold what model classes read."""

from math import prod

import pytest
from transformers import AutoConfig

from moesaic.bench.preset_configs import config_json
from moesaic.bench.preset_tensors import is_expert, preset_tensors
from moesaic.bench.presets import PRESETS, geometry_of
from moesaic.core.errors import UserError


@pytest.mark.parametrize(
    ("preset", "num_weights", "expert_bytes"),
    [
        ("mixtral", 46_702_792_704, 90_194_313_216),
        ("mixtral-8l", 11_872_309_248, 22_548_578_304),
        ("qwen3", 30_532_122_624, 57_982_058_496),
        ("qwen3-12l", 8_099_779_584, 14_495_514_624),
        ("olmoe", 6_919_161_856, 12_884_901_888),
        ("phi35-moe", 41_873_153_344, 80_530_636_800),
        ("dbrx", 131_596_523_520, 253_671_505_920),
        ("cpu-mid", 2_000_435_968, 3_623_878_656),
    ],
)
def test_a_preset_has_the_published_number_of_weights(preset, num_weights, expert_bytes):
    tensors = preset_tensors(PRESETS[preset])
    assert sum(prod(t.shape) for t in tensors) == num_weights
    assert sum(2 * prod(t.shape) for t in tensors if is_expert(t)) == expert_bytes


@pytest.mark.parametrize("preset", PRESETS)
def test_transformers_reads_every_config_with_the_same_geometry(preset):
    geometry = PRESETS[preset]
    config = AutoConfig.for_model(**config_json(geometry))
    assert config.model_type == geometry.family
    assert config.num_hidden_layers == geometry.num_layers
    assert config.hidden_size == geometry.hidden
    assert config.vocab_size == geometry.vocab
    assert config.rope_parameters["rope_theta"] == geometry.rope_theta
    assert config.max_position_embeddings == geometry.max_positions


def test_depth_and_vocabulary_may_be_changed_and_nonsense_is_refused():
    assert geometry_of("qwen3", 3, 32_000).num_layers == 3
    assert geometry_of("qwen3", 3, 32_000) == PRESETS["cpu-mid"]
    with pytest.raises(UserError, match="unknown preset 'gpt'"):
        geometry_of("gpt")
    with pytest.raises(UserError, match="layers is 0"):
        geometry_of("qwen3", 0)
    with pytest.raises(UserError, match="vocab is 256"):
        geometry_of("qwen3", vocab=256)
