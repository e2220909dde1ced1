"""Pictures say what the data says: one cell per expert, within the width, readable without colour."""

import dataclasses
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moesaic.core.routing import ExpertId
from moesaic.observe.record import Quantity, RunRecord
from moesaic.observe.report import CELLS, comparison, expert_grid, quantities

RECORD = RunRecord(
    workload="decode/small",
    mode="cpu_misses",
    started="2026-01-02T03:04:05+00:00",
    command=("moesaic", "bench", "decode/small"),
    version="0.1.0",
    commit="",
    machine={},
    versions={},
    plan={},
    numbers={"decode": Quantity(19.5, "tok/s"), "moved_h2d": Quantity(1 << 30, "B")},
)


def residency(num_layers: int, num_experts: int, skip: int = -1) -> dict[ExpertId, str]:
    spaces = ("dev", "host", "disk")
    return {
        ExpertId(n, e): spaces[(n * 7 + e * e) % 3] for n in range(num_layers) if n != skip for e in range(num_experts)
    }


@given(st.integers(1, 48), st.integers(1, 130), st.sampled_from([60, 80, 120]), st.sampled_from(["utf-8", "ascii"]))
def test_one_cell_per_expert_and_no_line_past_the_width(num_layers, num_experts, width, encoding) -> None:
    where = residency(num_layers, num_experts)
    text = expert_grid(where, num_layers, num_experts, width, encoding).plain
    *lines, legend = text.splitlines()
    assert max(map(len, lines)) <= width
    text.encode(encoding)
    for space, cell in CELLS.items():
        glyph = cell.glyph if encoding == "utf-8" else cell.plain
        count = sum(value == space for value in where.values())
        assert sum(line.count(glyph) for line in lines) == count
        assert not count or f"{cell.legend} {count}" in legend


@pytest.mark.parametrize(("num_layers", "num_experts", "num_lines"), [(6, 8, 1), (32, 8, 7), (48, 128, 96)])
def test_known_geometries_fit_eighty_columns(num_layers: int, num_experts: int, num_lines: int) -> None:
    lines = expert_grid(residency(num_layers, num_experts), num_layers, num_experts).plain.splitlines()
    assert len(lines) == num_lines + 1
    assert max(map(len, lines)) <= 80


def test_experts_stand_in_order_beside_their_layers_label() -> None:
    where = {ExpertId(0, 0): "dev", ExpertId(0, 1): "host", ExpertId(1, 0): "disk", ExpertId(1, 1): "dev"}
    assert expert_grid(where, 2, 2).plain == "L0 █░  L1 ·█\n█ device 2  ░ host 1  · disk 1"


def test_a_dense_layer_has_no_row() -> None:
    text = expert_grid(residency(3, 4, skip=1), 3, 4).plain
    assert "L0" in text
    assert "L1" not in text
    assert "L2" in text


def printed(table: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue()


def test_modes_stand_under_each_other_with_units() -> None:
    other = dataclasses.replace(RECORD, mode="fetch_misses", numbers={"decode": Quantity(1108.4, "tok/s")})
    text = printed(comparison([RECORD, other], {"decode": "decode", "moved": "moved_h2d", "energy": "energy"}))
    bare = printed(comparison([RECORD], {"decode tok/s": "decode"}))
    assert bare.split()[-2:] == ["cpu_misses", "19.5"], "the heading says the unit"
    header, _, first, second = (line.split() for line in text.strip().splitlines())
    assert header == ["mode", "decode", "moved"], "nobody measured energy"
    assert first == ["cpu_misses", "19.5", "tok/s", "1.00", "GiB"]
    assert second == ["fetch_misses", "1,108", "tok/s", "-"]


def test_quantities_stand_one_a_row() -> None:
    text = printed(
        quantities(
            {
                "link": Quantity(55e9, "B/s"),
                "hand_off": Quantity(3.5e-6, "s"),
                "n": Quantity(8, "1"),
                "r": Quantity(0.5, "share"),
            }
        )
    )
    assert [line.split() for line in text.strip().splitlines()] == [
        ["link", "55.0", "GB/s"],
        ["hand", "off", "3.5", "us"],
        ["n", "8"],
        ["r", "50.0%"],
    ]
