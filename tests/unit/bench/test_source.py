"""A model goes where it fits, is gone afterwards, and what was chosen is said."""

from pathlib import Path

import pytest

from moesaic.bench import source
from moesaic.bench.presets import PRESETS
from moesaic.bench.source import (
    SPARE_BYTES,
    Room,
    Sizes,
    choose_place,
    random_source,
    sizes_of,
    text_file,
    trained_source,
    write_outline,
)
from moesaic.bench.workloads import RandomModel
from moesaic.core.errors import UserError
from moesaic.core.units import GiB
from moesaic.runtime.machine import MemoryFacts

SIZES = Sizes(file_bytes=24 * GiB, arena_bytes=22 * GiB, device_bytes=0)


@pytest.mark.parametrize(
    ("memory", "ram_disk", "disk", "place"),
    [
        (48, 30, 0, "ram disk"),
        (47, 30, 100, "disk"),
        (48, 24, 100, "disk"),
        (47, 30, 24, "dummy"),
        (24, 0, 0, "dummy"),
    ],
)
def test_files_go_where_they_and_the_experts_fit(memory: int, ram_disk: int, disk: int, place: str) -> None:
    assert choose_place(SIZES, Room(memory * GiB, ram_disk * GiB, disk * GiB)) == place


def test_a_machine_without_room_for_the_experts_is_refused_with_what_they_need() -> None:
    with pytest.raises(UserError, match=r"23\.0 GiB of memory are free, the workload needs 24\.0 GiB"):
        choose_place(SIZES, Room(23 * GiB, 100 * GiB, 100 * GiB))


def test_sizes_are_those_of_the_published_geometries() -> None:
    mixtral = sizes_of(PRESETS["mixtral-8l"])
    assert mixtral.arena_bytes == 8 * 8 * 3 * 4096 * 14336 * 2
    assert 22.5e9 < mixtral.arena_bytes < mixtral.file_bytes < 24.5e9
    assert sizes_of(PRESETS["cpu-mid"], GiB).loaded_bytes == 3 * 128 * 3 * 2048 * 768 * 2 + GiB + SPARE_BYTES


def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int) -> None:
    monkeypatch.setattr(source, "RAM_DISK", tmp_path)
    monkeypatch.setattr(source.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(source, "memory_facts", lambda: MemoryFacts(1 << 40, 1 << 40, None, None, None))
    monkeypatch.setattr(source.shutil, "disk_usage", lambda path: source.shutil._ntuple_diskusage(0, 0, free_bytes))


def test_a_random_model_is_whole_in_the_body_and_gone_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    room(monkeypatch, tmp_path, 1 << 40)
    written: list[tuple[object, int]] = []

    def make(directory: Path, geometry: object, seed: int) -> None:
        written.append((geometry, seed))
        (directory / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr(source, "make_checkpoint", make)

    def fail() -> None:
        with random_source(RandomModel("qwen3-tiny", seed=7), 0) as made:
            assert made.load_format == "auto"
            assert "ram disk" in made.notes[0]
            assert (made.directory / "model.safetensors").exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert written == [(PRESETS["qwen3-tiny"], 7)]
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_files_only_the_outline_is_written_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    room(monkeypatch, tmp_path, 1000)
    with random_source(RandomModel("qwen3-tiny"), 0) as made:
        assert made.load_format == "dummy"
        assert "no room" in made.notes[0]
        assert not list(made.directory.glob("*.safetensors"))
    assert list(tmp_path.iterdir()) == []


def test_an_outline_is_a_model_that_can_be_read(tmp_path: Path) -> None:
    from moesaic.memory.checkpoint import read_json
    from moesaic.specs import read_spec

    write_outline(tmp_path, PRESETS["mixtral-tiny"])
    assert read_spec(read_json(tmp_path, "config.json")).num_experts == 16


def test_a_trained_model_is_the_users_else_the_one_beside_else_the_embedded_one(tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "src" / "moesaic"
    assert trained_source(Path("/models/mine"), package).label == "mine"
    assert trained_source(Path("/cache/0123abcd"), package, "org-model").label == "org-model"
    embedded = trained_source(None, package)
    assert embedded.directory == package / "models" / "data" / "tiny"
    assert "--model" in embedded.notes[0]
    small = tmp_path / "shared" / "models" / "small"
    small.mkdir(parents=True)
    (small / "config.json").write_text("{}")
    assert trained_source(None, package).directory == small


def test_text_is_the_users_else_the_one_beside_else_our_source(tmp_path: Path) -> None:
    package = tmp_path / "checkout" / "src" / "moesaic"
    assert text_file(Path("a.json"), package) == (Path("a.json"), "text: a.json")
    assert text_file(None, package)[0] is None
    beside = tmp_path / "shared" / "text" / "eval.json"
    beside.parent.mkdir(parents=True)
    beside.write_text("{}")
    assert text_file(None, package)[0] == beside
