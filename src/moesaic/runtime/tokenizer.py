"""A checkpoint's tokenizer, chat template and generation defaults, read from its directory without running its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from moesaic.core.arguments import shown, token_ids
from moesaic.core.errors import UserError
from moesaic.core.sampling import GenerationDefaults, checked_number
from moesaic.memory.checkpoint import CONFIG, check_small_files, is_there, read_json

TOKENIZER, TOKENIZER_CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
_READ_BY_TRANSFORMERS = (".json", ".jinja", ".txt", ".model")  # whatever the names are that a tokenizer class asks for
_FETCH = "fetch the model's tokenizer files again"

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
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError("the prompt is not valid Unicode text", "leave out lone surrogates") from error
        return list(self.hf.encode(text))

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
    """The tokenizer in `directory`. UserError names the file that cannot be read. Nothing is fetched or executed, and
    no file outside the checkpoint is opened."""
    if not directory.is_dir():
        raise UserError(f"{directory} is no directory", "give a model directory")
    check_small_files(directory, _READ_BY_TRANSFORMERS)
    for name in (TOKENIZER_CONFIG, TOKENIZER):
        if is_there(directory, name):
            read_json(directory, name)
    from transformers import AutoTokenizer  # here, since it takes seconds to import

    try:
        hf = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
        tokenizer = TransformersTokenizer(hf, directory)
        hf.encode("a")  # a wrong length or token shows at the first use
        return tokenizer
    except Exception as error:  # a broken file raises whatever its reader met first, up to pyo3's own exceptions
        if not (directory / TOKENIZER).exists():
            raise UserError(f"{directory} has no {TOKENIZER} ({_one_line(error)})", _FETCH) from error
        what = f"{directory / _culprit(directory)}: cannot be read as part of a tokenizer ({_one_line(error)})"
        raise UserError(what, _FETCH) from error


def _culprit(directory: Path) -> str:
    """Which file made transformers fail: the first that its own reader refuses, else the one that holds the rest."""
    from tokenizers import Tokenizer as Reader
    from transformers import AutoConfig

    try:
        Reader.from_file(str(directory / TOKENIZER))
    except Exception:
        return TOKENIZER
    if is_there(directory, CONFIG):
        try:
            AutoConfig.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True)
        except Exception:
            return CONFIG
    return TOKENIZER_CONFIG if is_there(directory, TOKENIZER_CONFIG) else TOKENIZER


def read_generation_defaults(
    directory: Path, config: Mapping[str, Any], tokenizer_eos: int | None = None
) -> GenerationDefaults:
    """generation_config.json's defaults; neutral ones where the file is absent. UserError names file and field of a
    value that no request could have.

    Every end token counts: those of generation_config.json (of config.json where it names none) and the tokenizer's.
    """
    path = directory / GENERATION
    data = read_json(directory, GENERATION) if is_there(directory, GENERATION) else {}
    values: dict[str, Any] = {}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        value = data.get(name)
        if isinstance(value, float) and value.is_integer() and name == "top_k":
            value = int(value)
        values[name] = None if value is None else checked_number(name, value, f"{path}:")
    do_sample = data.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise UserError(f"{path}: do_sample is {shown(do_sample)}", "write true or false there")
    eos = _ids(data.get("eos_token_id"), path) or _ids(config.get("eos_token_id"), directory / CONFIG)
    if tokenizer_eos is not None and tokenizer_eos not in eos:
        eos += (tokenizer_eos,)
    return GenerationDefaults(do_sample=do_sample is True, eos_token_ids=eos, **values)


def _ids(value: object, path: Path) -> tuple[int, ...]:
    ids = token_ids(value if isinstance(value, list) else [] if value is None else [value])
    if ids is None or any(i < 0 for i in ids):
        raise UserError(f"{path}: eos_token_id is {shown(value)}", "write a token id or a list of them, from 0 on")
    return tuple(dict.fromkeys(ids))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
