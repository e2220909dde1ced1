"""A request on its way: its sequences, what ends them, and the outputs they make. No tensors here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moesaic.core.arguments import shown
from moesaic.core.errors import UserError
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.detokenizer import Detokenizer, StopChecker
from moesaic.runtime.outputs import CompletionOutput, Logprob, LogprobMap, RequestMetrics, RequestOutput
from moesaic.runtime.sampler import Sampled, SampleRow, TokenLogprobs
from moesaic.runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """`max_model_len` tokens of prompt and output together; `kv_tokens` is what the whole KV cache holds."""

    max_model_len: int
    kv_tokens: int
    vocab: int

    @property
    def context_tokens(self) -> int:
        return min(self.max_model_len, self.kv_tokens)


class Vocabulary(NamedTuple):
    """What turns ids into text: the tokenizer (None: there is none, outputs have no text), the model's end tokens,
    and ids without text of their own."""

    tokenizer: Tokenizer | None
    eos_token_ids: frozenset[int]
    special_ids: frozenset[int]
    textless_ids: frozenset[int]


class SequenceState:
    """One continuation of a request. `tokens` holds prompt and output; `num_computed` of them are in the KV cache."""

    def __init__(self, request: Request, index: int, seq_id: int, draws: random.Random) -> None:
        self.request = request
        self.index = index
        self.seq_id = seq_id
        self.tokens = list(request.prompt_token_ids)
        self.num_computed = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.logprobs: list[LogprobMap] = []
        self.cumulative_logprob = 0.0
        self._draws = draws
        self._text = ""
        self._delta = ""
        params, vocabulary = request.params, request.vocabulary
        self._end_ids = frozenset(params.stop_token_ids or ())
        if not params.ignore_eos:
            self._end_ids |= vocabulary.eos_token_ids
        self._stops = StopChecker(params.stop_strings, params.include_stop_str_in_output)
        self._detokenizer: Detokenizer | None = None
        if vocabulary.tokenizer is not None and params.detokenize:
            skipped = vocabulary.textless_ids
            if params.skip_special_tokens:
                skipped |= vocabulary.special_ids
            self._detokenizer = Detokenizer(vocabulary.tokenizer.decode, skipped)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def sample_row(self) -> SampleRow:
        """What the sampler needs for the next token. Takes one number of the request's own stream of draws."""
        params = self.request.params
        return SampleRow(
            params,
            self.request.prompt_token_ids,
            self.tokens[self.num_prompt :],
            self._end_ids,
            0.0 if params.greedy else self._draws.random(),
        )

    def accept(self, sampled: Sampled) -> None:
        """Appends the token, its text and log-probabilities, and ends the sequence where it is time."""
        token_id = sampled.token_id
        if token_id is None:
            self.fail(f"the logits of output token {self.num_output} hold NaN or infinity")
            return
        self.tokens.append(token_id)
        if sampled.logprobs is not None:
            self.logprobs.append(self.request.logprob_map(token_id, sampled.logprobs))
            self.cumulative_logprob += sampled.logprobs.logprob
        self._read(token_id)

    def _read(self, token_id: int) -> None:
        params = self.request.params
        if token_id in self._end_ids:
            eos = not params.ignore_eos and token_id in self.request.vocabulary.eos_token_ids
            self.finish_reason, self.stop_reason = "stop", None if eos else token_id
            if params.include_stop_str_in_output:
                self._push(token_id)
        else:
            self._push(token_id)
            if self.finish_reason is None and self.num_output >= self.request.max_output:
                self.finish_reason = "length"
        if self.finish_reason is not None:
            self._delta += self._stops.flush()

    def _push(self, token_id: int) -> None:
        if self._detokenizer is None:
            return
        text = self._detokenizer.push(token_id)
        given, match = self._stops.push(text, armed=self.num_output > self.request.params.min_tokens)
        self._delta += given
        if match is not None and self.finish_reason is None:
            self.finish_reason, self.stop_reason = "stop", match.stop

    def fail(self, error: str) -> None:
        self.finish_reason, self.error = "error", error
        self._delta += self._stops.flush()

    def abort(self) -> None:
        self.finish_reason = "abort"
        self._delta += self._stops.flush()

    def output(self) -> CompletionOutput:
        """The state so far; the text since the last call is its delta."""
        delta, self._delta = self._delta, ""
        self._text += delta
        asked = self.request.params.logprobs is not None
        return CompletionOutput(
            index=self.index,
            text=self._text,
            token_ids=self.tokens[self.num_prompt :],
            cumulative_logprob=self.cumulative_logprob if asked else None,
            logprobs=list(self.logprobs) if asked else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            delta=delta,
            error=self.error,
        )


