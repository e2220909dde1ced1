"""What a request gives back: names and fields as in vLLM, so that scripts written for it read it unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Logprob(NamedTuple):
    """A token's log-probability under the raw logits. `rank` counts from 1, the likeliest token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobMap = dict[int, Logprob]  # token id -> its logprob: the likeliest ones and the chosen one


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of a request's `n` continuations, as far as it has come.

    `text` and `token_ids` grow from output to output; `delta` is the text since the output before. `finish_reason`:
    None while it runs, "stop" (end token, stop text or stop token), "length", "abort" or "error"; `stop_reason` is
    the stop text or stop token id that ended it, None for the model's own end token. `error` says what went wrong.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[LogprobMap] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    delta: str = ""
    error: str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Seconds on the process's monotonic clock; None where it has not happened yet."""

    arrival_s: float
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's state after a step. `prompt` is None where token ids were given; `prompt_logprobs` has one entry a
    prompt token, None for the first, and is complete from the first output on."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[LogprobMap | None] | None = None
    metrics: RequestMetrics | None = None
