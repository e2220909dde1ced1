"""A decoder of no weights whose answer depends on every earlier token through the paged cache, and an engine over it.

The next token's logits are a fixed function of the sequence so far, so what a request must give is known without an
engine. A wrong slot, table, position or context length changes the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec
from moesaic.core.sampling import GenerationDefaults
from moesaic.core.timeline import Timeline
from moesaic.kernels.api import PagedKV, Routing
from moesaic.memory.kv import KVBlocks
from moesaic.models.base import StepBatch, StepRun
from moesaic.runtime.engine import Engine, EngineLimits, EngineParts

VOCAB = 300
POISON = 7.0e8  # what unwritten cache slots hold
NAN_TOKEN = 299  # a sequence that holds it has NaN logits


def history_hash(tokens: Sequence[int]) -> float:
    value = 0
    for position, token in enumerate(tokens):
        value = (value * 31 + token * (position + 7) + 1) % 1_000_003
    return float("nan") if NAN_TOKEN in tokens else float(value)


def toy_logits(hash_R: Tensor) -> Tensor:
    """float32 [R, VOCAB] of float64 hashes [R]."""
    token_V = torch.arange(1, VOCAB + 1, dtype=torch.float64)
    logits_RV = (3 * torch.sin(hash_R.double()[:, None] * token_V * 0.37)).float()
    logits_RV[:, NAN_TOKEN] -= 100.0  # never drawn: only prompts hold it
    return logits_RV


def greedy_reference(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(toy_logits(torch.tensor([history_hash(tokens)]))[0].argmax()))
    return tokens[len(prompt) :]


def toy_spec() -> ModelSpec:
    attention = AttentionSpec(1, 1, 1, 10000.0)
    return ModelSpec("toy", 1, VOCAB, attention, (MoESpec(1, 1, 1, "toy"),), 1e-5, 1024, True)


class ToyDecoder:
    def __init__(self) -> None:
        self.spec = toy_spec()
        self.failures: list[BaseException | None] = []  # what the next forward calls raise

    def forward(self, batch: StepBatch, run: StepRun) -> Tensor:
        failure = self.failures.pop(0) if self.failures else None
        [kv] = batch.kv
        kv.keys.flatten()[batch.slot_T] = batch.token_ids_T.double()
        if failure is not None:
            raise failure
        assert len(set(batch.slot_T.tolist())) == batch.slot_T.numel(), "slots are distinct"
        hashes: list[float] = []
        block_tokens = kv.keys.shape[1]
        for r, length in enumerate(batch.ragged.context_lens):
            start, end = batch.ragged.query_starts[r : r + 2]
            table = batch.ragged.block_table_RW[r].tolist()
            cached = [kv.keys[table[t // block_tokens], t % block_tokens].item() for t in range(length)]
            assert POISON not in cached, "the context was never written"
            positions = batch.positions_T[start:end].tolist()
            assert positions == list(range(length - (end - start), length))
            hashes += [history_hash([int(t) for t in cached[: p + 1]]) for p in positions]
        return torch.tensor(hashes, dtype=torch.float64)[:, None]

    def logits(self, hidden_RH: Tensor) -> Tensor:
        return toy_logits(hidden_RH[:, 0])


@dataclass
class ToyRun:
    begun: int = 0
    ended: int = 0
    resets: int = 0
    steps: list[tuple[int, int, int]] = field(default_factory=list)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        yield

    def experts(self, layer: int, x_TH: Tensor, routing: Routing) -> Tensor:
        raise AssertionError("the toy has no experts")

    def begin_step(self, num_tokens: int, context_tokens: int, num_logits: int) -> None:
        assert self.begun == self.ended
        self.begun += 1
        self.steps.append((num_tokens, context_tokens, num_logits))

    def end_step(self) -> Timeline:
        self.ended += 1
        return ()

    def reset(self) -> None:
        self.resets += 1


class LetterTokenizer:
    """Ids 0 to 255 are characters; 256 and above are special, written <id>; 290 and above do not exist."""

    eos_token_id = 256
    special_ids = frozenset(range(256, 290))

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(i) if i < 256 else f"<{i}>" if i < 290 else "" for i in token_ids)

    def textless(self, vocab: int) -> frozenset[int]:
        return frozenset(range(290, vocab))

    def chat(self, messages: Sequence[Any], **options: Any) -> list[int]:
        return self.encode("".join(f"{m['role']}:{m['content']};" for m in messages))


def toy_engine(
    num_blocks: int = 64, block_tokens: int = 4, max_model_len: int = 200, tokenizer: bool = True, **changes: Any
) -> Engine:
    """An engine over the toy; `changes` are EngineParts fields or EngineLimits fields."""
    limits = {k: changes.pop(k) for k in ("max_num_seqs", "max_num_batched_tokens") if k in changes}
    keys = torch.full((num_blocks, block_tokens, 1, 1), POISON, dtype=torch.float64)
    return Engine(
        EngineParts(
            **{
                "decoder": ToyDecoder(),
                "kv": [PagedKV(keys, keys.clone())],
                "kv_blocks": KVBlocks(num_blocks, block_tokens),
                "tokenizer": LetterTokenizer() if tokenizer else None,
                "device": torch.device("cpu"),
                "run": ToyRun(),
                "limits": EngineLimits(max_model_len, **limits),
                "defaults": GenerationDefaults(),
                **changes,
            }
        )
    )
