"""Where a workload's model comes from: a directory that is there, or random weights made for the run only."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from moesaic.bench.make_checkpoint import make_checkpoint
from moesaic.bench.preset_configs import config_json, generation_config_json
from moesaic.bench.preset_tensors import is_expert, preset_tensors
from moesaic.bench.presets import Geometry, geometry_of
from moesaic.bench.workloads import RandomModel
from moesaic.core.errors import UserError
from moesaic.core.units import GiB, format_bytes
from moesaic.models.byte_tokenizer import tokenizer_config_json, tokenizer_json
from moesaic.runtime.machine import memory_facts

RAM_DISK = Path("/dev/shm")
SPARE_BYTES = 2 * GiB  # the process itself, and what else runs


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A directory that `LLM` opens. `label` is what records call the model; `notes` say what was chosen and why."""

    directory: Path
    label: str
    load_format: Literal["auto", "dummy"] = "auto"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes: of memory, of the RAM disk (which is memory too), of the folder for temporary files."""

    memory_bytes: int
    ram_disk_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a checkpoint's files, and of the host arena that its experts are loaded into; `device_bytes` what a
    device in host memory takes besides."""

    file_bytes: int
    arena_bytes: int
    device_bytes: int = 0

    @property
    def loaded_bytes(self) -> int:
        return self.arena_bytes + self.device_bytes + SPARE_BYTES


def choose_place(sizes: Sizes, room: Room) -> Literal["ram disk", "disk", "dummy"]:
    """Where the files go; "dummy": nowhere, the weights are made in memory. UserError where not even they fit."""
    if room.memory_bytes < sizes.loaded_bytes:
        raise UserError(
            f"{format_bytes(room.memory_bytes)} of memory are free, the workload needs "
            f"{format_bytes(sizes.loaded_bytes)}",
            "free some, or run a smaller workload (`moesaic bench --list`)",
        )
    needed_bytes = sizes.file_bytes + SPARE_BYTES // 4
    if room.ram_disk_bytes >= needed_bytes and room.memory_bytes >= sizes.file_bytes + sizes.loaded_bytes:
        return "ram disk"
    return "disk" if room.disk_bytes >= needed_bytes else "dummy"


@contextmanager
def random_source(model: RandomModel, device_bytes: int) -> Iterator[ModelSource]:
    """Makes the model for the body and removes it afterwards, also when the body raises. `device_bytes` as in Sizes."""
    geometry = geometry_of(model.preset)
    sizes = sizes_of(geometry, device_bytes)
    temporary = Path(tempfile.gettempdir())
    ram_disk_bytes = shutil.disk_usage(RAM_DISK).free if RAM_DISK.is_dir() else 0
    room = Room(memory_facts().usable, ram_disk_bytes, shutil.disk_usage(temporary).free)
    place = choose_place(sizes, room)
    parent = RAM_DISK if place == "ram disk" else temporary
    label = f"random weights, preset {model.preset}, seed {model.seed}"
    with tempfile.TemporaryDirectory(prefix="moesaic-bench-", dir=parent) as folder:
        directory = Path(folder)
        if place == "dummy":
            write_outline(directory, geometry)
            note = (
                f"dummy load: no room for {format_bytes(sizes.file_bytes)} of files beside the experts; "
                "same statistics, other values"
            )
            yield ModelSource(directory, label, "dummy", (note,))
        else:
            make_checkpoint(directory, geometry, model.seed)
            yield ModelSource(directory, label, "auto", (f"{label}, written to a {place}",))


def sizes_of(geometry: Geometry, device_bytes: int = 0) -> Sizes:
    tensors = preset_tensors(geometry)
    arena_bytes = sum(2 * prod(t.shape) for t in tensors if is_expert(t))
    return Sizes(sum(2 * prod(t.shape) for t in tensors), arena_bytes, device_bytes)


def write_outline(directory: Path, geometry: Geometry) -> None:
    """Everything of a checkpoint but its weights."""
    files = {
        "config.json": config_json(geometry),
        "generation_config.json": generation_config_json(),
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": tokenizer_config_json(),
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")


def trained_source(model: Path | None, package: Path, label: str = "") -> ModelSource:
    """`model`, called `label`, where the user named one; else the trained model beside the checkout; else the embedded
    one."""
    if model is not None:
        return ModelSource(model, label or model.name)
    beside = _beside_checkout(package) / "models" / "small"
    if (beside / "config.json").is_file():
        return ModelSource(beside, "small", notes=("model: the small trained one beside the checkout",))
    note = "model: the embedded tiny one, because --model was not given; its numbers compare with its own only"
    return ModelSource(package / "models" / "data" / "tiny", "tiny", notes=(note,))


def text_file(text: Path | None, package: Path) -> tuple[Path | None, str]:
    """The file of documents by domain, and where it comes from; None: the package's own source is the text."""
    if text is not None:
        return text, f"text: {text.name}"
    beside = _beside_checkout(package) / "text" / "eval.json"
    if beside.is_file():
        return beside, "text: held-out text by domain, beside the checkout"
    return None, "text: the package's own source, because --text was not given"


def _beside_checkout(package: Path) -> Path:
    """The folder `shared` next to the checkout that `package` (src/moesaic) is in."""
    return package.parent.parent.parent / "shared"
