"""Prompts from the command line: read with a bound, and refused before any weight is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from moesaic.core.errors import UserError
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.options import EngineOptions

MAX_PROMPT_BYTES = 64 << 20  # far more than any model's context


def read_prompts(texts: Sequence[str], files: Sequence[str]) -> list[str]:
    """The prompts, texts first. A file's last line end is not part of its prompt."""
    if [*texts, *files].count("-") > 1:
        raise UserError("stdin (-) is named more than once", "give it one time")
    prompts = [_read_stdin() if text == "-" else text for text in texts]
    prompts += [_read_stdin() if name == "-" else _read_file(Path(name)) for name in files]
    if not prompts:
        raise UserError("no prompt", "give -p TEXT, or --prompt-file FILE")
    return prompts


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UserError("the prompt is to come from stdin, which is closed", "give -p TEXT, or --prompt-file FILE")
    return _read(sys.stdin.buffer, "the prompt on stdin")


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _read(file, f"prompt file {path}")
    except OSError as error:
        raise UserError(f"prompt file {path}: {error.strerror}", "give a file that can be read") from error


def _read(file: BinaryIO, where: str) -> str:
    data = file.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise UserError(f"{where} is longer than {MAX_PROMPT_BYTES >> 20} MiB", "shorten it")
    try:
        return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text", "convert it") from error


def check_prompts(options: EngineOptions, prompts: Sequence[str], params: SamplingParams) -> None:
    """UserError for a prompt, or a parameter, that the model can never run. Reads its config.json and tokenizer, which
    takes a blink, where loading the weights may take minutes; the engine checks again, against its own cache."""
    from moesaic.memory.checkpoint import read_json
    from moesaic.memory.hub import resolve_model
    from moesaic.runtime.requests import RequestLimits, check_request
    from moesaic.runtime.tokenizer import load_tokenizer, read_generation_defaults
    from moesaic.specs import read_spec

    directory = resolve_model(options.model)
    config = read_json(directory, "config.json")
    spec = read_spec(config)
    tokenizer = load_tokenizer(directory)
    filled = read_generation_defaults(directory, config, tokenizer.eos_token_id).fill(params)
    context_tokens = options.max_model_len or spec.max_positions
    limits = RequestLimits(context_tokens, context_tokens, spec.vocab)
    for number, prompt in enumerate(prompts):
        try:
            check_request(tokenizer.encode(prompt), filled, limits)
        except UserError as error:
            if len(prompts) == 1:
                raise
            raise UserError(f"prompt {number}: {error.what}", error.fix) from error
