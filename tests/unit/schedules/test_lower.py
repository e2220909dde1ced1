"""Lowering a layer: golden op lists, and laws of what follows what."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.core.ops import Compute, Op, Schedule, format_grid, format_schedule, parse_schedule
from moesaic.core.routing import ExpertId
from moesaic.schedules.check import SlotUse, check
from moesaic.schedules.lower import DEVICE_COMPUTE, ExpertCost, Wave, lower

GOLDEN = Path(__file__).parents[2] / "schedules"
COST = ExpertCost(expert_bytes=1000, flops_per_token=6, token_bytes=12)


def e(number: int) -> ExpertId:
    return ExpertId(3, number)


WAVES = {
    "hits": Wave(3, {e(0): 2, e(4): 1}, resident={e(0): (), e(4): (1,)}),
    "fetch": Wave(3, {e(0): 2, e(1): 1, e(5): 4}, resident={e(0): ()}, fetched={e(1): (), e(5): (0, 2)}),
    "host": Wave(3, {e(0): 2, e(1): 1, e(5): 4}, resident={e(0): ()}, host=(e(1), e(5)), fills={e(1): (2,)}),
}


@pytest.mark.parametrize("name", WAVES)
def test_lowering_equals_its_golden_list(name):
    schedule = lower(WAVES[name], COST, num_rows=5, first=8, inputs=7)
    text = format_schedule(schedule)
    assert text + "\n" + format_grid(schedule) == (GOLDEN / f"lower-{name}.txt").read_text()
    assert parse_schedule(text) == schedule


def test_an_empty_wave_is_an_empty_fragment():
    assert lower(Wave(0, {}), COST, 0, 0, 0).ops == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=40), st.integers(1, 4))
def test_a_run_of_fetches_through_any_slots_passes_check(requests, num_slots):
    """Slots taken round robin, each copy after the last reader of its slot: what the store grants."""
    run, fills, reads, readers = Schedule(ops=[Op("embed", DEVICE_COMPUTE, Compute())]), {}, {}, {}
    for turn, (layer, number) in enumerate(requests):
        expert, slot = ExpertId(layer, number), turn % num_slots
        wave = Wave(layer, {expert: 1}, fetched={expert: readers.get(slot, ())})
        fragment = lower(wave, COST, 1, len(run.ops), 0)
        fills[fragment.first] = (expert, slot)
        reads[fragment.first + 1] = [(expert, slot)]
        readers[slot] = (fragment.first + 1,)
        run.ops += fragment.ops
    assert check(run, SlotUse(fills, reads), num_slots) == []


def test_check_finds_a_use_before_the_load_and_an_overwrite_under_a_reader():
    a, b = ExpertId(0, 1), ExpertId(0, 2)
    first = lower(Wave(0, {a: 1}, fetched={a: ()}), COST, 1, 0, 0)
    # the second copy goes to the same slot without waiting for the first one's reader
    second = lower(Wave(0, {b: 1}, fetched={b: ()}), COST, 1, 2, 0)
    run = Schedule(0, [*first.ops, *second.ops])
    same = SlotUse({0: (a, 0), 2: (b, 0)}, {1: [(a, 0)], 3: [(b, 0)]})
    assert check(run, same, 1) == ["op 2 L0.fetch.e2 overwrites slot 0 under op 1"]
    other = SlotUse({0: (a, 0), 2: (b, 1)}, {1: [(a, 0)], 3: [(b, 1)]})
    assert check(run, other, 2) == []
    assert check(run, other, 1) == ["op 2 L0.fetch.e2 fills slot 1 of 1"]
    orphan = Schedule(0, [Op("L0.expert.e9", DEVICE_COMPUTE, Compute())])
    used = SlotUse({}, {0: [(ExpertId(0, 9), 0)]})
    assert check(orphan, used, 1) == ["op 0 L0.expert.e9 reads L0.e9 in slot 0, which holds None"]
    early = Schedule(0, [first.ops[0], Op("L0.expert.e1", DEVICE_COMPUTE, Compute())])
    hasty = SlotUse({0: (a, 0)}, {1: [(a, 0)]})
    assert check(early, hasty, 1) == ["op 1 L0.expert.e1 does not wait for its copy, op 0"]
