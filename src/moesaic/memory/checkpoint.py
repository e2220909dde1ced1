"""A Hugging Face checkpoint directory, opened and checked from its headers alone: no torch, no bytes of tensors.

Everything that can be wrong with a checkpoint is refused here, before anything is allocated: one line that names the
file or the tensor and says how to mend it. Weights are safetensors only: reading a pickle can run code. Keys that
ask for code from the checkpoint (auto_map) are never looked at.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moesaic.core.errors import UserError
from moesaic.core.model import TensorSpec
from moesaic.memory.safetensors_header import TensorEntry, read_header, shown

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LOADABLE_DTYPES = ("BF16", "F16", "F32")
MAX_JSON_BYTES = 64 << 20

_TEMPLATES = "additional_chat_templates"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_FETCH_AGAIN = "fetch the checkpoint again"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory whose files agree with each other. `entries` holds every tensor of every shard by name."""

    directory: Path
    config: Mapping[str, Any]
    entries: Mapping[str, TensorEntry]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Reads config.json, the index and every shard's header, and refuses what does not fit together (UserError)."""
    if not directory.is_dir():
        raise UserError(f"{directory}: is not a directory", "name a directory with config.json and model.safetensors")
    config = read_json(directory, CONFIG)
    if is_there(directory, SINGLE):
        entries = read_header(inside(directory, SINGLE))
    elif is_there(directory, INDEX):
        entries = _sharded(directory)
    else:
        _no_weights(directory)
    if not entries:
        raise UserError(f"{directory}: its safetensors files hold no tensor", _FETCH_AGAIN)
    return Checkpoint(directory, config, entries)


def check_tensors(checkpoint: Checkpoint, specs: Sequence[TensorSpec], ignored: Callable[[str], bool]) -> None:
    """The checkpoint holds each of `specs`, in its shape and a dtype we load, and nothing else but `ignored` names."""
    wanted = {spec.name: spec for spec in specs}
    missing = [name for name in wanted if name not in checkpoint.entries]
    if missing:
        raise UserError(
            f"{checkpoint.directory}: tensor {missing[0]} is missing{_more(missing)}",
            f"fetch the checkpoint again, or correct {CONFIG} if it describes another model",
        )
    unknown = [name for name in checkpoint.entries if name not in wanted and not ignored(name)]
    if unknown:
        entry = checkpoint.entries[unknown[0]]
        raise UserError(
            f"{entry.path}: tensor {shown(unknown[0])} is unknown to this model type{_more(unknown)}",
            f"leaving it out would change the model: correct {CONFIG}, or remove the tensor",
        )
    for name, spec in wanted.items():
        entry = checkpoint.entries[name]
        if entry.shape != spec.shape:
            raise UserError(
                f"{entry.path}: tensor {name} has shape {list(entry.shape)} but {CONFIG} asks for {list(spec.shape)}",
                f"correct {CONFIG}, or fetch the file that belongs to it",
            )
        if entry.dtype not in LOADABLE_DTYPES:
            raise UserError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}",
                f"supported: {', '.join(LOADABLE_DTYPES)}; take an unquantized release",
            )


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


# -- files ---------------------------------------------------------------------------------------------------
def inside(directory: Path, name: str) -> Path:
    """The regular file `name` of `directory`, resolved.

    A symbolic link may lead to another file in the same directory or under it, or to the blobs of the same hub cache
    entry, as the cache's snapshots do; a link to anywhere else is refused, so that a checkpoint names no file but its
    own.
    """
    path = directory / name
    root = directory.resolve()
    try:
        target = path.resolve(strict=True)
        mode = target.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{path}: is missing", _FETCH_AGAIN) from None
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be opened ({getattr(error, 'strerror', error)})", _FETCH_AGAIN) from None
    is_blob = root.parent.name == "snapshots" and target.parent == root.parent.parent / "blobs"
    if not is_blob and not target.is_relative_to(root):
        raise UserError(f"{path}: is a link that leaves the directory", "put the file itself there")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is not a regular file", _FETCH_AGAIN)
    return target


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """A JSON object out of `directory`; UserError where it is missing, broken or something else."""
    path = inside(directory, name)
    try:
        _small(path, directory / name)
        value = json.loads(path.read_bytes(), parse_constant=_no_constant)
    except OSError as error:
        raise UserError(f"{directory / name}: cannot be read ({error.strerror})", "check its permissions") from None
    except RecursionError:
        raise UserError(f"{directory / name}: is nested too deep", _FETCH_AGAIN) from None
    except UserError:
        raise
    except ValueError as error:
        detail = shown(str(error))
        raise UserError(f"{directory / name}: is not valid JSON ({detail})", _FETCH_AGAIN) from None
    if not isinstance(value, dict):
        raise UserError(f"{directory / name}: is not a JSON object", _FETCH_AGAIN)
    return value


