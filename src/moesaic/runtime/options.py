"""What an engine is asked for: the one owner of every default. `LLM(...)` and the command line's flags come from it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from moesaic.core.errors import UserError
from moesaic.core.units import parse_bytes

LOAD_FORMATS = ("auto", "dummy")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine. Sizes are text such as "6GiB" or bytes; None means: as much as is free."""

    model: str
    dtype: str = field(default="auto", metadata={"help": "auto (the checkpoint's own), float32, bfloat16 or float16."})
    device: str = field(default="auto", metadata={"help": "auto, cpu, cuda or cuda:<n>."})
    device_memory: str | int | None = field(
        default=None,
        metadata={"help": "Most that may ever be held on the device, such as 6GiB.", "flags": ("--gpu-memory",)},
    )
    expert_memory: str | int | None = field(
        default=None,
        metadata={"help": "Most of it for experts: a size, or a share of all expert bytes such as 40%."},
    )
    host_memory: str | int | None = field(
        default=None, metadata={"help": "Most that the experts may take on the host, such as 24GiB."}
    )
    max_model_len: int | None = field(
        default=None, metadata={"help": "Tokens of prompt and output together (default: the model's context)."}
    )
    max_num_seqs: int = field(default=8, metadata={"help": "Sequences that run at once."})
    max_num_batched_tokens: int = field(
        default=512, metadata={"help": "Tokens of one step: longer prompts are read in parts."}
    )
    assignment: str = field(
        default="auto",
        metadata={"help": "Where experts run: auto, all_on_device, fetch_misses or cpu_misses."},
    )
    eviction: str = field(default="lru", metadata={"help": "Which expert leaves the device: lru, fifo or lfu."})
    cache: str = field(default="auto", metadata={"help": "Device expert cache: auto, or sets and ways such as 4x16."})
    seed: int = field(default=0, metadata={"help": "Of requests that have no seed of their own.", "cli": "engine_seed"})
    load_format: str = field(default="auto", metadata={"help": "auto, or dummy: random weights without reading any."})
    trace: str | None = field(default=None, metadata={"help": "Write a Chrome/Perfetto timeline to this file."})

    def __post_init__(self) -> None:
        _one_of("load_format", self.load_format, LOAD_FORMATS)
        for name in ("device_memory", "host_memory"):
            value = getattr(self, name)
            if value is not None:
                parse_bytes(value, name)
        if self.expert_memory is not None:
            share_bytes(self.expert_memory, 1, "expert_memory")
        for name, least in (("max_model_len", 2), ("max_num_seqs", 1), ("max_num_batched_tokens", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise UserError(f"{name} is {value!r}", f"give a whole number from {least}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}",
                "every running sequence takes a token of a step: raise it, or lower max_num_seqs",
            )
        cache_shape(self.cache)

    @classmethod
    def of(cls, model: str, **options: Any) -> EngineOptions:
        """Options from keyword arguments. An unknown name is a UserError that names close ones."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise UserError(f"unknown option {name!r}", _did_you_mean(name, known))
        return cls(model, **options)


def cache_shape(text: str) -> tuple[int, int] | None:
    """(sets, ways) of "4x16"; None of "auto". UserError for anything else."""
    if text == "auto":
        return None
    sets, x, ways = text.lower().partition("x")
    if not (x and sets.isdecimal() and ways.isdecimal() and int(sets) and int(ways)):
        raise UserError(f"cache {text!r} is no shape", "write auto, or sets and ways such as 4x16")
    return int(sets), int(ways)


def share_bytes(text: str | int, whole_bytes: int, name: str) -> int:
    """Bytes of "40%" of `whole_bytes`, or of a size such as "6GiB" (`whole_bytes` is no limit to it)."""
    if isinstance(text, str) and text.strip().endswith("%"):
        try:
            share = float(text.strip()[:-1])
        except ValueError:
            share = -1.0
        if not 0 < share <= 100:
            raise UserError(f"{name} {text!r} is no share", "write a size, or a share from 0% to 100% such as 40%")
        return int(whole_bytes * share / 100)
    return parse_bytes(text, name)


# Names that scripts written for other engines pass, and what says the same here.
_ELSEWHERE = {
    "gpu_memory_utilization": "device_memory takes a size such as 6GiB, not a share",
    "cpu_offload_gb": "experts that do not fit device_memory stay on the host by themselves",
    "trust_remote_code": "code from a checkpoint is never run",
    "tokenizer": "the tokenizer is read from the model's directory",
    "tensor_parallel_size": "one device is used in this version",
}


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}", f"known: {', '.join(known)}")
