"""The same preset and seed give the same bytes everywhere; a directory is all there or untouched."""

import errno
import hashlib
import json
import shutil

import pytest
import torch

from moesaic.bench import make_checkpoint as module
from moesaic.bench.make_checkpoint import make_checkpoint, plan_shards, tensor_bytes
from moesaic.bench.preset_tensors import preset_tensors
from moesaic.bench.presets import PRESETS, geometry_of
from moesaic.core.errors import UserError
from moesaic.memory.checkpoint import check_tensors, open_checkpoint
from moesaic.models import noise
from moesaic.specs import ignored, read_spec, tensor_specs

# sha256 of files, recorded once: a change here changes every benchmark's model
SAME_FOR_ALL = {
    "generation_config.json": "aed559e36d29e1254d462aaf83853f743ab725b64d7003179f11971bfc672a8b",
    "tokenizer.json": "2963ee9a2919d05295ba5974db3549ea45bb1edcc50642e5cd9f814dfaffeb04",
    "tokenizer_config.json": "7f2e696e690b88ef626e9fa3da4e04b939448ba37a1a8231a1e019521e8f8e5c",
}
GOLDEN = {
    ("mixtral-tiny", None, 0): {
        "config.json": "0b8918176bf42c8e76c219e9334288e9d2495d0bba446fbf5a7900a20b1955fa",
        "model-00001-of-00001.safetensors": "8bf881cac5fb32485c0f4e296595d913cad99acbb2b0f34ffac693e599f047e2",
        "model.safetensors.index.json": "96b6da9224de346854040c04f6fbe40eb74d39a7c7ff7f4d561e12428c545991",
    },
    ("qwen3-tiny", None, 0): {
        "config.json": "61520b8bc2d470a5b7a94dfad1a265476038a7206b4af332963b67c7a4a3f42f",
        "model-00001-of-00001.safetensors": "0644be67e8125964339efb38f4e9285f576840c04260348081b66829335a0b76",
        "model.safetensors.index.json": "6a7acd2ff0a7710b6b8f6d99c0486e71831d162805fd0999a7cabff1f9039892",
    },
    ("qwen3-tiny", 3, 7): {
        "config.json": "77aedcaec5a85a99935117890c477b6b111ce015258e547240265e37f82a403b",
        "model-00001-of-00001.safetensors": "3d2502990d32112360990d99d96c9ef1eaf7ee57a483b8211a7bb4fcd5d0989b",
        "model.safetensors.index.json": "5373829e28541d8680f1d3ad0c30ce250e7acb260acb924a07758d032d289df2",
    },
}


@pytest.fixture
def quick(monkeypatch):
    """Short noise blocks: other bytes, the same way of writing them."""
    monkeypatch.setattr(noise.NoiseShape.__init__, "__defaults__", (0, 0.3, 0.5, 40_009))
    monkeypatch.setattr(module, "STEP_ELEMENTS", 40_000)


@pytest.mark.long
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_files_are_byte_for_byte_the_recorded_ones(tmp_path, case):
    preset, layers, seed = case
    make_checkpoint(tmp_path / "m", geometry_of(preset, layers), seed)
    hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / "m").iterdir()}
    assert hashes == GOLDEN[case] | SAME_FOR_ALL


@pytest.mark.long
@pytest.mark.parametrize("preset", [name for name in PRESETS if name.endswith("-tiny")])
def test_transformers_loads_every_twin_without_a_missing_or_left_over_tensor(tmp_path, preset, quick):
    from transformers import AutoModelForCausalLM

    make_checkpoint(tmp_path / "m", PRESETS[preset])
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True, dtype=torch.float32)
    assert not any(info.values()), info
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()


@pytest.mark.parametrize("preset", ["mixtral-tiny", "qwen3-tiny", "olmoe-tiny"])
def test_what_it_writes_opens_and_holds_every_tensor_of_its_spec(tmp_path, preset, quick):
    written = make_checkpoint(tmp_path / "m", PRESETS[preset], shard_bytes=3_000_000)
    checkpoint = open_checkpoint(tmp_path / "m")
    spec = read_spec(checkpoint.config)
    check_tensors(checkpoint, tensor_specs(spec), lambda name: ignored(spec, name))
    assert len({e.path for e in checkpoint.entries.values()}) == written.num_shards > 2
    assert sum(e.num_bytes for e in checkpoint.entries.values()) == written.num_bytes
    for path in {e.path for e in checkpoint.entries.values()}:
        assert min(e.offset for e in checkpoint.entries.values() if e.path == path) % 4096 == 0
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == written.num_bytes


def test_shards_keep_order_and_size(quick):
    tensors = preset_tensors(PRESETS["qwen3-tiny"])
    shards = plan_shards(tensors, 1_000_000)
    assert [t for shard in shards for t in shard.tensors] == list(tensors)
    assert all(shard.num_bytes <= 1_000_000 or len(shard.tensors) == 1 for shard in shards)
    for shard in shards:
        ends = [o + tensor_bytes(t) for o, t in zip(shard.offsets, shard.tensors, strict=True)]
        assert list(shard.offsets) == [0, *ends[:-1]]
        assert ends[-1] == shard.num_bytes
        assert len(shard.header()) % 4096 == 0


def test_a_directory_that_holds_something_is_left_alone_without_force(tmp_path, quick):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        make_checkpoint(tmp_path, PRESETS["mixtral-tiny"])
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_force_replaces_the_checkpoint_and_nothing_else(tmp_path, quick):
    make_checkpoint(tmp_path, PRESETS["mixtral-tiny"], shard_bytes=3_000_000)
    (tmp_path / "note.txt").write_text("mine")
    make_checkpoint(tmp_path, PRESETS["qwen3-tiny"], force=True)
    assert (tmp_path / "note.txt").read_text() == "mine"
    assert [p.name for p in tmp_path.glob("model*.safetensors")] == ["model-00001-of-00001.safetensors"]
    assert open_checkpoint(tmp_path).config["model_type"] == "qwen3_moe"


def test_a_file_in_the_way_is_refused(tmp_path, quick):
    (tmp_path / "m").write_text("")
    with pytest.raises(UserError, match="is a file"):
        make_checkpoint(tmp_path / "m", PRESETS["mixtral-tiny"])


def test_a_name_that_no_file_can_have_is_refused(tmp_path, quick):
    with pytest.raises(UserError, match="File name too long"):
        make_checkpoint(tmp_path / ("x" * 300), PRESETS["mixtral-tiny"])


def test_an_interrupt_leaves_nothing_behind(tmp_path, quick, monkeypatch):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_checkpoint(tmp_path / "m", PRESETS["mixtral-tiny"], progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path, quick, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(UserError, match=r"wanted, 1\.00 MiB free"):
        make_checkpoint(tmp_path / "a" / "m", PRESETS["mixtral-tiny"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("existed", [True, False])
def test_a_failure_half_way_leaves_nothing_behind(tmp_path, quick, monkeypatch, existed):
    def fail(file, data, position):
        if position > 1_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_write_all", fail)
    target = tmp_path / "m"
    if existed:
        target.mkdir()
    with pytest.raises(UserError, match="No space left on device"):
        make_checkpoint(target, PRESETS["mixtral-tiny"])
    assert target.exists() == existed
    assert not existed or list(target.iterdir()) == []


def test_progress_rises_to_the_total(tmp_path, quick):
    seen = []
    written = make_checkpoint(
        tmp_path / "m", PRESETS["olmoe-tiny"], progress=lambda done, total: seen.append((done, total))
    )
    assert seen == sorted(seen)
    assert seen[-1] == (written.num_bytes, written.num_bytes)
