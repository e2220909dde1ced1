"""Every kind of damage to a checkpoint is refused before anything is allocated, in one line that names what is wrong.

Each row: what is done to a sound checkpoint of three shards, and words that the refusal must have.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.api import LLM
from moesaic.core.errors import UserError
from moesaic.memory.checkpoint import check_tensors, open_checkpoint
from moesaic.runtime import build
from moesaic.specs import ignored, read_spec, tensor_specs
from tests.checkpoints import MIXTRAL, QWEN3, file_bytes, tensor_table, write_checkpoint, write_shard

INDEX = "model.safetensors.index.json"
FIRST, LAST = "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"
EMBEDDING = "model.embed_tokens.weight"


def load_checked(directory: Path) -> None:
    """What an engine does with a checkpoint before it allocates."""
    checkpoint = open_checkpoint(directory)
    spec = read_spec(checkpoint.config)
    check_tensors(checkpoint, tensor_specs(spec), lambda name: ignored(spec, name))


# -- ways to do damage ---------------------------------------------------------------------------------------
def config(**changes: object) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        kept = {k: v for k, v in (MIXTRAL | changes).items() if v is not ...}
        (directory / "config.json").write_text(json.dumps(kept))

    return damage


def content(name: str, data: bytes | str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(data.encode() if isinstance(data, str) else data) and None


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def resize(name: str, by: int) -> Callable[[Path], None]:
    return lambda directory: os.truncate(directory / name, (directory / name).stat().st_size + by)


def weight_map(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        index = json.loads((directory / INDEX).read_text())
        change(index["weight_map"])
        (directory / INDEX).write_text(json.dumps(index))

    return damage


def header(name: str, change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Changes one shard's header and leaves its tensors' bytes."""

    def damage(directory: Path) -> None:
        data = (directory / name).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        table = json.loads(data[8 : 8 + length])
        change(table)
        (directory / name).write_bytes(file_bytes(table, data[8 + length :]))

    return damage


