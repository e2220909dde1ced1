import gzip
import json
from pathlib import Path

import pytest

from moesaic.core.errors import UserError
from moesaic.core.routing import ExpertId
from moesaic.sim.routing_trace import RoutingTrace, generate


def two_steps() -> RoutingTrace:
    trace = RoutingTrace((1, 3), num_experts=4, top_k=2)
    trace.begin_step("code")
    trace.record(1, [(3, 0), (0, 1)]), trace.record(3, [(2, 1), (1, 2)])
    trace.begin_step()
    trace.record(1, [(1, 0)]), trace.record(3, [(0, 3)])
    return trace


def test_what_is_recorded_is_read_back_in_the_routers_order() -> None:
    trace = two_steps()
    assert trace.ids(0, 1) == ((3, 0), (0, 1))
    assert trace.ids(1, 3) == ((0, 3),)
    assert len(trace) == 2


def test_requests_are_the_distinct_experts_of_each_layer_step() -> None:
    E = ExpertId
    assert list(two_steps().requests()) == [
        (E(1, 0), E(1, 1), E(1, 3)),
        (E(3, 1), E(3, 2)),
        (E(1, 0), E(1, 1)),
        (E(3, 0), E(3, 3)),
    ]


def test_overlap_compares_each_token_with_the_one_before() -> None:
    # layer 1: {3,0} {0,1} {1,0} share 1 and 2; layer 3: {2,1} {1,2} {0,3} share 2 and 0; of 2 each
    assert two_steps().overlap() == pytest.approx(5 / 8)


def test_hottest_quarter_is_the_share_of_the_most_used_experts() -> None:
    # one expert of four: layer 1 uses expert 0 three times of six, layer 3 experts 1 and 2 twice of six
    assert two_steps().hottest_quarter() == pytest.approx(5 / 12)


def test_an_empty_trace_has_neutral_statistics() -> None:
    trace = RoutingTrace((0,), 4, 2)
    assert (trace.overlap(), trace.hottest_quarter(), list(trace.requests())) == (0.0, 0.0, [])


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_survives_the_disk(tmp_path: Path, name: str) -> None:
    trace = two_steps()
    trace.save(tmp_path / name)
    again = RoutingTrace.load(tmp_path / name)
    assert again.steps == trace.steps
    assert (again.layers, again.num_experts, again.top_k, again.source) == ((1, 3), 4, 2, "recorded")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_gz_file_is_compressed(tmp_path: Path) -> None:
    two_steps().save(tmp_path / "t.gz")
    with gzip.open(tmp_path / "t.gz", "rt") as file:
        assert json.loads(file.readline())["num_steps"] == 2


HEADER = {
    "format": "moesaic.routing_trace", "version": 1, "layers": [0, 1], "num_experts": 4, "top_k": 2,
    "num_steps": 1, "source": "test",
}  # fmt: skip
STEP = {"tokens": 1, "ids": [[0, 1], [2, 3]]}


@pytest.mark.parametrize(
    ("header", "step", "message"),
    [
        ({"format": "other"}, {}, "line 1: format 'other'"),
        ({"version": 2}, {}, "line 1: format .* version 2"),
        ({"extra": 1}, {}, "line 1: unknown field 'extra'"),
        ({"top_k": None}, {}, "line 1: field 'top_k' is None"),
        ({"top_k": True}, {}, "line 1: field 'top_k' is True"),
        ({"top_k": 5}, {}, "line 1: .*top_k 5 of 4"),
        ({"num_experts": 1 << 20}, {}, "line 1: .*experts"),
        ({"layers": [1, 0]}, {}, "line 1: .*layers"),
        ({"layers": []}, {}, "line 1: .*layers"),
        ({"layers": ["a", "b"]}, {}, "line 1: .*layers"),
        ({"num_steps": 3}, {}, "line 1: 3 steps announced, 1 there"),
        ({}, {"tokens": 2}, "line 2: .*step 0 layer 0: 2 ids for 2 tokens"),
        ({}, {"tokens": "1"}, "line 2: field 'tokens'"),
        ({}, {"ids": [[0, 1]]}, "line 2: ids are no 2 lists"),
        ({}, {"ids": [[0, 1], 7]}, "line 2: ids are no 2 lists"),
        ({}, {"ids": [[0, 1], [2, 4]]}, "line 2: .*step 0 layer 1: token 0 has experts"),
        ({}, {"ids": [[0, 1], [2, -1]]}, "line 2: .*token 0"),
        ({}, {"ids": [[0, 1], [2, 2]]}, "line 2: .*token 0"),
        ({}, {"ids": [[0, 1], [2, 2.5]]}, "line 2: .*no integer"),
        ({}, {"ids": [[0, 1], [2]]}, "line 2: .*1 ids for 1 tokens"),
        ({}, {"domain": 3}, "line 2: field 'domain'"),
    ],
)
def test_nonsense_in_a_file_is_refused_by_line(
    tmp_path: Path, header: dict[str, object], step: dict[str, object], message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(HEADER | header) + "\n" + json.dumps(STEP | step) + "\n")
    with pytest.raises(UserError, match=message) as caught:
        RoutingTrace.load(path)
    assert "bad.jsonl" in str(caught.value)


