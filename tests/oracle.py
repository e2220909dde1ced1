"""transformers as the oracle: logits and greedy tokens of a checkpoint directory.

Reference models always come from saved files through from_pretrained: a fresh model cast to bf16 also rounds what
from_pretrained would keep in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel


@dataclass(frozen=True)
class Greedy:
    """Greedy tokens, and by how much each one's logit led the runner-up's."""

    tokens: list[int]
    margins: list[float]


def load(directory: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager", local_files_only=True
    )
    model.generation_config.eos_token_id = None  # end-of-text is a token like any other here
    return model.to(device).eval()


@torch.inference_mode()
def logits(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """float32 [tokens, vocab] of one sequence, by one full forward pass, on the CPU."""
    ids = torch.tensor([list(token_ids)], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[0].float().cpu()


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> Greedy:
    """`num_tokens` greedy tokens after `prompt`, end-of-text ignored, by transformers' own generate."""
    answer = model.generate(
        torch.tensor([list(prompt)], device=model.device),
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=num_tokens, output_logits=True, return_dict_in_generate=True
        ),
    )
    assert answer.sequences.shape[1] == len(prompt) + num_tokens
    best = torch.cat(answer.logits).float().topk(2).values.cpu()
    return Greedy(answer.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist())


def check_greedy(actual: Sequence[int], expected: Greedy, margin: float = 1e-3) -> None:
    """Tokens must be equal up to the first place where the oracle's own lead is below `margin`: from there on two
    right implementations may go different ways."""
    for i, (ours, theirs) in enumerate(zip(actual, expected.tokens, strict=True)):
        if expected.margins[i] < margin:
            return
        assert ours == theirs, f"token {i}: {ours} instead of {theirs}, lead {expected.margins[i]:.4f}"
