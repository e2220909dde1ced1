"""Random checkpoints: what transformers, tokenizers and our own specs read in them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from moesaic.core.errors import UserError
from moesaic.models.byte_tokenizer import END_OF_TEXT, END_OF_TEXT_ID
from moesaic.models.tiny import CONFIGS, random_config, write_checkpoint
from moesaic.specs import read_spec, tensor_specs

FAMILIES = sorted(CONFIGS)


def _read(directory):
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    return tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_every_seed_is_a_geometry_that_specs_reads(family):
    specs = [read_spec(random_config(family, seed)) for seed in range(40)]
    assert len(set(specs)) > 30
    assert {spec.tied_embeddings for spec in specs} == {True, False}
    assert any(spec.moe(spec.moe_layers[0]).intermediate % 128 for spec in specs)
    assert random_config(family, 3) == random_config(family, 3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_the_files_hold_exactly_the_published_tensors(tmp_path, family, num_shards):
    config = random_config(family, 2)
    directory = write_checkpoint(tmp_path, config, num_shards=num_shards)
    tensors, spec = _read(directory), read_spec(config)
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {t.name: t.shape for t in tensor_specs(spec)}
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert len(list(directory.glob("*.safetensors"))) == num_shards
    index = directory / "model.safetensors.index.json"
    assert index.exists() == (num_shards > 1)
    if num_shards > 1:
        assert set(json.loads(index.read_text())["weight_map"]) == set(tensors)
    assert read_spec(json.loads((directory / "config.json").read_text())) == spec


def test_values_depend_on_the_seed_alone(tmp_path):
    config = random_config("mixtral", 0)
    one, three, other = (
        _read(write_checkpoint(tmp_path / name, config, seed=seed, num_shards=shards, dtype="float32"))
        for name, seed, shards in (("one", 5, 1), ("three", 5, 3), ("other", 6, 1))
    )
    assert all(torch.equal(one[name], three[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert one["model.embed_tokens.weight"].std().item() == pytest.approx(0.15, rel=0.1)
    assert one["model.norm.weight"].mean().item() == pytest.approx(1.0, abs=0.1)


def test_the_tokenizer_gives_any_text_back_and_fits_the_vocabulary(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_checkpoint(tmp_path, random_config("olmoe", 1)))
    assert (len(tokenizer), tokenizer.eos_token, tokenizer.eos_token_id) == (257, END_OF_TEXT, END_OF_TEXT_ID)
    text = "Grüße, 世界! 🙂\n\tdef f(x):  return x\x00"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(f"a{END_OF_TEXT}")[-1] == END_OF_TEXT_ID


def test_a_vocabulary_below_the_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="vocab_size is 256"):
        write_checkpoint(tmp_path / "small", random_config("mixtral", 0) | {"vocab_size": 256})
    assert not (tmp_path / "small").exists()


def test_an_unknown_family_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="'mamba'"):
        write_checkpoint(tmp_path / "new", random_config("mixtral", 0) | {"model_type": "mamba"})
    assert not (tmp_path / "new").exists()
