"""What a running engine does to its slots obeys the laws of schedules, and a fault in the middle of a step leaves
nothing behind: no pin, no half-filled slot, no KV block, and right answers afterwards."""

from __future__ import annotations

import random

import pytest

from moesaic.models.tiny import random_config, write_checkpoint
from tests import oracle
from tests.engines import greedy, num_experts, open_llm
from tests.watching import watch

PROMPTS = [[5], [9, 8, 7, 6, 5, 4], list(range(20, 37))]


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    write_checkpoint(directory, random_config(request.param, seed=7), seed=7)
    model = oracle.load(directory)
    return directory, [oracle.greedy(model, prompt, 10) for prompt in PROMPTS]


def generate_and_compare(llm, expected) -> None:
    outputs = llm.generate(PROMPTS, greedy(10), use_tqdm=False)
    for output, answer in zip(outputs, expected, strict=True):
        assert output.outputs[0].finish_reason == "length", output.outputs[0].error
        oracle.check_greedy(output.outputs[0].token_ids, answer)


@pytest.mark.parametrize("assignment", ["fetch_misses", "cpu_misses"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6])
def test_no_slot_is_read_before_it_is_filled_or_filled_under_a_reader(checkpoint, assignment, share, monkeypatch):
    directory, expected = checkpoint
    slots = max(1, round(share * num_experts(directory)))
    with open_llm(directory, slots, assignment=assignment, max_num_batched_tokens=16) as llm:
        seen = watch(llm, monkeypatch)
        generate_and_compare(llm, expected)
        assert seen.faults() == []
        seen.check_resident()
        assert seen.fills
        assert seen.reads or assignment == "cpu_misses"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["copy", "device", "host", "x", "y", "lower", "admit"])
def test_a_fault_in_the_middle_of_a_step_leaves_nothing_behind(checkpoint, place, error, monkeypatch):
    directory, expected = checkpoint
    slots = max(2, num_experts(directory) // 3)
    chance = random.Random(f"{place}{error}")
    assignment = "fetch_misses" if place in ("copy", "device", "lower") else "cpu_misses"
    with open_llm(directory, slots, assignment=assignment, max_num_batched_tokens=16) as llm:
        seen = watch(llm, monkeypatch)
        llm.generate(PROMPTS[:1], greedy(3), use_tqdm=False)
        left = [chance.randrange(1, 9)]

        def maybe_fail(name: str) -> None:
            left[0] -= name == place
            if name == place and left[0] == 0:
                raise error("injected")

        seen.before = maybe_fail
        patch_pure(place, maybe_fail, llm, monkeypatch)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPTS, greedy(10), use_tqdm=False)
        else:
            outputs = llm.generate(PROMPTS, greedy(10), use_tqdm=False)
            assert any("injected" in (o.outputs[0].error or "") for o in outputs)
        assert left[0] == 0
        seen.check_resident()
        blocks = llm.engine.parts.kv_blocks
        assert blocks.num_free == blocks.num_blocks
        generate_and_compare(llm, expected)
        seen.check_resident()


def patch_pure(place, maybe_fail, llm, monkeypatch) -> None:
    """Faults in the deciders that the runner asks in the middle of its work."""
    from moesaic.runtime import experts

    if place == "lower":
        plain = experts.lower
        monkeypatch.setattr(experts, "lower", lambda *args: (maybe_fail("lower"), plain(*args))[1])
    if place == "admit":

        class Admission:
            def admit(self, move, in_flight_bytes):
                maybe_fail("admit")
                return True

        runner = llm.engine.parts.run.runner
        monkeypatch.setattr(runner, "deciders", type(runner.deciders)(
            runner.deciders.assignment, Admission(), runner.deciders.cost))  # fmt: skip


def test_sequences_that_are_preempted_and_computed_again_give_the_same_answer(checkpoint, monkeypatch):
    directory, expected = checkpoint
    monkeypatch.setattr("moesaic.cost.budget._kv_blocks", lambda needs, wishes, length, fixed: 3)
    with open_llm(directory, 3, assignment="fetch_misses", max_num_batched_tokens=16, max_model_len=48) as llm:
        generate_and_compare(llm, expected)
        outputs = llm.generate([PROMPTS[1]] * 3, greedy(40), use_tqdm=False)
        solo = llm.generate([PROMPTS[1]], greedy(40), use_tqdm=False)
        assert [o.outputs[0].token_ids for o in outputs] == [solo[0].outputs[0].token_ids] * 3
        assert llm.stats().num_preemptions > 0