def is_there(directory: Path, name: str) -> bool:
    """Whether `directory` has an entry `name`, of whatever kind: a dangling link counts."""
    return (directory / name).exists() or (directory / name).is_symlink()


def check_small_files(directory: Path, suffixes: Sequence[str]) -> None:
    """Every file with one of `suffixes`, chat templates in their folder too, is a regular file of the checkpoint's own
    and no larger than a JSON file may be: for readers that open files by names of their own. UserError names the one
    that is not."""
    for path in sorted((*directory.glob("*"), *directory.glob(f"{_TEMPLATES}/*"))):
        if path.name.endswith(tuple(suffixes)):
            _small(inside(directory, str(path.relative_to(directory))), path)


def _small(target: Path, path: Path) -> None:
    if target.stat().st_size > MAX_JSON_BYTES:
        raise UserError(f"{path}: is larger than {MAX_JSON_BYTES >> 20} MiB", _FETCH_AGAIN)


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _no_weights(directory: Path) -> None:
    names = sorted(entry.name for entry in os.scandir(directory))
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        raise UserError(
            f"{directory / pickles[0]}: is a pickle, and reading one can run code",
            "only safetensors are loaded: take the safetensors release, or save it as such with transformers",
        )
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        raise UserError(f"{directory}: has {shards[0]} but no {INDEX}", "fetch the index, it lists the shards")
    if any(name.endswith(".gguf") for name in names):
        raise UserError(f"{directory}: holds GGUF weights only", "take the safetensors release")
    raise UserError(f"{directory}: has neither {SINGLE} nor {INDEX}", _FETCH_AGAIN)


def shard_names(directory: Path) -> dict[str, str]:
    """The index's map: tensor name -> file name, each a plain name within the directory."""
    weight_map = read_json(directory, INDEX).get("weight_map")
    index = directory / INDEX
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index}: has no weight_map", _FETCH_AGAIN)
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise UserError(f"{index}: weight_map of {shown(tensor)} is not a file name", _FETCH_AGAIN)
        if "/" in name or "\\" in name or name in ("", ".", "..") or not name.isprintable():
            raise UserError(
                f"{index}: weight_map names {shown(name)}, which is not a plain file name in the directory",
                "do not use this checkpoint unless you know who made it",
            )
        if not name.endswith(".safetensors"):
            raise UserError(
                f"{index}: weight_map names {shown(name)}, which is not a safetensors file",
                "only safetensors are loaded: other formats can run code",
            )
    return weight_map


def _sharded(directory: Path) -> dict[str, TensorEntry]:
    index = directory / INDEX
    weight_map = shard_names(directory)
    headers = {name: read_header(inside(directory, name)) for name in sorted(set(weight_map.values()))}
    for tensor, name in weight_map.items():
        if tensor not in headers[name]:
            raise UserError(f"{index}: puts tensor {shown(tensor)} in {name}, which lacks it", _FETCH_AGAIN)
    for name, header in headers.items():
        for tensor in header:
            if weight_map.get(tensor) != name:
                raise UserError(
                    f"{directory / name}: holds tensor {shown(tensor)}, which {INDEX} does not put there",
                    _FETCH_AGAIN,
                )
    return {tensor: headers[name][tensor] for tensor, name in weight_map.items()}
