"""The step loop over a toy decoder whose right answers are known: batching, preemption, faults, aborts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.errors import UserError
from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.runtime.engine import Engine
from moesaic.runtime.outputs import RequestOutput
from tests.toy import NAN_TOKEN, VOCAB, ToyDecoder, ToyRun, greedy_reference, history_hash, toy_engine, toy_logits


def finish(engine: Engine, limit: int = 10_000) -> dict[str, RequestOutput]:
    """Steps to the end; each request's last output."""
    last: dict[str, RequestOutput] = {}
    for _ in range(limit):
        if not engine.has_unfinished():
            engine.parts.kv_blocks.check()
            assert engine.parts.kv_blocks.num_free == engine.parts.kv_blocks.num_blocks, "every block came back"
            assert (engine.num_running, engine.num_waiting) == (0, 0)
            return last
        last |= {output.request_id: output for output in engine.step()}
    raise AssertionError("the engine does not come to an end")


def greedy(max_tokens: int | None = 8, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


WORK = st.tuples(st.lists(st.integers(0, 289), min_size=1, max_size=20), st.integers(1, 12))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(WORK, min_size=1, max_size=7),
    st.integers(1, 5), st.integers(0, 20), st.integers(8, 40), st.integers(1, 5), st.integers(0, 10),
)  # fmt: skip
def test_every_request_gets_its_solo_tokens_under_any_batching(
    work: list[tuple[list[int], int]], seqs: int, more_tokens: int, num_blocks: int, block_tokens: int, gap: int
) -> None:
    engine = toy_engine(num_blocks, block_tokens, max_num_seqs=seqs, max_num_batched_tokens=seqs + more_tokens)
    last: dict[str, RequestOutput] = {}
    expected: dict[str, list[int]] = {}
    for i, (prompt, count) in enumerate(work):
        if len(prompt) + 1 > num_blocks * block_tokens:
            with pytest.raises(UserError, match="device_memory"):
                engine.add_request(str(i), prompt, greedy(count))
            continue
        engine.add_request(str(i), prompt, greedy(count))
        expected[str(i)] = greedy_reference(prompt, min(count, num_blocks * block_tokens - len(prompt)))
        for _ in range(gap):
            last |= {output.request_id: output for output in engine.step()}
    last |= finish(engine)
    assert {key: output.outputs[0].token_ids for key, output in last.items()} == expected
    assert all(output.outputs[0].finish_reason == "length" for output in last.values())


def test_preemption_happens_and_loses_nothing() -> None:
    engine = toy_engine(num_blocks=6, block_tokens=4, max_num_seqs=4)
    for i in range(4):
        engine.add_request(str(i), [i + 1], greedy(16))
    last = finish(engine)
    assert engine.stats().num_preemptions > 0
    for i in range(4):
        assert last[str(i)].outputs[0].token_ids == greedy_reference([i + 1], 16)


def test_seeded_draws_do_not_depend_on_neighbours_or_chunks() -> None:
    params = SamplingParams(temperature=1.3, top_p=0.95, seed=7, max_tokens=12)
    alone = toy_engine()
    alone.add_request("a", [5, 6, 7, 8, 9], params)
    expected = finish(alone)["a"].outputs[0].token_ids
    assert expected != greedy_reference([5, 6, 7, 8, 9], 12)
    crowd = toy_engine(num_blocks=9, max_num_seqs=4, max_num_batched_tokens=5)
    for i in range(3):
        crowd.add_request(f"x{i}", [i] * 6, SamplingParams(temperature=1.0, max_tokens=10))
    crowd.add_request("a", [5, 6, 7, 8, 9], params)
    assert finish(crowd)["a"].outputs[0].token_ids == expected
    assert crowd.stats().num_preemptions > 0


def test_unseeded_draws_come_from_the_engine_seed_and_the_request_count() -> None:
    def run(seed: int) -> list[list[int]]:
        engine = toy_engine(seed=seed)
        for i in range(2):
            engine.add_request(str(i), [1, 2], SamplingParams(temperature=1.5))
        return [output.outputs[0].token_ids for _, output in sorted(finish(engine).items())]

    assert run(0) == run(0) != run(1)
    assert run(0)[0] != run(0)[1]


