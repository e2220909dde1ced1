"""The report of the CPU kernel bench: numbers, tables, record."""

from __future__ import annotations

import json

from moesaic.bench.kernels_attention import AttentionRow
from moesaic.bench.kernels_cpu import KernelReport, now, record_of_kernels
from moesaic.bench.kernels_experts import ExpertsRow
from moesaic.observe.record import RunRecord

REPORT = KernelReport(
    "avx2",
    4,
    40e9,
    3,
    {"fp32": 2e12},
    (ExpertsRow("bf16", "small", 2, 30e9, 6e10, 0.75, 1.5), ExpertsRow("int8", "small", 2, 20e9, 8e10, 0.5, None)),
    (AttentionRow("attention", "bf16", "2 x 40 tokens", 36e9, 12e9, 0.9),),
    ("a remark",),
)


def test_numbers_have_units_and_torch_is_left_out_where_it_has_no_operator():
    numbers = REPORT.quantities()
    assert numbers["host_read"] == (40e9, "B/s")
    assert numbers["experts bf16 small 2 flops"] == (0.06, "TFLOP/s")
    assert numbers["experts bf16 small 2 over_torch"] == (1.5, "1")
    assert numbers["attention bf16 2 x 40 tokens over_torch"] == (3.0, "1")
    assert "experts int8 small 2 over_torch" not in numbers


def test_the_record_survives_json_and_the_tables_have_a_line_a_row():
    record = record_of_kernels(REPORT, ("moesaic", "bench", "kernels-cpu"), now())
    assert RunRecord.from_json(record.to_json()) == record
    assert (record.mode, record.plan["threads"]) == ("avx2", 4)
    assert [table.row_count for table in REPORT.tables()] == [4, 2, 1]
    assert json.loads(json.dumps(REPORT.to_dict()))["experts"][1]["torch_s_ratio"] is None
