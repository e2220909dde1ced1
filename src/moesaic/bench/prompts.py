"""What a workload feeds: seeded random tokens, or the beginnings of documents by domain."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moesaic.core.errors import UserError

Documents = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Prompt:
    domain: str
    token_ids: tuple[int, ...]


def random_prompt(vocab: int, num_tokens: int, seed: int) -> Prompt:
    """Uniform tokens; id 0, which our random checkpoints use as their end token, is left out."""
    chance = random.Random(seed)
    return Prompt("random", tuple(chance.randrange(1, vocab) for _ in range(num_tokens)))


def text_prompts(documents: Documents, encode: Callable[[str], Sequence[int]], num_tokens: int) -> tuple[Prompt, ...]:
    """One prompt per domain: its first document with `num_tokens` tokens, cut there; where none is that long, its
    documents one after the other. UserError names a domain whose text is too short altogether."""
    prompts = []
    for domain, texts in documents.items():
        joined: list[int] = []
        for text in texts:
            ids = encode(text)
            if len(ids) >= num_tokens:
                joined = list(ids)
                break
            joined += ids
        if len(joined) < num_tokens:
            raise UserError(
                f"text of domain {domain!r} has {len(joined)} tokens, the workload's prompt takes {num_tokens}",
                "give longer documents with --text",
            )
        prompts.append(Prompt(domain, tuple(joined[:num_tokens])))
    return tuple(prompts)


def read_documents(path: Path) -> Documents:
    """A JSON file {domain: [document, ...]}. UserError names the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"text file {path}: {error.strerror}", "give a JSON file {domain: [document, ...]}") from error
    except ValueError as error:
        raise UserError(f"text file {path}: no JSON: {error}", "give a JSON file {domain: [document, ...]}") from error
    is_right = isinstance(data, dict) and all(
        isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts) for texts in data.values()
    )
    if not is_right or not data:
        raise UserError(f"text file {path}: not of the form {{domain: [document, ...]}}", "bring it to that form")
    return data


def own_documents(package: Path) -> Documents:
    """The package's own source, for when nobody brings text: technical English and code, as the embedded model
    was trained on."""
    files = sorted(package.rglob("*.py"), key=lambda path: (-path.stat().st_size, path.name))
    return {"code": [path.read_text(encoding="utf-8") for path in files]}