def test_every_seed_and_index_draws_its_own() -> None:
    engine = toy_engine()

    def outputs(n: int, seed: int) -> list[tuple[int, ...]]:
        engine.add_request("n", [3, 4], SamplingParams(n=n, temperature=1.5, seed=seed, max_tokens=6))
        found = finish(engine)["n"].outputs
        assert [o.index for o in found] == list(range(n))
        return [tuple(o.token_ids) for o in found]

    drawn = {seed: outputs(3, seed) for seed in (-1, 0, 1, 2, -7, 7)}
    assert len({tokens for several in drawn.values() for tokens in several}) == 18, "no two are alike"
    assert all(outputs(1, seed) == several[:1] for seed, several in drawn.items())


def test_prompt_logprobs_are_right_under_chunks_and_preemption() -> None:
    prompts = {"a": [9, 8, 7, 6, 5, 4, 3, 2, 1], "b": [1, 1, 2, 3, 5, 8, 13]}
    engine = toy_engine(num_blocks=7, block_tokens=3, max_num_seqs=2, max_num_batched_tokens=4)
    for key, prompt in prompts.items():
        engine.add_request(key, prompt, greedy(7, prompt_logprobs=2, logprobs=1))
    last = finish(engine)
    assert engine.stats().num_preemptions > 0
    for key, prompt in prompts.items():
        scores = last[key].prompt_logprobs
        assert scores is not None
        assert scores[0] is None
        assert len(scores) == len(prompt)
        for position in range(1, len(prompt)):
            reference = toy_logits(torch.tensor([history_hash(prompt[:position])])).log_softmax(-1)[0]
            entry = scores[position]
            assert entry is not None
            assert entry[prompt[position]].logprob == float(reference[prompt[position]])
            assert set(entry) == {prompt[position], *reference.topk(2).indices.tolist()}
        output = last[key].outputs[0]
        assert output.logprobs is not None
        assert output.cumulative_logprob == pytest.approx(
            sum(entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True))
        )


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    engine = toy_engine(max_num_seqs=2)
    decoder, run = engine.parts.decoder, engine.parts.run
    assert isinstance(decoder, ToyDecoder)
    assert isinstance(run, ToyRun)
    for i in range(4):
        engine.add_request(str(i), [i + 1, 2], greedy(6))
    engine.step()
    decoder.failures = [RuntimeError("out of memory")]
    failed = engine.step()
    assert {o.request_id: o.outputs[0].finish_reason for o in failed} == {"0": "error", "1": "error"}
    assert failed[0].outputs[0].error == "RuntimeError: out of memory"
    assert failed[0].finished
    assert "out of memory" in caplog.text, "the traceback is logged"
    last = finish(engine)
    assert last["2"].outputs[0].token_ids == greedy_reference([3, 2], 6)
    assert (run.begun, run.resets) == (run.ended, 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), max_size=12))
def test_faults_at_any_step_spoil_nobody_else(failures: list[bool]) -> None:
    engine = toy_engine(num_blocks=8, max_num_seqs=3, max_num_batched_tokens=6)
    assert isinstance(engine.parts.decoder, ToyDecoder)
    engine.parts.decoder.failures = [MemoryError("no") if fails else None for fails in failures]
    for i in range(6):
        engine.add_request(str(i), [i + 1] * 5, greedy(4))
    last = finish(engine)
    assert len(last) == 6
    for key, output in last.items():
        if output.outputs[0].finish_reason != "error":
            assert output.outputs[0].token_ids == greedy_reference([int(key) + 1] * 5, 4)


def test_an_interrupted_step_is_closed_and_can_be_taken_up_again() -> None:
    engine = toy_engine()
    assert isinstance(engine.parts.decoder, ToyDecoder)
    engine.parts.decoder.failures = [None, KeyboardInterrupt()]
    engine.add_request("a", [1, 2, 3], greedy(5))
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert finish(engine)["a"].outputs[0].token_ids == greedy_reference([1, 2, 3], 5)


def test_nan_logits_end_their_own_request_only() -> None:
    engine = toy_engine()
    engine.add_request("bad", [1, NAN_TOKEN], greedy(4))
    engine.add_request("good", [1, 2], greedy(4))
    last = finish(engine)
    assert last["bad"].outputs[0].finish_reason == "error"
    assert "NaN" in (last["bad"].outputs[0].error or "")
    assert last["good"].outputs[0].token_ids == greedy_reference([1, 2], 4)


