"""Whole engines for tests: a budget in slots, greedy tokens with the logits they came from, the oracle's answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moesaic import LLM, SamplingParams
from moesaic.kernels.layout import QUANTIZED
from moesaic.memory.pages import PageLayout
from moesaic.specs import read_spec
from tests import oracle
from tests.paths import TINY as TINY
from tests.thresholds import LOGITS_FLOAT32


def num_experts(directory: Path) -> int:
    return read_spec(json.loads((directory / "config.json").read_text())).num_experts


def open_llm(directory: Path, slots: int | None = None, dtype: str = "float32", **options: Any) -> LLM:
    """`slots` expert slots on the device, no more and no less; None: as the options say."""
    if slots is not None:
        spec = read_spec(json.loads((directory / "config.json").read_text()))
        itemsize = 4 if dtype == "float32" else 2
        quantized = QUANTIZED.get(options.get("expert_format", "auto"))
        layout = PageLayout.cut(spec.hidden, spec.moe(spec.moe_layers[0]).intermediate, itemsize, quantized)
        options["expert_memory"] = slots * layout.expert_bytes
    llm = LLM(str(directory), dtype=dtype, **options)
    assert slots is None or llm.engine.parts.plan.budget.expert_slots == slots
    return llm


@dataclass
class Answer:
    tokens: list[int]
    logits: Tensor  # float32 [steps, vocab], on the CPU; batch 1 only


def answer(llm: LLM, prompt: Sequence[int], num_tokens: int) -> Answer:
    """Greedy tokens of one prompt and the logits of every step."""
    decoder, seen = llm.engine.parts.decoder, []
    plain = decoder.logits

    def recorded(hidden_RH: Tensor) -> Tensor:
        logits_RV = plain(hidden_RH)
        seen.append(logits_RV.cpu())
        return logits_RV

    decoder.logits = recorded
    try:
        (output,) = llm.generate([list(prompt)], greedy(num_tokens), use_tqdm=False)
    finally:
        del decoder.logits
    assert output.outputs[0].finish_reason == "length", output.outputs[0].error
    return Answer(list(output.outputs[0].token_ids), torch.cat(seen))


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=num_tokens, ignore_eos=True, repetition_penalty=1.0, detokenize=False
    )


class Oracle:
    """transformers' tokens and logits for one prompt of one checkpoint, in float32 on the CPU."""

    def __init__(self, directory: Path, prompt: Sequence[int], num_tokens: int) -> None:
        model = oracle.load(directory)
        self.prompt = list(prompt)
        self.greedy = oracle.greedy(model, prompt, num_tokens)
        logits = oracle.logits(model, [*prompt, *self.greedy.tokens])
        self.logits = logits[len(prompt) - 1 : -1]

    def check(self, actual: Answer) -> None:
        """Tokens equal, and logits within the float32 threshold as long as the tokens before them are."""
        oracle.check_greedy(actual.tokens, self.greedy)
        same = 0
        while same < len(actual.tokens) and actual.tokens[same] == self.greedy.tokens[same]:
            same += 1
        n = min(same + 1, len(actual.tokens))
        torch.testing.assert_close(actual.logits[:n], self.logits[:n], rtol=0, atol=LOGITS_FLOAT32)
