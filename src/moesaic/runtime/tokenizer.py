"""A checkpoint's tokenizer, chat template and generation defaults, read from its directory without running its code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from moesaic.core.errors import UserError
from moesaic.core.sampling import GenerationDefaults

Message = Mapping[str, Any]  # {"role": ..., "content": ...}


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with the special tokens that the model wants around one (BOS)."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included, spaces untouched. Ids that no token has give no text."""
        ...

    def textless(self, vocab: int) -> frozenset[int]:
        """Ids below `vocab` that no token has."""
        ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Ids of a conversation after the model's chat template."""
        ...


class TransformersTokenizer:
    """`transformers`' tokenizer as the engine wants it. `hf` is the tokenizer itself."""

    def __init__(self, hf: Any, directory: Path) -> None:
        self.hf = hf
        self._directory = directory
        self._special = frozenset(int(i) for i in hf.all_special_ids) | frozenset(
            int(i) for i, token in hf.added_tokens_decoder.items() if token.special
        )
        self._known = frozenset(int(i) for i in hf.get_vocab().values())

    @property
    def eos_token_id(self) -> int | None:
        eos = self.hf.eos_token_id
        return None if eos is None else int(eos)

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special

    def textless(self, vocab: int) -> frozenset[int]:
        return frozenset(range(vocab)) - self._known

    def encode(self, text: str) -> list[int]:
        try:
            return list(self.hf.encode(text))
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError("a prompt is not valid Unicode text", "leave out lone surrogates") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        known = [i for i in token_ids if i in self._known]
        return str(self.hf.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        if not self.hf.chat_template:
            raise UserError(
                f"{self._directory}: the tokenizer has no chat template", "use generate() with a plain prompt"
            )
        try:
            text = self.hf.apply_chat_template(
                list(messages), tokenize=False, **{"add_generation_prompt": True, **options}
            )
        except Exception as error:  # templates raise whatever they like
            raise UserError(f"{self._directory}: the chat template refused the messages", _one_line(error)) from error
        return list(self.hf.encode(text, add_special_tokens=False))  # the template has written them


def load_tokenizer(directory: Path) -> TransformersTokenizer:
    """The tokenizer in `directory`. UserError names the file that cannot be read. Nothing is fetched or executed."""
    if not directory.is_dir():
        raise UserError(f"{directory} is no directory", "give a model directory")
    for name in ("tokenizer_config.json", "tokenizer.json"):
        _read_json(directory / name)
    from transformers import AutoTokenizer  # here, since it takes seconds to import

    try:
        hf = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
        return TransformersTokenizer(hf, directory)
    except Exception as error:  # a broken file raises whatever its reader met first, up to pyo3's own exceptions
        file = directory / "tokenizer.json"
        what = f"{file} cannot be read as a tokenizer" if file.exists() else f"{directory} has no tokenizer.json"
        raise UserError(f"{what} ({_one_line(error)})", "download the model's tokenizer files again") from error


def read_generation_defaults(
    directory: Path, config: Mapping[str, Any], tokenizer_eos: int | None = None
) -> GenerationDefaults:
    """generation_config.json's defaults; neutral ones where the file is absent.

    Every end token counts: those of generation_config.json (of config.json where it names none) and the tokenizer's.
    """
    path = directory / "generation_config.json"
    data = _read_json(path) or {}
    values: dict[str, Any] = {}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        value = data.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise UserError(f"{path}: {name} is {value!r}", "write a number there, or remove the line")
        values[name] = value
    eos = _ids(data.get("eos_token_id"), path) or _ids(config.get("eos_token_id"), directory / "config.json")
    if tokenizer_eos is not None and tokenizer_eos not in eos:
        eos += (tokenizer_eos,)
    return GenerationDefaults(do_sample=data.get("do_sample") is True, eos_token_ids=eos, **values)


def _ids(value: object, path: Path) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise UserError(f"{path}: eos_token_id is {value!r}", "write a token id or a list of them there")
    return tuple(dict.fromkeys(ids))


def _read_json(path: Path) -> dict[str, Any] | None:
    """The file's object, None where there is no file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({_one_line(error)})", "download the file again") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no JSON object", "download the file again")
    return data


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