class Request:
    """A prompt, its filled params and its `n` sequences. Build one with `check_request` and `start`."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        vocabulary: Vocabulary,
        limits: RequestLimits,
        arrival_s: float,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = list(prompt_token_ids)
        self.params = params
        self.vocabulary = vocabulary
        self.arrival_s = arrival_s
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        room = limits.context_tokens - len(self.prompt_token_ids)
        self.max_output = room if params.max_tokens is None else min(params.max_tokens, room)
        self.sequences: list[SequenceState] = []
        self._prompt_logprobs: list[LogprobMap | None] = [None]

    def start(self, first_seq_id: int, seed: str) -> None:
        """Makes the sequences, each with its own draws: of the request's own seed, else of `seed`, and its index."""
        if self.params.seed is not None:
            seed = str(self.params.seed)
        for i in range(self.params.n):
            # a text: of a whole number the generator takes the absolute value, and neighbours would meet
            draws = random.Random(f"{seed}.{i}")
            self.sequences.append(SequenceState(self, i, first_seq_id + i, draws))

    @property
    def finished(self) -> bool:
        return all(seq.finish_reason is not None for seq in self.sequences)

    def wants_prompt_logprobs(self, seq: SequenceState, start: int, end: int) -> range:
        """Positions of [start, end) whose logits score the prompt token after them, each only once."""
        if self.params.prompt_logprobs is None or seq.index != 0:
            return range(0)
        return range(max(start, len(self._prompt_logprobs) - 1), min(end, len(self.prompt_token_ids) - 1))

    def add_prompt_logprobs(self, scores: Sequence[TokenLogprobs]) -> None:
        """The next positions' scores, in order."""
        for score in scores:
            token_id = self.prompt_token_ids[len(self._prompt_logprobs)]
            asked = score._replace(top=score.top[: self.params.prompt_logprobs])
            self._prompt_logprobs.append(self.logprob_map(token_id, asked))

    def logprob_map(self, token_id: int, scores: TokenLogprobs) -> LogprobMap:
        """The chosen token first, then the likeliest ones."""
        entries = {token_id: Logprob(scores.logprob, scores.rank, self._token_text(token_id))}
        for rank, (other, logprob) in enumerate(scores.top, 1):
            entries.setdefault(other, Logprob(logprob, rank, self._token_text(other)))
        return entries

    def _token_text(self, token_id: int) -> str | None:
        tokenizer = self.vocabulary.tokenizer
        return None if tokenizer is None else tokenizer.decode([token_id])

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[seq.output() for seq in self.sequences],
            finished=self.finished,
            prompt_logprobs=None if self.params.prompt_logprobs is None else list(self._prompt_logprobs),
            metrics=RequestMetrics(self.arrival_s, self.first_token_s, self.finished_s),
        )


def check_request(prompt_token_ids: Sequence[int], params: SamplingParams, limits: RequestLimits) -> None:
    """Raises UserError for a request that can never run: nothing of it has begun then."""
    length = len(prompt_token_ids)
    if length == 0:
        raise UserError("the prompt is empty", "give at least one token: this tokenizer adds none by itself")
    for token_id in prompt_token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < limits.vocab:
            raise UserError(
                f"prompt token id {shown(token_id)} is not in the vocabulary", f"use 0 to {limits.vocab - 1}"
            )
    if length + 1 > limits.max_model_len:
        raise UserError(
            f"the prompt has {length} tokens and the context holds {limits.max_model_len}, one output token included",
            "shorten it, or raise --max-model-len (max_model_len) where the model allows more",
        )
    if length + 1 > limits.kv_tokens:
        raise UserError(
            f"the prompt has {length} tokens and the KV cache holds {limits.kv_tokens}, one output token included",
            "shorten it, or raise --device-memory (device_memory)",
        )
    for token_id in params.stop_token_ids or ():
        _check_id("stop_token_ids", token_id, limits.vocab)
    for token_id in params.logit_bias or {}:
        _check_id("logit_bias", token_id, limits.vocab)


def _check_id(name: str, token_id: int, vocab: int) -> None:
    if not 0 <= token_id < vocab:
        raise UserError(f"{name} names token id {shown(token_id)}", f"the vocabulary has 0 to {vocab - 1}")
