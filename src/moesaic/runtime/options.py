"""What an engine is asked for: the one owner of every default. `LLM(...)` and the command line's flags come from it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from moesaic.core.arguments import names_checked, shown, whole
from moesaic.core.errors import UserError
from moesaic.core.units import parse_bytes
from moesaic.kernels.layout import QUANTIZED

LOAD_FORMATS = ("auto", "dummy")

# Names that scripts written for other engines pass, and what says the same here.
_ELSEWHERE = {
    "gpu_memory_utilization": "device_memory takes a size such as 6GiB, not a share",
    "cpu_offload_gb": "experts that do not fit device_memory stay on the host by themselves",
    "trust_remote_code": "code from a checkpoint is never run",
    "tokenizer": "the tokenizer is read from the model's directory",
    "tensor_parallel_size": "one device is used in this version",
}


@names_checked("option", _ELSEWHERE)
@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine. Sizes are text such as "6GiB" or bytes; None means: as much as is free."""

    model: str
    dtype: str = field(default="auto", metadata={"help": "auto (the checkpoint's own), float32, bfloat16 or float16."})
    expert_format: str = field(
        default="auto",
        metadata={
            "help": "How experts are stored: auto (as dtype says), or quantized while they load: int8, int4 (groups of "
            "64; also int4-32, int4-128, and int4-64-zp with zero points), fp8 or mxfp4."
        },
    )
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
        metadata={"help": "Where experts run: auto, all_on_device, fetch_misses, cpu_misses or cpu_only."},
    )
    eviction: str = field(default="lru", metadata={"help": "Which expert leaves the device: lru, fifo or lfu."})
    cache: str = field(default="auto", metadata={"help": "Device expert cache: auto, or sets and ways such as 4x16."})
    seed: int = field(default=0, metadata={"help": "Of requests that have no seed of their own.", "cli": "engine_seed"})
    load_format: str = field(default="auto", metadata={"help": "auto, or dummy: random weights without reading any."})
    trace: str | None = field(default=None, metadata={"help": "Write a Chrome/Perfetto timeline to this file."})

    def __post_init__(self) -> None:
        for name, value in self._plain_texts():
            object.__setattr__(self, name, value)
        _one_of("load_format", self.load_format, LOAD_FORMATS)
        _one_of("expert_format", self.expert_format, ("auto", *QUANTIZED))
        for name in ("device_memory", "host_memory"):
            value = getattr(self, name)
            if value is not None:
                parse_bytes(value, name)
        if self.expert_memory is not None:
            share_bytes(self.expert_memory, 1, "expert_memory")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == "max_model_len":
                continue
            plain = whole(value)
            if plain is None or not least <= plain <= most:
                raise UserError(f"{name} is {shown(value)}", f"give a whole number from {least} to {most}")
            object.__setattr__(self, name, plain)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}",
                "every running sequence takes a token of a step: raise it, or lower max_num_seqs",
            )
        cache_shape(self.cache)

    def _plain_texts(self) -> Iterator[tuple[str, str]]:
        """Every text as a `str`: paths, and torch's own dtypes and devices, are taken by their names."""
        for name in ("model", "dtype", "device", "expert_format", "assignment", "eviction", "cache", "load_format"):
            value = getattr(self, name)
            if isinstance(value, os.PathLike) and name == "model":
                value = str(Path(value))
            elif type(value).__module__ == "torch" and name in ("dtype", "device"):
                value = str(value).removeprefix("torch.")
            if not isinstance(value, str) or not value:
                fix = "name a model's directory or hub id" if name == "model" else "give a text"
                raise UserError(f"{name} is {shown(value)}", fix)
            yield name, value
        if self.trace is not None:
            if not isinstance(self.trace, (str, os.PathLike)) or not os.fspath(self.trace):
                raise UserError(f"trace is {shown(self.trace)}", "name a file to write the timeline to")
            yield "trace", str(self.trace)


# name -> least and most. The upper ends are far above what runs well; what a step needs is allocated for that many.
_RANGES = {
    "max_model_len": (2, 1 << 31),
    "max_num_seqs": (1, 1 << 12),
    "max_num_batched_tokens": (1, 1 << 16),
    "seed": (-(1 << 63), (1 << 64) - 1),
}


def cache_shape(text: str) -> tuple[int, int] | None:
    """(sets, ways) of "4x16"; None of "auto". UserError for anything else."""
    if text == "auto":
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})[xX]([1-9]\d{0,8})", text, re.ASCII)
    if match is None:
        raise UserError(f"cache {shown(text)} is no shape", "write auto, or sets and ways such as 4x16")
    return int(match.group(1)), int(match.group(2))


def share_bytes(text: str | int, whole_bytes: int, name: str) -> int:
    """Bytes of "40%" of `whole_bytes`, or of a size such as "6GiB" (`whole_bytes` is no limit to it)."""
    if isinstance(text, str) and text.strip().endswith("%"):
        try:
            share = float(text.strip()[:-1])
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            raise UserError(f"{name} {shown(text)} is no share", "write a share from 0% to 100%, or a size")
        return int(whole_bytes * share / 100)
    if re.fullmatch(r"0?\.\d+", str(text)) and float(text):
        raise UserError(f"{name} {shown(text)} is no share", f"write it as {100 * float(text):g}%")
    return parse_bytes(text, name)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}", f"known: {', '.join(known)}")
