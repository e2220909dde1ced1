"""The step loop: requests in, one step after the other, outputs out.

A step: `policies.batching` says which tokens run; they become one StepBatch; the decoder computes them; the sampler
draws a token for each sequence whose known tokens are all computed; the requests take the tokens in. Sequences that end
give their KV blocks back at once. A fault inside a step ends the requests of that step with finish_reason "error" and
leaves the engine usable; a row of NaN or infinite logits ends its own request only.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from moesaic.core.errors import UserError
from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.core.timeline import Timeline
from moesaic.kernels.api import PagedKV
from moesaic.memory.kv import KVBlocks
from moesaic.models.base import Decoder, StepRun
from moesaic.policies.batching import BatchLimits, Chunk, SeqView, plan_step
from moesaic.runtime.batch import Piece, StepInputs, build_inputs
from moesaic.runtime.outputs import RequestOutput
from moesaic.runtime.requests import Request, RequestLimits, SequenceState, Vocabulary, check_request
from moesaic.runtime.sampler import Sampled, TokenLogprobs, read_scores, sample, score_tokens
from moesaic.runtime.staging import Staging
from moesaic.runtime.stats import EngineStats, PlaceStats, StatsSource, StepCounts
from moesaic.runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class StepRunner(StepRun, Protocol):
    """A StepRun that the engine opens and closes. Each `begin_step` is followed by one `end_step`; after a fault
    inside the step `reset` comes before it."""

    def begin_step(self, num_tokens: int, context_tokens: int, num_logits: int) -> None:
        """`num_tokens` run over `context_tokens` cached ones in all, this step's included."""
        ...

    def end_step(self) -> Timeline:
        """The spans that have ended since the last call."""
        ...

    def reset(self) -> None:
        """Returns when nothing of the failed step can still read or write."""
        ...