def test_abort_frees_blocks_at_once_wherever_the_request_is() -> None:
    engine = toy_engine(num_blocks=8, max_num_seqs=2, max_num_batched_tokens=4)
    for key in "abc":
        engine.add_request(key, [1] * 7, greedy(5))
    engine.step()
    aborted = engine.abort("a")  # half its prompt is computed
    assert aborted is not None
    assert aborted.outputs[0].finish_reason == "abort"
    assert engine.parts.kv_blocks.num_free == 8
    assert engine.abort("c") is not None  # still waits
    assert engine.abort("nobody") is None
    assert list(finish(engine)) == ["b"]


def test_end_tokens_stop_and_are_counted_but_not_written() -> None:
    prompt = [2, 3]
    tokens = greedy_reference(prompt, 12)
    eos = tokens[3]
    engine = toy_engine(defaults=GenerationDefaults(eos_token_ids=(290, eos)))
    engine.add_request("eos", prompt, greedy(12))
    engine.add_request("on", prompt, greedy(12, ignore_eos=True))
    engine.add_request("id", prompt, greedy(12, ignore_eos=True, stop_token_ids=[tokens[1]]))
    last = finish(engine)
    first = tokens.index(eos) + 1
    assert (last["eos"].outputs[0].token_ids, last["eos"].outputs[0].stop_reason) == (tokens[:first], None)
    assert last["eos"].outputs[0].finish_reason == "stop"
    assert last["on"].outputs[0].token_ids == tokens
    assert last["id"].outputs[0].stop_reason == tokens[1]


def test_max_tokens_none_runs_to_the_end_of_the_context() -> None:
    engine = toy_engine(max_model_len=30)
    engine.add_request("a", [1] * 10, greedy(None))
    engine.add_request("b", [1] * 29, greedy(50))
    last = finish(engine)
    assert [len(last[key].outputs[0].token_ids) for key in "ab"] == [20, 1]


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], greedy(), "empty"),
        ("", greedy(), "empty"),
        ([1] * 40, greedy(), "40 tokens and the context holds 40"),
        ([1] * 400, greedy(), "400 tokens and the context holds 40"),
        ([VOCAB], greedy(), "vocabulary"),
        ([-1], greedy(), "vocabulary"),
        ([1], greedy(logit_bias={VOCAB: 1.0}), "logit_bias"),
    ],
)
def test_requests_that_can_never_run_are_refused_with_the_reason(
    prompt: str | list[int], params: SamplingParams, words: str
) -> None:
    engine = toy_engine(max_model_len=40)
    with pytest.raises(UserError, match=words):
        engine.add_request("a", prompt, params)
    assert not engine.has_unfinished()
    engine.add_request("a", [1], greedy(2))
    assert finish(engine)["a"].outputs[0].token_ids == greedy_reference([1], 2)


def test_an_id_in_use_is_refused() -> None:
    engine = toy_engine()
    engine.add_request("a", [1])
    with pytest.raises(UserError, match="in use"):
        engine.add_request("a", [1])


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    engine = toy_engine(tokenizer=False)
    with pytest.raises(UserError, match="no tokenizer"):
        engine.add_request("a", "text")
    with pytest.raises(UserError, match="no tokenizer"):
        engine.add_request("a", [1], greedy(stop="x"))
    engine.add_request("a", [1], greedy(3, logprobs=1))
    output = finish(engine)["a"].outputs[0]
    assert (output.text, output.token_ids) == ("", greedy_reference([1], 3))


def test_steps_are_counted_by_kind() -> None:
    engine = toy_engine(max_num_batched_tokens=8)
    engine.add_request("a", [1] * 20, greedy(5))
    finish(engine)
    stats = engine.stats()
    assert (stats.prefill_tokens, stats.decode_tokens, stats.num_steps) == (20, 4, 7)
    assert stats.prefill_s > 0
    assert stats.decode_s > 0
    assert isinstance(engine.parts.run, ToyRun)
    assert engine.parts.run.steps[:3] == [(8, 8, 0), (8, 16, 0), (4, 20, 1)]


def test_close_ends_everything_once() -> None:
    closed = []
    engine = toy_engine(close=lambda: closed.append(1))
    engine.add_request("a", [1])
    engine.close()
    assert not engine.has_unfinished()
    assert closed
