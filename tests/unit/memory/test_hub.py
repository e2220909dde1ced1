"""A model's name is a directory here or a complete entry of the hub cache; nothing is downloaded."""

import pytest

from moesaic.core.errors import UserError
from moesaic.memory.checkpoint import open_checkpoint
from moesaic.memory.hub import resolve_model
from tests.checkpoints import MIXTRAL, write_checkpoint

REVISION = "0123abcd"


@pytest.fixture
def cache(tmp_path):
    """A cache that holds org/model in three shards, as the hub library lays it out."""
    repository = tmp_path / "cache" / "models--org--model"
    snapshot = write_checkpoint(repository / "snapshots" / REVISION, MIXTRAL, 3)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION + "\n")
    for file in list(snapshot.iterdir()):
        file.rename(repository / "blobs" / file.name)
        file.symlink_to(f"../../blobs/{file.name}")
    return tmp_path / "cache"


def _snapshot(cache):
    return cache / "models--org--model" / "snapshots" / REVISION


def test_a_directory_is_itself(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_hub_id_is_its_main_snapshot_and_opens(cache):
    path = resolve_model("org/model", cache)
    assert path == _snapshot(cache)
    assert open_checkpoint(path).config["model_type"] == "mixtral"


def test_a_directory_goes_before_a_hub_id(cache, tmp_path, monkeypatch):
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert str(resolve_model("org/model", cache)) == "org/model"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00002-of-00003.safetensors"])
@pytest.mark.parametrize("dangling", [False, True])
def test_an_incomplete_entry_names_the_file_and_the_command(cache, name, dangling):
    (cache / "models--org--model" / "blobs" / name).unlink()
    if not dangling:
        (_snapshot(cache) / name).unlink()
    with pytest.raises(UserError, match=r"run: hf download org/model") as caught:
        resolve_model("org/model", cache)
    expected = "model.safetensors" if name.endswith("index.json") else name
    assert expected in str(caught.value)


def test_an_unknown_id_names_the_cache_and_the_command(cache):
    with pytest.raises(UserError, match=r"org/other.*hf download org/other"):
        resolve_model("org/other", cache)


@pytest.mark.parametrize("content", ["", "gone", "../../etc", b"\xff\xfe"])
def test_a_broken_reference_is_refused(cache, content):
    reference = cache / "models--org--model" / "refs" / "main"
    reference.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match="hf download org/model"):
        resolve_model("org/model", cache)


def test_a_missing_reference_is_refused(cache):
    (cache / "models--org--model" / "refs" / "main").unlink()
    with pytest.raises(UserError, match="hf download org/model"):
        resolve_model("org/model", cache)


@pytest.mark.parametrize(
    "model",
    [
        "./nowhere",
        "/nowhere/at/all",
        "a/b/c",
        "../x",
        "org/..",
        "",
        "org/model extra",
        "~/no",
        "~no-such-user/y",
        "x" * 5000,
        "/" + "x" * 300,
    ],
)
def test_what_is_neither_is_said_to_be_neither(cache, model):
    with pytest.raises(UserError, match="no such directory"):
        resolve_model(model, cache)


def test_a_file_is_not_a_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="is a file"):
        resolve_model(str(tmp_path / "model.safetensors"))
