import pytest

from moesaic.core.routing import ExpertId
from moesaic.sim.bounds import LayerHits, MeasuredRates, clairvoyant, clairvoyant_by_set, decode_bound_s
from moesaic.sim.routing_trace import generate

A, B, C, D = (ExpertId(0, e) for e in range(4))


def test_what_is_wanted_soonest_stays() -> None:
    result = clairvoyant([(A,), (B,), (C,), (A,), (B,)], num_slots=2)
    assert [step.hits for step in result.layer_steps] == [0, 0, 0, 1, 1]
    assert result.fills == 2  # C is bypassed


def test_without_slots_everything_misses() -> None:
    result = clairvoyant([(A, B), (A, B)], num_slots=0)
    assert (result.hits, result.misses, result.fills, result.hit_rate) == (0, 4, 0, 0.0)


def test_warm_experts_hit_at_once() -> None:
    result = clairvoyant([(A, B), (C,), (A,)], num_slots=2, warm=(A, D))
    assert [step.hits for step in result.layer_steps] == [1, 0, 1]


def test_with_room_for_all_only_first_uses_miss() -> None:
    trace = generate(3, 8, 2, 50, seed=1)
    result = clairvoyant(trace, num_slots=24)
    assert result.misses == result.fills + len(set(_last_only(trace)))
    assert result.misses == len({expert for group in trace.requests() for expert in group})


def _last_only(trace: object) -> list[ExpertId]:
    count: dict[ExpertId, int] = {}
    for group in trace.requests():  # type: ignore[attr-defined]
        for expert in group:
            count[expert] = count.get(expert, 0) + 1
    return [expert for expert, n in count.items() if n == 1]


def test_hits_are_reported_by_layer_step() -> None:
    E = ExpertId
    result = clairvoyant([(E(0, 0),), (E(1, 0), E(1, 1)), (E(0, 0),), (E(1, 0), E(1, 2))], num_slots=2)
    assert result.layer_steps == (LayerHits(0, 0, 1), LayerHits(1, 0, 2), LayerHits(0, 1, 0), LayerHits(1, 1, 1))
    assert result.hit_rate == pytest.approx(2 / 6)


def test_sets_are_bounded_each_by_its_own_ways() -> None:
    E = ExpertId
    requests = [(E(0, 0),), (E(1, 0), E(1, 1)), (E(0, 0),), (E(1, 0), E(1, 1))]
    result = clairvoyant_by_set(requests, (0, 2), lambda expert: expert.layer)
    assert [step.hits for step in result.layer_steps] == [0, 0, 0, 2]
    assert [step.layer for step in result.layer_steps] == [0, 1, 0, 1]


RATES = MeasuredRates(
    device_bytes_s=1000.0, link_bytes_s=50.0, host_read_bytes_s=100.0, together_bytes_s=120.0, handoff_s=0.25
)


def test_the_decode_bound_equals_the_hand_computed_example() -> None:
    # dense 500 / 1000; layer 0: hits 3 * 60 / 1000 only; layer 1: hand-off + the slower of 0.06 and 2 * 60 / 120
    layers = [LayerHits(0, 3, 0), LayerHits(1, 1, 2)]
    assert decode_bound_s(layers, 60.0, 500.0, RATES) == pytest.approx(0.5 + 0.18 + 0.25 + 1.0)
    assert decode_bound_s(layers * 2, 60.0, 500.0, RATES, num_steps=2) == pytest.approx(2 * 1.93)


def test_misses_are_read_no_faster_than_host_and_link_add_up_to() -> None:
    apart = MeasuredRates(1000.0, 50.0, 60.0, 1e9, 0.0)
    assert decode_bound_s([LayerHits(0, 0, 1)], 110.0, 0.0, apart) == pytest.approx(1.0)