def tensors(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Writes one sound file of other tensors in place of the shards."""

    def damage(directory: Path) -> None:
        table = tensor_table(MIXTRAL)
        change(table)
        write_shard(directory / "model.safetensors", table)

    return damage


def pickles(directory: Path) -> None:
    for file in (*directory.glob("*.safetensors"), directory / INDEX):
        file.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04")


def directory_in_place_of(name: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).mkdir()

    return damage


def link_outside(name: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        (directory / name).rename(directory.parent / name)
        (directory / name).symlink_to(directory.parent / name)

    return damage


def outside_shard(name: str) -> Callable[[Path], None]:
    """The index names a sound shard that is not in the directory."""

    def damage(directory: Path) -> None:
        write_shard(directory.parent / "outside.safetensors", {EMBEDDING: tensor_table(MIXTRAL)[EMBEDDING]})
        weight_map(lambda m: m.update({EMBEDDING: name}))(directory)

    return damage


def no_weights(directory: Path) -> None:
    for file in (*directory.glob("*.safetensors"), directory / INDEX):
        file.unlink()


W2 = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    # files
    "config missing": (remove("config.json"), ("config.json", "missing")),
    "config broken": (content("config.json", '{"model_type": '), ("config.json", "not valid JSON")),
    "config empty": (content("config.json", ""), ("config.json", "not valid JSON")),
    "config a list": (content("config.json", "[1]"), ("config.json", "not a JSON object")),
    "config nested too deep": (content("config.json", "[" * 200_000), ("config.json",)),
    "config with a 5000-digit number": (content("config.json", '{"a": ' + "9" * 5000 + "}"), ("config.json",)),
    "config with NaN": (content("config.json", '{"rope_theta": NaN}'), ("config.json", "NaN")),
    "config not text": (content("config.json", b"\xff\xfe\x00"), ("config.json",)),
    "config a directory": (directory_in_place_of("config.json"), ("config.json", "regular file")),
    "index broken": (content(INDEX, "{"), (INDEX, "not valid JSON")),
    "index without map": (content(INDEX, "{}"), (INDEX, "weight_map")),
    "index missing": (remove(INDEX), (FIRST, INDEX)),
    "shard missing": (remove(LAST), (LAST, "missing")),
    "shard a directory": (directory_in_place_of(LAST), (LAST, "regular file")),
    "shard a link that leaves": (link_outside(LAST), (LAST, "leaves the directory")),
    "config a link that leaves": (link_outside("config.json"), ("config.json", "leaves the directory")),
    "pickle only": (pickles, ("pytorch_model.bin", "pickle")),
    "no weights": (no_weights, ("model.safetensors",)),
    # what the index says
    "index names a parent": (outside_shard("../outside.safetensors"), (INDEX, "../outside.safetensors")),
    "index names an absolute path": (outside_shard("/tmp/outside.safetensors"), (INDEX, "/tmp/outside.safetensors")),
    "index names a backslash path": (outside_shard("..\\outside.safetensors"), (INDEX, "outside.safetensors")),
    "index names dots": (weight_map(lambda m: m.update({EMBEDDING: ".."})), (INDEX, "names .., which")),
    "index names nothing": (weight_map(lambda m: m.update({EMBEDDING: ""})), (INDEX, "plain file name")),
    "index names a number": (weight_map(lambda m: m.update({EMBEDDING: 3})), (INDEX, EMBEDDING)),
    "index names a pickle": (weight_map(lambda m: m.update({EMBEDDING: "x.bin"})), (INDEX, "x.bin")),
    "index names control characters": (weight_map(lambda m: m.update({EMBEDDING: "a\n.safetensors"})), (INDEX,)),
    "index names a tensor its shard lacks": (weight_map(lambda m: m.update(extra=FIRST)), ("extra", FIRST)),
    "index forgets a tensor": (weight_map(lambda m: m.pop(EMBEDDING)), (EMBEDDING, FIRST)),
    "index swaps shards": (weight_map(lambda m: m.update({EMBEDDING: LAST})), (EMBEDDING, LAST)),
    # one shard's bytes
    "shard empty": (content(FIRST, b""), (FIRST, "too few")),
    "shard of seven bytes": (content(FIRST, b"\0" * 7), (FIRST, "too few")),
    "shard truncated by 100": (resize(LAST, -100), (LAST, "truncated")),
    "shard truncated by 1": (resize(LAST, -1), (LAST, "truncated")),
    "shard with trailing bytes": (resize(LAST, 8), (LAST, "8 bytes that belong to no tensor")),
    "shard of zeros": (content(LAST, b"\0" * 5000), (LAST, "JSON")),
    "shard with a header of a TiB": (content(LAST, struct.pack("<Q", 1 << 40) + b"{}"), (LAST, "header")),
    "header not JSON": (content(LAST, file_bytes(b"{]", b"")), (LAST, "not JSON")),
    "header a list": (content(LAST, file_bytes(b"[]", b"")), (LAST, "not a JSON object")),
    "header twice the same name": (content(LAST, file_bytes(b'{"a": 1, "a": 2}', b"")), (LAST, "twice")),
    "header unknown dtype": (header(FIRST, lambda t: t[EMBEDDING].update(dtype="F7")), (FIRST, EMBEDDING, "F7")),
    "header wrong shape": (header(FIRST, lambda t: t[EMBEDDING].update(shape=[64, 31])), (FIRST, EMBEDDING, "bytes")),
    "header negative offset": (
        header(FIRST, lambda t: t[EMBEDDING].update(data_offsets=[-8, 4088])),
        (FIRST, EMBEDDING, "data_offsets"),
    ),
    "header overlap": (
        header(FIRST, lambda t: t["model.layers.0.input_layernorm.weight"].update(data_offsets=[4032, 4096])),
        (FIRST, "input_layernorm", "overlaps"),
    ),
    "header forgets a tensor": (header(FIRST, lambda t: t.pop(EMBEDDING)), (FIRST, "gap")),
    # what the model needs
    "tensor missing": (tensors(lambda t: t.pop(W2)), (W2, "missing")),
    "tensor unknown": (tensors(lambda t: t.update(surprise=("BF16", (3,)))), ("surprise", "unknown")),
    "tensor of another shape": (tensors(lambda t: t.update({W2: ("BF16", (32, 47))})), (W2, "[32, 47]", "[32, 48]")),
    "tensor transposed": (tensors(lambda t: t.update({W2: ("BF16", (48, 32))})), (W2, "[48, 32]")),
    "tensor of integers": (tensors(lambda t: t.update({W2: ("I8", (32, 48))})), (W2, "I8")),
    "tensor in float8": (tensors(lambda t: t.update({W2: ("F8_E4M3", (32, 48))})), (W2, "F8_E4M3")),
    "head missing": (tensors(lambda t: t.pop("lm_head.weight")), ("lm_head.weight", "missing")),
    # what the config says
    "model type unknown": (config(model_type="llama"), ("model_type", "llama", "mixtral")),
    "model type missing": (config(model_type=...), ("model_type", "missing")),
    "config of another family": (content("config.json", json.dumps(QWEN3)), ("q_norm", "missing")),
    "more layers than tensors": (config(num_hidden_layers=3), ("model.layers.2", "missing")),
    "fewer layers than tensors": (config(num_hidden_layers=1), ("model.layers.1", "unknown")),
    "more experts than tensors": (config(num_local_experts=5), ("experts.4.w1", "missing")),
    "another width": (config(intermediate_size=64), ("experts.0.w1", "[48, 32]", "[64, 32]")),
    "another vocabulary": (config(vocab_size=65), (EMBEDDING, "[65, 32]")),
    "head count that does not divide": (config(num_attention_heads=5), ("num_key_value_heads",)),
    "scaled rotary embedding": (config(rope_scaling={"type": "yarn", "factor": 4}), ("rope_scaling.type", "yarn")),
    "quantized": (config(quantization_config={"quant_method": "gptq"}), ("quantization_config",)),
    "experts without end": (config(num_hidden_layers=4096, num_local_experts=256), ("num_hidden_layers", "65536")),
    "layers without end": (config(num_hidden_layers=10**9), ("num_hidden_layers",)),
}


@pytest.fixture
def sound(tmp_path):
    return write_checkpoint(tmp_path / "model", MIXTRAL, 3)


def test_the_undamaged_checkpoint_is_accepted(sound):
    load_checked(sound)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_in_one_line_that_names_it(sound, kind, monkeypatch):
    damage, words = DAMAGE[kind]
    damage(sound)
    monkeypatch.setattr(build, "HostArena", _must_not_run)
    monkeypatch.setattr(build, "DevicePool", _must_not_run)
    with pytest.raises(UserError) as caught:
        LLM(str(sound), device="cpu")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 800
    assert caught.value.fix
    assert all(word in message for word in words), message


def _must_not_run(*_args, **_kwargs):
    raise AssertionError("something was allocated for a checkpoint that is refused")


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_random_damage_to_any_header_is_refused_or_harmless(tmp_path_factory, data):
    """Bytes of the length field and of the JSON, changed, cut or doubled: a UserError or a checkpoint that fits."""
    directory = write_checkpoint(tmp_path_factory.getbasetemp() / "fuzz", MIXTRAL)
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 7 + length) | st.integers(0, 7))
        action = data.draw(st.sampled_from(["set", "cut", "double"]))
        if action == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del content[at : at + data.draw(st.integers(1, 40))]
        else:
            content[at:at] = content[at : at + data.draw(st.integers(1, 40))]
    path.write_bytes(bytes(content))
    message = ""
    try:
        load_checked(directory)
    except UserError as error:
        message = str(error)
    assert "\n" not in message
