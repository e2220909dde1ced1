"""Tokens are timed one by one, counters are split at the first token, and reading them costs the engine nothing."""

import dataclasses
from collections.abc import Iterator

import pytest

from moesaic.bench.measure import Counters, Recorder, difference, generate, generate_all
from moesaic.bench.prompts import Prompt
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.stats import EngineStats
from moesaic.sim.routing_trace import RoutingTrace

PROMPT = Prompt("code", (5, 6, 7))


def stats(**values: object) -> EngineStats:
    zero = {
        f.name: {} if "Mapping" in str(f.type) or "dict" in str(f.type) or "by_" in f.name else 0
        for f in dataclasses.fields(EngineStats)
    }
    return EngineStats(**{**zero, **values})


class Engine:
    """A stand-in that counts like one: 10 hits a decode step, 100 a prefill, 7 bytes a hit. On its own clock a prefill
    takes 3 s, a decode step 1 s, and a reading of the counters 50 s."""

    def __init__(self, num_outputs: int | None = None) -> None:
        self.hits = 0
        self.now_s = 1000.0
        self.num_outputs = num_outputs
        self.params: list[SamplingParams] = []

    def stream(self, prompt: list[int], sampling_params: SamplingParams) -> Iterator[object]:
        assert prompt == [5, 6, 7]
        self.params.append(sampling_params)
        for i in range(self.num_outputs or sampling_params.max_tokens or 0):
            self.now_s += 1.0 if i else 3.0
            self.hits += 10 if i else 100
            yield object()

    def stats(self) -> EngineStats:
        self.now_s += 50.0
        return stats(hits=self.hits, bytes_by_path={"h2d": 7 * self.hits}, lane_busy_s={"dev0.load": 0.1 * self.hits})


def test_counters_are_split_where_prefill_ends() -> None:
    sample = generate(Engine(), PROMPT, new_tokens=5, seed=3)
    assert (sample.prefill.hits, sample.decode.hits) == (100, 40)
    assert sample.prefill.bytes_by_path == {"h2d": 700}
    assert sample.decode.bytes_by_path == {"h2d": 280}
    assert sample.decode.lane_busy_s == {"dev0.load": pytest.approx(4.0)}
    assert sample.num_decoded == len(sample.itl_s) == 4


def test_reading_the_counters_is_not_counted_as_the_engines_time() -> None:
    engine = Engine()
    sample = generate(engine, PROMPT, new_tokens=4, seed=3, clock=lambda: engine.now_s)
    assert sample.token_s == (3.0, 4.0, 5.0, 6.0)
    assert (sample.ttft_s, sample.decode_s, sample.itl_s) == (3.0, 3.0, (1.0, 1.0, 1.0))


def test_every_token_is_wanted_whatever_it_is() -> None:
    engine = Engine()
    generate(engine, PROMPT, new_tokens=3, seed=9)
    (params,) = engine.params
    assert params.ignore_eos
    assert params.temperature == 1.0
    assert params.max_tokens == 3
    assert params.seed == 9
    assert not params.stop
    assert not params.stop_token_ids
    assert params.top_p == 1.0
    assert params.top_k == 0


def test_fewer_outputs_than_tokens_are_not_measured_silently() -> None:
    with pytest.raises(AssertionError, match="got 2 outputs"):
        generate(Engine(num_outputs=2), PROMPT, new_tokens=3, seed=0)


def test_the_first_prompt_warms_up_and_is_measured_afterwards() -> None:
    engine = Engine()
    samples = generate_all(engine, [PROMPT, PROMPT], 2, 0)
    assert len(samples) == 2
    assert len(engine.params) == 3


def test_routing_is_recorded_from_the_first_token_to_the_last() -> None:
    class Tap:
        def __init__(self) -> None:
            self.calls: list[tuple[object, int]] = []

        def record_to(self, sink: object) -> None:
            self.calls.append((sink, engine.hits))

    engine, tap = Engine(), Tap()
    recorder = Recorder(tap, lambda: RoutingTrace((0,), 4, 2))
    sample = generate(engine, PROMPT, 3, 0, recorder)
    assert sample.routing is not None
    assert tap.calls == [(sample.routing, 100), (None, 120)]


def test_counters_add_up() -> None:
    a = difference(stats(), stats(hits=3, bytes_by_path={"h2d": 5}, lane_busy_s={}))
    b = Counters(1, 2, 3, 4, 5, {"h2d": 1, "d2h": 2}, {"x": 1.0})
    assert a + b == Counters(4, 2, 3, 4, 5, {"h2d": 6, "d2h": 2}, {"x": 1.0})
