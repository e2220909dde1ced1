"""LLM over the toy engine: arguments, order, streaming, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from moesaic.api import LLM, SamplingParams
from moesaic.core.errors import UserError
from tests.toy import NAN_TOKEN, greedy_reference, toy_engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.over(toy_engine(max_num_seqs=2)) as llm:
        yield llm
        assert not llm.engine.has_unfinished()
        assert llm.engine.parts.kv_blocks.num_free == llm.engine.parts.kv_blocks.num_blocks


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_prompts_in_every_form_give_the_same(llm: LLM) -> None:
    expected = greedy_reference(ids("abc"), 6)
    forms = ["abc", ["abc"], [ids("abc")], ids("abc"), {"prompt": "abc"}, [{"prompt_token_ids": ids("abc")}]]
    for prompts in forms:
        [output] = llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
        assert output.outputs[0].token_ids == expected
        assert output.finished


def test_outputs_come_in_the_prompts_order_whoever_ends_first(llm: LLM) -> None:
    prompts = ["aaaa", "b", "cc", "dddddd"]
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (9, 1, 5, 2)]
    outputs = llm.generate(prompts, params)
    assert [o.prompt for o in outputs] == prompts
    assert [len(o.outputs[0].token_ids) for o in outputs] == [9, 1, 5, 2]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_a_stream_grows_and_its_deltas_add_up(llm: LLM) -> None:
    states = list(llm.stream("abc", GREEDY))
    assert [len(s.outputs[0].token_ids) for s in states] == [1, 2, 3, 4, 5, 6]
    assert "".join(s.outputs[0].delta for s in states) == states[-1].outputs[0].text
    assert states[-1].outputs[0].text == llm.generate("abc", GREEDY)[0].outputs[0].text


def test_streams_side_by_side_lose_nothing(llm: LLM) -> None:
    first, second = llm.stream("abc", GREEDY), llm.stream("xyz", GREEDY)
    pairs = list(zip(first, second, strict=True))
    [between] = llm.generate("q", GREEDY)
    for i, prompt in enumerate(("abc", "xyz")):
        [alone] = llm.generate(prompt, GREEDY)
        assert "".join(pair[i].outputs[0].delta for pair in pairs) == alone.outputs[0].text
    assert between.outputs[0].token_ids == greedy_reference(ids("q"), 6)


def test_a_stream_closed_early_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.has_unfinished()


def test_chat_goes_through_the_template(llm: LLM) -> None:
    message = {"role": "user", "content": "hi"}
    [one] = llm.chat([message], GREEDY)
    assert one.prompt_token_ids == ids("user:hi;")
    assert len(llm.chat([[message], [message]], GREEDY)) == 2


def test_one_failing_request_leaves_the_others_whole(llm: LLM) -> None:
    outputs = llm.generate([[1, NAN_TOKEN], [1, 2]], GREEDY)
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "length"]
    assert outputs[1].outputs[0].token_ids == greedy_reference([1, 2], 6)


def test_a_prompt_that_can_never_run_refuses_the_whole_call_by_number(llm: LLM) -> None:
    with pytest.raises(UserError, match="prompt 1: the prompt is empty"):
        llm.generate(["a", ""], GREEDY)
    with pytest.raises(UserError, match="400 tokens and the context holds 200"):
        llm.stream([7] * 400)
    with pytest.raises(UserError, match="prompt_token_ids"):
        llm.generate([{"text": "a"}], GREEDY)
    with pytest.raises(UserError, match="2 prompts and 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])


def test_ids_of_every_library_are_ids(llm: LLM) -> None:
    expected = greedy_reference([5, 6], 6)
    own = [np.array([5, 6]), torch.tensor([5, 6]), range(5, 7), (5, 6), [np.int64(5), np.int64(6)]]
    forms = [*own, *([form] for form in own), {"prompt_token_ids": own[0]}, torch.tensor([[5, 6]])]
    for prompts in forms:
        [output] = llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
        assert output.outputs[0].token_ids == expected
        assert all(type(i) is int for i in output.prompt_token_ids)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (None, "prompts is None"), (5, "prompts is 5"), (b"abc", "prompts is b'abc'"), (np.float32(1), "prompts is"),
        (["a", 5], "prompt 1: the prompt is 5"), (["a", None], "prompt 1"), ([b"abc"], "the prompt is b'abc'"),
        ([1, "a"], "the prompt is"), ([1, True], "the prompt is"), ([[1.5]], "the prompt is"),
        ({"prompt_token_ids": None}, "the prompt is None"), ({"prompt": 5}, "keys"), ({5: 6}, "keys"),
    ],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        llm.generate(prompts, GREEDY)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"temperature": 0}, "greedy", 5, ["greedy"], [{}]])
def test_what_is_no_sampling_params_is_refused(llm: LLM, params: object) -> None:
    for call in (llm.generate, llm.stream):
        with pytest.raises(UserError, match="sampling_params is"):
            call("a", params)  # type: ignore[operator]


@pytest.mark.parametrize(
    "messages",
    [None, 5, "hi", ["hi"], [5], [{"role": 5, "content": "a"}], [{"content": "a"}], [{"role": "user", "content": 5}],
     [[{"role": "user", "content": "a"}, "b"]], {"role": "user"}],
)  # fmt: skip
def test_what_is_no_conversation_is_refused(llm: LLM, messages: object) -> None:
    with pytest.raises(UserError, match="message"):
        llm.chat(messages, GREEDY)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [LLM.close, lambda llm: [llm.engine.abort(i) for i in list(llm._inbox)]])
def test_a_stream_whose_request_is_gone_says_so(end: Callable[[LLM], object]) -> None:
    llm = LLM.over(toy_engine())
    stream = llm.stream("abc", GREEDY)
    next(stream)
    end(llm)
    with pytest.raises(UserError, match=r"closed|aborted"):
        next(stream)
    assert list(stream) == []
    llm.close()


def test_an_interrupt_leaves_nothing_running(llm: LLM) -> None:
    llm.engine.parts.decoder.failures = [None, KeyboardInterrupt()]  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "de"], GREEDY)
    assert not llm.engine.has_unfinished()


def test_unknown_options_name_close_ones() -> None:
    with pytest.raises(UserError, match="did you mean device_memory"):
        LLM("anything", device_memry="6GiB")


def test_stats_count_what_ran(llm: LLM) -> None:
    llm.generate("abc", GREEDY)
    assert (llm.stats().prefill_tokens, llm.stats().decode_tokens) == (3, 5)
