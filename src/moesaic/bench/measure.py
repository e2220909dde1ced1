"""One measured generation: times token by token, and what the engine's counters and the machine say meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from moesaic.bench.prompts import Prompt
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.forcing import RoutingTap
from moesaic.runtime.stats import EngineStats
from moesaic.sim.routing_trace import RoutingTrace

N = TypeVar("N", int, float)


class Generator(Protocol):
    """What is measured: `moesaic.LLM`, or anything that streams and counts as it does."""

    def stream(self, prompt: list[int], sampling_params: SamplingParams) -> Iterator[object]: ...

    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records routing on demand: `tap` sits behind the engine's routers, `new_trace` gives an empty trace that fits."""

    tap: RoutingTap
    new_trace: Callable[[], RoutingTrace]


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of a stretch of a run: differences of two EngineStats."""

    hits: int
    misses: int
    fills: int
    evictions: int
    dropped: int
    bytes_by_path: Mapping[str, int]
    lane_busy_s: Mapping[str, float]

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.hits + other.hits,
            self.misses + other.misses,
            self.fills + other.fills,
            self.evictions + other.evictions,
            self.dropped + other.dropped,
            _combined(self.bytes_by_path, other.bytes_by_path, 1),
            _combined(self.lane_busy_s, other.lane_busy_s, 1),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation. `token_s` counts from the request; prefill ends with the first token."""

    prompt: Prompt
    token_s: tuple[float, ...]
    prefill: Counters
    decode: Counters
    routing: RoutingTrace | None = None  # of the decode steps alone

    @property
    def ttft_s(self) -> float:
        return self.token_s[0]

    @property
    def decode_s(self) -> float:
        return self.token_s[-1] - self.token_s[0]

    @property
    def num_decoded(self) -> int:
        """Tokens made by decode steps: all but the first, which prefill makes."""
        return len(self.token_s) - 1

    @property
    def itl_s(self) -> tuple[float, ...]:
        return tuple(b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False))


def generate(
    llm: Generator,
    prompt: Prompt,
    new_tokens: int,
    seed: int,
    recorder: Recorder | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Streams `new_tokens` at temperature 1, whatever they are, and reads the counters at the first and last.

    Routing is recorded from the first token on: of prefill it would cost time, and the decode bound has no use for it.
    """
    params = SamplingParams(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=seed,
        max_tokens=new_tokens, ignore_eos=True, detokenize=False,
    )  # fmt: skip
    trace = recorder.new_trace() if recorder else None
    after_first = before = llm.stats()
    times: list[float] = []
    pause_s, start_s = 0.0, clock()
    for _ in llm.stream(list(prompt.token_ids), params):
        times.append(clock() - start_s - pause_s)
        if len(times) == 1:
            # reading the counters waits for every lane; that is not the engine's time
            at_s = clock()
            after_first = llm.stats()
            if recorder is not None:
                recorder.tap.record_to(trace)
            pause_s = clock() - at_s
    if recorder is not None:
        recorder.tap.record_to(None)
    after = llm.stats()
    assert len(times) == new_tokens, f"asked for {new_tokens} tokens one by one, got {len(times)} outputs"
    return Sample(prompt, tuple(times), difference(before, after_first), difference(after_first, after), trace)


def generate_all(
    llm: Generator, prompts: Sequence[Prompt], new_tokens: int, seed: int, recorder: Recorder | None = None
) -> tuple[Sample, ...]:
    """Warms up on the first prompt, then measures each."""
    generate(llm, prompts[0], new_tokens, seed)
    return tuple(generate(llm, prompt, new_tokens, seed + 1, recorder) for prompt in prompts)


def difference(before: EngineStats, after: EngineStats) -> Counters:
    return Counters(
        after.hits - before.hits,
        after.misses - before.misses,
        after.fills - before.fills,
        after.evictions - before.evictions,
        after.dropped - before.dropped,
        _combined(after.bytes_by_path, before.bytes_by_path, -1),
        _combined(after.lane_busy_s, before.lane_busy_s, -1),
    )


def _combined(left: Mapping[str, N], right: Mapping[str, N], sign: int) -> dict[str, N]:
    return {key: left.get(key, 0) + sign * right.get(key, 0) for key in {**left, **right}}
