"""Files that fit together open; links stay inside; a model type's tensors are all there and no others."""

import json
import os

import pytest

from moesaic.core.errors import UserError
from moesaic.core.model import TensorSpec
from moesaic.memory.checkpoint import check_tensors, inside, open_checkpoint
from moesaic.specs import ignored, read_spec, tensor_specs
from tests.checkpoints import CONFIGS, MIXTRAL, tensor_table, write_checkpoint, write_shard


def _check(checkpoint):
    spec = read_spec(checkpoint.config)
    check_tensors(checkpoint, tensor_specs(spec), lambda name: ignored(spec, name))


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_sound_checkpoint_opens_with_every_tensor(tmp_path, family, num_shards):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, CONFIGS[family], num_shards))
    assert set(checkpoint.entries) == {t.name for t in tensor_specs(read_spec(CONFIGS[family]))}
    assert len({e.path for e in checkpoint.entries.values()}) == num_shards
    _check(checkpoint)


def test_a_single_file_goes_before_an_index(tmp_path):
    write_checkpoint(tmp_path, MIXTRAL)
    (tmp_path / "model.safetensors.index.json").write_text("broken")
    _check(open_checkpoint(tmp_path))


def test_remote_code_is_never_looked_at(tmp_path):
    write_checkpoint(tmp_path, MIXTRAL | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}})
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    _check(open_checkpoint(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_weights_may_be_links_into_the_blobs_of_the_same_cache_entry(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "rev", tmp_path / "models--a--b" / "blobs"
    write_checkpoint(snapshot, MIXTRAL, 2)
    blobs.mkdir()
    for file in list(snapshot.iterdir()):
        file.rename(blobs / f"hash-{file.name}")
        file.symlink_to(f"../../blobs/hash-{file.name}")
    _check(open_checkpoint(snapshot))


def test_a_link_within_the_directory_is_fine_and_the_directory_may_be_one(tmp_path):
    write_checkpoint(tmp_path / "real", MIXTRAL)
    (tmp_path / "real" / "model.safetensors").rename(tmp_path / "real" / "weights.safetensors")
    (tmp_path / "real" / "model.safetensors").symlink_to("weights.safetensors")
    (tmp_path / "alias").symlink_to("real")
    _check(open_checkpoint(tmp_path / "alias"))


@pytest.mark.parametrize("inner", ["model.safetensors", "config.json"])
def test_a_link_that_leaves_the_directory_is_refused(tmp_path, inner):
    write_checkpoint(tmp_path / "a", MIXTRAL)
    (tmp_path / "a" / inner).rename(tmp_path / inner)
    (tmp_path / "a" / inner).symlink_to(f"../{inner}")
    with pytest.raises(UserError, match=f"{inner}: is a link that leaves the directory"):
        open_checkpoint(tmp_path / "a")


def test_a_file_in_a_folder_of_the_directory_is_inside_and_one_beside_it_is_not(tmp_path):
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "a" / "sub" / "x.json").write_text("{}")
    (tmp_path / "x.json").write_text("{}")
    assert inside(tmp_path / "a", "sub/x.json").read_text() == "{}"
    with pytest.raises(UserError, match="leaves the directory"):
        inside(tmp_path / "a", "../x.json")


def test_a_link_from_blobs_onward_is_refused(tmp_path):
    snapshot, blobs = tmp_path / "m" / "snapshots" / "rev", tmp_path / "m" / "blobs"
    write_checkpoint(snapshot, MIXTRAL)
    blobs.mkdir()
    (snapshot / "model.safetensors").rename(tmp_path / "outside")
    (blobs / "hash").symlink_to(tmp_path / "outside")
    (snapshot / "model.safetensors").symlink_to("../../blobs/hash")
    with pytest.raises(UserError, match="leaves the directory"):
        open_checkpoint(snapshot)


def test_what_is_no_regular_file_is_refused_without_opening_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        inside(tmp_path, "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="loop"):
        inside(tmp_path, "loop")


def _with_tensors(tmp_path, table):
    write_checkpoint(tmp_path, MIXTRAL)
    write_shard(tmp_path / "model.safetensors", table)
    return open_checkpoint(tmp_path)


def test_a_missing_tensor_is_named_with_how_many_more(tmp_path):
    table = tensor_table(MIXTRAL)
    del table["model.layers.1.self_attn.q_proj.weight"], table["model.norm.weight"]
    with pytest.raises(UserError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight is missing \(and 1 more\)"):
        _check(_with_tensors(tmp_path, table))


def test_an_unknown_tensor_is_refused_unless_it_is_ignored(tmp_path):
    table = tensor_table(MIXTRAL) | {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (4,))}
    _check(_with_tensors(tmp_path, table))
    table["model.layers.0.self_attn.q_proj.bias"] = ("BF16", (32,))
    with pytest.raises(UserError, match=r"q_proj\.bias is unknown"):
        _check(_with_tensors(tmp_path, table))


def test_a_wrong_shape_names_both(tmp_path):
    table = tensor_table(MIXTRAL)
    name = "model.layers.0.block_sparse_moe.experts.2.w2.weight"
    table[name] = ("BF16", (48, 32))
    with pytest.raises(UserError, match=r"experts\.2\.w2\.weight has shape \[48, 32\].*\[32, 48\]"):
        _check(_with_tensors(tmp_path, table))


def test_a_dtype_that_is_not_loaded_is_named(tmp_path):
    table = tensor_table(MIXTRAL) | {"model.norm.weight": ("F8_E4M3", (32,))}
    with pytest.raises(UserError, match=r"model\.norm\.weight has dtype F8_E4M3"):
        _check(_with_tensors(tmp_path, table))


def test_every_spec_is_checked(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, MIXTRAL))
    extra = TensorSpec("more", (1,), "more")
    with pytest.raises(UserError, match="tensor more is missing"):
        check_tensors(checkpoint, [*tensor_specs(read_spec(MIXTRAL)), extra], lambda name: False)


def test_nothing_is_written_or_read_from_tensors(tmp_path):
    """Opening reads headers only: the weights' bytes may be unreadable garbage."""
    write_checkpoint(tmp_path, MIXTRAL)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    checkpoint = open_checkpoint(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == checkpoint.config
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