def test_the_valid_file_of_the_test_above_loads(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    path.write_text(json.dumps(HEADER) + "\n" + json.dumps(STEP) + "\n")
    assert RoutingTrace.load(path).ids(0, 1) == ((2, 3),)


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", b"\xff\xfe"), ("b.gz", b"not gzip"), ("c", b""), ("d", b"[]")]
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="routing trace"):
        RoutingTrace.load(tmp_path / name)
    with pytest.raises(UserError, match="cannot be read"):
        RoutingTrace.load(tmp_path / "absent")


def test_a_truncated_gz_file_is_refused(tmp_path: Path) -> None:
    generate(2, 8, 2, 50, seed=0).save(tmp_path / "t.gz")
    data = (tmp_path / "t.gz").read_bytes()
    (tmp_path / "t.gz").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="cannot be read"):
        RoutingTrace.load(tmp_path / "t.gz")


def test_a_place_that_cannot_be_written_is_the_users_fault(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give a path"):
        two_steps().save(tmp_path / "absent" / "t.jsonl")


def test_recording_refuses_ids_that_do_not_fit() -> None:
    trace = RoutingTrace((0, 1), 4, 2)
    trace.begin_step()
    trace.record(0, [(0, 1)])
    with pytest.raises(UserError, match="2 tokens, 1 in the layer before"):
        trace.record(1, [(0, 1), (2, 3)])
    with pytest.raises(AssertionError):
        trace.begin_step()


def test_generated_traces_repeat_and_differ_by_seed() -> None:
    one, two, other = (generate(2, 8, 2, 20, seed) for seed in (1, 1, 2))
    assert one.steps == two.steps
    assert one.steps != other.steps


@pytest.mark.parametrize(("num_experts", "top_k", "overlap", "hottest"), [(8, 2, 0.41, 0.51), (128, 8, 0.31, 0.70)])
def test_defaults_give_the_documented_statistics(num_experts: int, top_k: int, overlap: float, hottest: float) -> None:
    trace = generate(8, num_experts, top_k, 256, seed=0)
    assert trace.overlap() == pytest.approx(overlap, abs=0.03)
    assert trace.hottest_quarter() == pytest.approx(hottest, abs=0.03)


def test_locality_raises_overlap_and_skew_raises_the_hottest_quarter() -> None:
    assert generate(4, 16, 2, 200, 0, locality=1.0).overlap() == 1.0
    low, high = (generate(4, 16, 2, 200, 0, locality=x).overlap() for x in (0.0, 0.6))
    assert low + 0.3 < high
    flat, steep = (generate(4, 16, 2, 200, 0, skew=x).hottest_quarter() for x in (0.0, 3.0))
    assert flat + 0.3 < steep


def test_drift_changes_the_hot_experts_and_labels_the_phases() -> None:
    trace = generate(1, 64, 1, 400, 0, locality=0.0, skew=3.0, drift_every=100)
    assert [step.domain for step in trace.steps[::100]] == ["phase0", "phase1", "phase2", "phase3"]
    favourites = []
    for phase in range(4):
        chosen = [trace.ids(step, 0)[0][0] for step in range(100 * phase, 100 * phase + 100)]
        favourites.append(max(set(chosen), key=chosen.count))
    assert len(set(favourites)) > 1


@pytest.mark.parametrize(
    "bad", [{"locality": 1.5}, {"skew": -1.0}, {"num_layers": 0}, {"num_steps": -1}, {"top_k": 9}, {"drift_every": 0}]
)
def test_generate_refuses_nonsense(bad: dict[str, float]) -> None:
    arguments = {"num_layers": 1, "num_experts": 8, "top_k": 2, "num_steps": 4, "seed": 0} | bad
    with pytest.raises(UserError, match="routing trace"):
        generate(**arguments)  # type: ignore[arg-type]
