"""Where a model is on this machine: a directory, or an entry of the hub cache. Nothing is ever downloaded."""

from __future__ import annotations

import re
from pathlib import Path

from moesaic.core.arguments import shown
from moesaic.core.errors import UserError
from moesaic.memory.checkpoint import CONFIG, INDEX, SINGLE, shard_names

_PART = r"[A-Za-z0-9][\w.-]*"
_LONGEST_ID = 200  # the hub allows 96 characters
_HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}")


def resolve_model(model: str, cache: Path | None = None) -> Path:
    """The directory that `model` means: a local directory, or a hub id's snapshot in the hub cache.

    `cache` defaults to the hub library's own (HF_HUB_CACHE, or hub under HF_HOME). A snapshot must be complete:
    UserError names the file it lacks and the command that fetches it.
    """
    try:
        path = Path(model).expanduser()
        is_directory, is_file = path.is_dir(), path.exists()
    except (OSError, RuntimeError):  # a name too long for any file; the home of a user who is not there
        is_directory = is_file = False
    if model and is_directory:
        return path
    if model and is_file:
        raise UserError(f"{model}: is a file", "name the directory that holds config.json and the weights")
    if not _HUB_ID.fullmatch(model) or ".." in model or len(model) > _LONGEST_ID:
        raise UserError(f"model {shown(model)}: no such directory and no hub id", "name one or the other (org/name)")
    if cache is None:
        # the hub library owns these paths and the variables that move them
        from huggingface_hub.constants import HF_HUB_CACHE

        cache = Path(HF_HUB_CACHE)
    repository = cache / f"models--{model.replace('/', '--')}"
    if not repository.is_dir():
        raise UserError(f"{model}: neither a directory here nor in the hub cache {cache}", f"run: hf download {model}")
    snapshot = _snapshot(model, repository)
    missing = missing_file(snapshot)
    if missing is not None:
        raise UserError(f"{model}: its copy in the hub cache lacks {missing}", f"run: hf download {model}")
    return snapshot


def _snapshot(model: str, repository: Path) -> Path:
    reference = repository / "refs" / "main"
    try:
        revision = reference.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        raise UserError(f"{model}: the hub cache has no {reference}", f"run: hf download {model}") from None
    snapshot = repository / "snapshots" / revision
    if not re.fullmatch(r"[\w.-]+", revision) or ".." in revision or not snapshot.is_dir():
        raise UserError(f"{model}: {reference} names a snapshot that is not there", f"run: hf download {model}")
    return snapshot


def missing_file(directory: Path) -> str | None:
    """The first file that a download left out, or None. A dangling link counts as left out."""
    if not (directory / CONFIG).exists():
        return CONFIG
    if (directory / SINGLE).exists():
        return None
    if not (directory / INDEX).exists():
        # other formats are open_checkpoint's to refuse: it says why
        others = any(p.suffix in (".bin", ".pt", ".pth", ".gguf") for p in directory.iterdir())
        return None if others else SINGLE
    shards = sorted(set(shard_names(directory).values()))
    return next((name for name in shards if not (directory / name).exists()), None)