class PlanText(Protocol):
    """What was decided for this engine, in words."""

    def lines(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`max_model_len` tokens of prompt and output together, sequences at once, tokens a step."""

    max_model_len: int
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Everything an engine runs on, ready. `kv` has one cache per layer, cut as `kv_blocks` says. `close` releases
    what the parts hold; `plan` says what was decided."""

    decoder: Decoder
    kv: Sequence[PagedKV]
    kv_blocks: KVBlocks
    tokenizer: Tokenizer | None
    device: torch.device
    run: StepRunner
    limits: EngineLimits
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    seed: int = 0
    stats: StatsSource | None = None
    close: Callable[[], None] | None = None
    plan: PlanText | None = None


class Engine:
    """Not thread-safe: one thread adds, steps and aborts."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        blocks, limits = parts.kv_blocks, parts.limits
        vocab = parts.decoder.spec.vocab
        self.limits = RequestLimits(limits.max_model_len, blocks.num_blocks * blocks.block_tokens, vocab)
        self._batch_limits = BatchLimits(limits.max_num_seqs, limits.max_num_batched_tokens, blocks.block_tokens)
        tokenizer = parts.tokenizer
        self._vocabulary = Vocabulary(
            tokenizer,
            frozenset(i for i in parts.defaults.eos_token_ids if i < vocab),  # others cannot be generated
            tokenizer.special_ids if tokenizer else frozenset(),
            tokenizer.textless(vocab) if tokenizer else frozenset(),
        )
        self._staging = Staging(parts.device, 4 * limits.max_num_batched_tokens + 4096)
        self._requests: dict[str, Request] = {}
        self._sequences: dict[int, SequenceState] = {}
        self._running: list[int] = []  # seq ids, oldest first
        self._waiting: deque[int] = deque()
        self._counts = StepCounts()
        self._num_added = 0
        self._closed = False
        self._next_seq_id = 0

    # -- requests ------------------------------------------------------------------------------------------------
    def add_request(self, request_id: str, prompt: str | Sequence[int], params: SamplingParams | None = None) -> None:
        """Queues a prompt, text or token ids. UserError for one that can never run; nothing has changed then."""
        self._check_open()
        params = self.parts.defaults.fill(params if params is not None else SamplingParams())
        if request_id in self._requests:
            raise UserError(f"request id {request_id!r} is in use", "give each running request its own id")
        token_ids = self._encode(prompt, params)
        check_request(token_ids, params, self.limits)
        text = prompt if isinstance(prompt, str) else None
        request = Request(request_id, text, token_ids, params, self._vocabulary, self.limits, time.monotonic())
        request.start(self._next_seq_id, f"{self.parts.seed}.{self._num_added}")
        self._num_added += 1
        self._next_seq_id += params.n
        self._requests[request_id] = request
        for seq in request.sequences:
            self._sequences[seq.seq_id] = seq
            self._waiting.append(seq.seq_id)

    def _encode(self, prompt: str | Sequence[int], params: SamplingParams) -> Sequence[int]:
        tokenizer = self.parts.tokenizer
        if tokenizer is None and (isinstance(prompt, str) or params.stop_strings):
            raise UserError("the model has no tokenizer", "give token ids, and stop_token_ids instead of stop")
        if not isinstance(prompt, str):
            return list(prompt)
        assert tokenizer is not None
        return tokenizer.encode(prompt)

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request at once, its KV blocks are free; its last state, or None where no such request runs."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        for seq in request.sequences:
            if seq.finish_reason is None:
                seq.abort()
        self._retire(request)
        return request.output()

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def stats(self) -> EngineStats:
        source = self.parts.stats
        return EngineStats.of(self._counts, source.place_stats() if source is not None else PlaceStats())

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Aborts what runs and releases the parts. Twice does nothing more."""
        for request_id in list(self._requests):
            self.abort(request_id)
        if self._closed:
            return
        self._closed = True
        if self.parts.close is not None:
            self.parts.close()
        # nothing may keep the device's memory alive, not even a cycle
        self.parts = replace(self.parts, decoder=None, run=None, kv=())  # type: ignore[arg-type]
        gc.collect()
        if self.parts.device.type == "cuda":
            torch.cuda.empty_cache()

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("the engine is closed", "open the model again: LLM(...)")

    # -- the step ------------------------------------------------------------------------------------------------
    def step(self) -> list[RequestOutput]:
        """Computes one step. One output for each request that got a token or ended; none where nothing is left."""
        self._check_open()
        plan = plan_step(
            [self._view(i) for i in self._running],
            [self._view(i) for i in islice(self._waiting, self._batch_limits.max_num_seqs)],
            self.parts.kv_blocks.num_free,
            self._batch_limits,
        )
        for seq_id in plan.preempted:
            self._preempt(seq_id)
        if not plan.chunks:
            return []
        self._admit(plan.chunks)
        start_s = time.perf_counter()
        try:
            sampled, scores = self._compute(plan.chunks)
        except Exception as error:
            log.exception("a step failed; its requests end with an error")
            self.parts.run.reset()
            return self._fail(plan.chunks, f"{type(error).__name__}: {error}")
        except BaseException:  # an interrupt: the step can be taken up again, once nothing of it runs any more
            self.parts.run.reset()
            raise
        finally:
            self.parts.run.end_step()
        self._count(plan.chunks, time.perf_counter() - start_s)
        return self._take(plan.chunks, sampled, scores)

    def _view(self, seq_id: int) -> SeqView:
        seq = self._sequences[seq_id]
        return SeqView(seq_id, len(seq.tokens), seq.num_computed, self.parts.kv_blocks.held(seq_id))

    def _preempt(self, seq_id: int) -> None:
        self._running.remove(seq_id)
        self._waiting.appendleft(seq_id)  # the plan names the youngest first: the oldest ends up in front
        self.parts.kv_blocks.free(seq_id)
        self._sequences[seq_id].num_computed = 0
        self._counts.num_preemptions += 1

    def _admit(self, chunks: Sequence[Chunk]) -> None:
        running = set(self._running)
        for chunk in chunks:
            if chunk.seq_id not in running:
                admitted = self._waiting.popleft()
                assert admitted == chunk.seq_id, "admission is first come, first served"
                self._running.append(admitted)
            room = self.parts.kv_blocks.extend(chunk.seq_id, chunk.start + chunk.num_tokens)
            assert room, "the plan took blocks that are not free"

    def _compute(self, chunks: Sequence[Chunk]) -> tuple[list[Sampled], list[TokenLogprobs]]:
        """Tokens of the sampled chunks and scores of the wanted prompt positions, each in the chunks' order."""
        parts, staging = self.parts, self._staging
        staging.begin_step()
        pieces = [self._piece(chunk) for chunk in chunks]
        num_logits = sum(piece.sampled + len(piece.scored) for piece in pieces)
        parts.run.begin_step(
            sum(len(p.token_ids) for p in pieces), sum(p.start + len(p.token_ids) for p in pieces), num_logits
        )
        with torch.inference_mode():
            inputs = build_inputs(pieces, parts.kv_blocks.block_tokens, parts.kv, staging)
            hidden_TH = parts.decoder.forward(inputs.batch, parts.run)
            scores = self._score(hidden_TH, inputs, chunks)
            rows = [self._sequences[c.seq_id].sample_row() for c in chunks if c.last]
            if not rows:
                return [], scores
            with parts.run.op("head"):
                logits_SV = parts.decoder.logits(hidden_TH[inputs.sampled_S])
            with parts.run.op("sample"):
                return sample(logits_SV, rows, staging), scores

    def _piece(self, chunk: Chunk) -> Piece:
        seq = self._sequences[chunk.seq_id]
        end = chunk.start + chunk.num_tokens
        scored = seq.request.wants_prompt_logprobs(seq, chunk.start, end)
        targets = seq.tokens[scored.start + 1 : scored.stop + 1] if scored else ()
        table = self.parts.kv_blocks.table(chunk.seq_id)
        return Piece(seq.tokens[chunk.start : end], chunk.start, table, chunk.last, scored, targets)

    def _score(self, hidden_TH: Tensor, inputs: StepInputs, chunks: Sequence[Chunk]) -> list[TokenLogprobs]:
        """Prompt log-probabilities, in slabs of as many rows as sampling has, so that no more memory is needed."""
        wanted = [self._sequences[c.seq_id].request.params.prompt_logprobs or 0 for c in chunks]
        num_top = min(max(wanted), self.limits.vocab)
        slab = self._batch_limits.max_num_seqs
        packed = []
        for rows_Q, targets_Q in zip(inputs.scored_Q.split(slab), inputs.targets_Q.split(slab), strict=True):
            if rows_Q.numel():
                with self.parts.run.op("head"):
                    logits_QV = self.parts.decoder.logits(hidden_TH[rows_Q])
                packed.append(score_tokens(logits_QV, targets_Q, num_top))
        return read_scores(torch.cat(packed), num_top) if packed else []

    def _count(self, chunks: Sequence[Chunk], seconds: float) -> None:
        decode = sum(1 for c in chunks if c.num_tokens == 1 and self._sequences[c.seq_id].num_output)
        self._counts.add_step(sum(c.num_tokens for c in chunks) - decode, decode, seconds)

    def _take(
        self, chunks: Sequence[Chunk], sampled: Sequence[Sampled], scores: Sequence[TokenLogprobs]
    ) -> list[RequestOutput]:
        """Gives each sequence what the step made for it."""
        tokens, score = iter(sampled), iter(scores)
        touched: dict[str, Request] = {}
        for chunk in chunks:
            seq = self._sequences[chunk.seq_id]
            request = seq.request
            end = chunk.start + chunk.num_tokens
            scored = request.wants_prompt_logprobs(seq, chunk.start, end)
            scores_of_seq = list(islice(score, len(scored)))
            sampled_token = next(tokens) if chunk.last else None
            seq.num_computed = end
            try:
                request.add_prompt_logprobs(scores_of_seq)
                if sampled_token is not None:
                    seq.accept(sampled_token)
            except Exception as error:  # a tokenizer's fault, say: it ends this sequence, not its neighbours
                log.exception("a sequence failed")
                seq.fail(f"{type(error).__name__}: {error}")
            if sampled_token is not None or seq.finish_reason is not None:
                touched[request.request_id] = request
        return self._outputs(list(touched.values()))

    def _fail(self, chunks: Sequence[Chunk], error: str) -> list[RequestOutput]:
        running = [self._sequences[c.seq_id].request for c in chunks]
        requests = list({request.request_id: request for request in running}.values())
        for seq in (seq for request in requests for seq in request.sequences):
            if seq.finish_reason is None:
                seq.fail(error)
        return self._outputs(requests)

    def _outputs(self, requests: Sequence[Request]) -> list[RequestOutput]:
        now_s = time.monotonic()
        outputs = []
        for request in requests:
            request.first_token_s = request.first_token_s or now_s
            if request.finished:
                request.finished_s = now_s
            self._retire(request)
            outputs.append(request.output())
        return outputs

    def _retire(self, request: Request) -> None:
        """Forgets the request's finished sequences, and the request once all are."""
        for seq in request.sequences:
            if seq.finish_reason is not None and self._sequences.pop(seq.seq_id, None) is not None:
                self.parts.kv_blocks.free(seq.seq_id)
                if seq.seq_id in self._running:
                    self._running.remove(seq.seq_id)
                else:
                    self._waiting.remove(seq.seq_id)
        if request.finished:
            del self._requests[request.request_id]
