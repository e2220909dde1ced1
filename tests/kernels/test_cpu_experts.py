"""Compiled grouped experts: every format, instruction set and shape against float64, handles, threads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from moesaic.kernels import cpu, reference
from moesaic.kernels.api import ABSENT, ExpertPages, ExpertRows, ExpertShape, SlotTable
from moesaic.kernels.choose import kernels
from moesaic.kernels.cpu.experts import ISAS, CpuExperts, best_isa
from moesaic.kernels.cpu.pool import PoolHandle, open_step, pool_size
from tests.kernels.cases import DTYPE_IDS, DTYPES, FORMATS, dense_experts, make_experts, make_rows

EXTENSION = cpu.load()
pytestmark = pytest.mark.skipif(not EXTENSION.loaded, reason=EXTENSION.why_not)

HAVE = ISAS[: ISAS.index(best_isa()) + 1] if EXTENSION.loaded else ISAS[:1]
# H, I, P: odd and padded ones, pages of 5, 16, 96, 128 units, inputs longer than a kernel's block
SIZES = [(32, 48, 16), (20, 15, 5), (17, 18, 9), (257, 192, 96), (640, 256, 128), (1, 2, 1)]
# rows per expert, tokens: few and many, whole tiles and not, several blocks of rows
ROWS = [([0, 1, 0], 1), ([3, 0, 8], 9), ([9, 16, 17], 17), ([40, 4, 33], 40)]


def ops(threads=0):
    return {isa: CpuExperts(isa, threads) for isa in HAVE}


def run(op, x, rows, pages, page_range=None):
    out_TH = torch.zeros(x.shape, dtype=torch.float32)
    op(x, rows, pages, out_TH, page_range).wait(60)
    return out_TH


def inputs(num_tokens, hidden, dtype):
    return torch.randn(num_tokens, hidden, generator=torch.Generator().manual_seed(9)).to(dtype)


def off(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def bar(isa, dtype, counts):
    """float32 sums, but for what these sets multiply as pairs of bf16: there act(gate) * up is rounded."""
    narrows = dtype == torch.bfloat16 and ISAS.index(isa) >= ISAS.index("avx512_bf16") and max(counts) > 8
    return 1e-2 if narrows else 2e-6


@pytest.mark.parametrize("counts", ROWS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("isa", HAVE)
def test_every_instruction_set_is_the_formula_in_float64(isa, dtype, size, counts):
    for activation in ("silu", "gelu", "relu"):
        shape = ExpertShape(*size, FORMATS[dtype], activation)
        experts, rows = make_experts(3, shape, order="scattered"), make_rows(*counts)
        x = inputs(counts[1], shape.hidden, dtype)
        actual = run(ops()[isa], x, rows, experts.pages)
        assert off(actual, dense_experts(x, rows, experts, activation)) <= bar(isa, dtype, counts[0])


@pytest.mark.parametrize("isa", HAVE)
def test_more_rows_than_a_block_takes_equal_the_formula(isa):
    shape = ExpertShape(64, 32, 16, "bf16")
    experts, rows, x = make_experts(2, shape), make_rows([600, 300], 600), inputs(600, 64, torch.bfloat16)
    assert off(run(ops()[isa], x, rows, experts.pages), dense_experts(x, rows, experts, "silu")) <= 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("isa", HAVE)
def test_activations_wider_than_the_weights_are_not_narrowed(isa, dtype):
    shape = ExpertShape(96, 32, 16, "bf16")
    experts, rows, x = make_experts(2, shape), make_rows([2, 20], 20), inputs(20, 96, dtype)
    assert off(run(ops()[isa], x, rows, experts.pages), dense_experts(x, rows, experts, "silu")) <= 2e-6


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
@pytest.mark.parametrize("isa", HAVE)
def test_activations_are_exact_to_float32_over_their_whole_range(isa, activation):
    # one weight of 1 in gate, up and down each: the output is act(x) * x
    values = torch.cat([torch.linspace(-110, 110, 4001), torch.logspace(-30, 2, 500), -torch.logspace(-30, 2, 500)])
    shape = ExpertShape(1, 1, 1, "fp32", activation)
    slab = torch.ones(1, 16).view(torch.uint8)
    pages = ExpertPages(slab, SlotTable(None, [[0]]), shape)
    count = len(values)
    for rows_each in (1, 16):  # the two kinds of kernels
        token_M, starts = torch.arange(count), [*range(0, count, rows_each), count]
        table = SlotTable(None, [[0]] * (len(starts) - 1))
        out = run(
            ops()[isa],
            values[:, None].contiguous(),
            ExpertRows(token_M, torch.ones(count), None, starts),
            replace(pages, table=table),
        )[:, 0]
        exact = reference.ACTIVATIONS[activation](values.double()) * values.double()
        if activation == "gelu":  # without the cancellation of 1 + erf
            exact = values.double().square() * 0.5 * torch.special.erfc(-values.double() * 0.5**0.5)
        normal = exact.abs() > 1e-30  # below, e^x leaves what float32 can hold
        error = ((out.double() - exact).abs() / exact.abs())[normal]
        # without fused products the exponent of erfc's tail is rounded to float32
        tail = (values < -2)[normal] & (activation == "gelu" and isa == "portable")
        assert error[~tail].max() < 8e-7
        assert not tail.any() or error[tail].max() < 2e-5
        assert ((out.double() - exact).abs()[~normal] <= 1e-30).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("isa", HAVE)
def test_page_ranges_add_up_and_an_empty_one_adds_nothing(isa, dtype):
    shape = ExpertShape(40, 80, 16, FORMATS[dtype])
    for counts in ([1, 2], [20, 9]):
        experts, rows, x = make_experts(2, shape), make_rows(counts, 20), inputs(20, 40, dtype)
        parts = [run(ops()[isa], x, rows, experts.pages, part) for part in ((0, 1), (1, 1), (1, 4), (4, 5))]
        assert off(sum(parts), dense_experts(x, rows, experts, "silu")) <= bar(isa, dtype, counts)
        assert torch.equal(parts[1], torch.zeros_like(parts[1]))


@pytest.mark.parametrize("isa", HAVE)
def test_it_adds_to_what_is_there_and_leaves_other_tokens_alone(isa):
    shape = ExpertShape(24, 16, 16, "fp32")
    experts, rows, x = make_experts(2, shape), make_rows([2, 12], 14), inputs(14, 24, torch.float32)
    out_TH = torch.full((14, 24), 3.0)
    ops()[isa](x, rows, experts.pages, out_TH).wait()
    torch.testing.assert_close(out_TH - 3, run(ops()[isa], x, rows, experts.pages), rtol=1e-5, atol=1e-5)
    unused = [t for t in range(14) if t not in rows.token_M.tolist()]
    assert (out_TH[unused] == 3).all()


@pytest.mark.parametrize("isa", HAVE)
def test_absent_experts_are_skipped_and_one_present_in_part_is_an_error(isa):
    shape = ExpertShape(24, 48, 16, "bf16")
    experts, x = make_experts(3, shape, absent=[1]), inputs(12, 24, torch.bfloat16)
    whole, op = make_experts(3, shape), ops()[isa]
    rows = make_rows([2, 12, 9], 12)
    elsewhere = make_experts(3, shape, absent=[0, 2])
    parts = run(op, x, rows, experts.pages) + run(op, x, rows, elsewhere.pages)
    assert off(parts, run(op, x, rows, whole.pages)) <= 1e-6
    torn = [list(slots) for slots in whole.pages.table.page_slots]
    torn[0][-1] = ABSENT
    with pytest.raises(AssertionError, match="in part"):
        run(op, x, rows, replace(whole.pages, table=SlotTable(None, torn)))


@pytest.mark.parametrize("rows_each", [3, 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("isa", HAVE)
def test_a_broken_row_leaves_the_others_bit_identical(isa, dtype, rows_each):
    shape = ExpertShape(40, 32, 16, FORMATS[dtype])
    experts, rows = make_experts(2, shape), make_rows([rows_each] * 2, rows_each)
    x = inputs(rows_each, 40, dtype)
    whole, x[1, 7] = run(ops()[isa], x, rows, experts.pages), float("nan")
    broken = run(ops()[isa], x, rows, experts.pages)
    others = [t for t in range(rows_each) if t != 1]
    assert torch.equal(broken[others], whole[others])
    assert broken[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("isa", HAVE)
def test_the_answer_is_the_same_twice_and_whatever_the_threads(isa, dtype):
    shape = ExpertShape(96, 128, 32, FORMATS[dtype])
    experts, rows, x = make_experts(3, shape), make_rows([1, 7, 30], 30), inputs(30, 96, dtype)
    answers = [run(ops(t)[isa], x, rows, experts.pages) for t in (1, 1, min(2, pool_size()), 0, 0)]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def long_work():
    """Some tenths of a second on one thread: handle, arguments."""
    shape = ExpertShape(1024, 1024, 128, "fp32")
    experts, rows, x = make_experts(2, shape), make_rows([256, 256], 256), inputs(256, 1024, torch.float32)
    out_TH = torch.zeros(256, 1024)
    return CpuExperts("portable", 1)(x, rows, experts.pages, out_TH), out_TH, x, rows, experts


def test_a_handle_is_asynchronous_times_out_and_may_be_waited_for_again():
    handle, out_TH, x, rows, experts = long_work()
    assert not handle.done()
    with pytest.raises(TimeoutError, match=r"0\.001"):
        handle.wait(0.001)
    handle.wait()
    assert handle.done()
    handle.wait(0)
    assert off(out_TH, dense_experts(x, rows, experts, "silu")) <= 2e-6


def test_a_dropped_handle_ends_its_work_first():
    handle, out_TH, x, rows, experts = long_work()
    del handle
    assert off(out_TH, dense_experts(x, rows, experts, "silu")) <= 2e-6


def test_calls_in_flight_together_keep_their_order_and_their_sums():
    shape = ExpertShape(64, 64, 16, "bf16")
    experts, rows, x = make_experts(3, shape), make_rows([5, 1, 20], 20), inputs(20, 64, torch.bfloat16)
    one = run(ops()[HAVE[-1]], x, rows, experts.pages)
    outs = [torch.zeros(20, 64) for _ in range(30)]
    with open_step(), open_step():
        handles = [ops(t % 2)[HAVE[-1]](x, rows, experts.pages, out) for t, out in enumerate(outs)]
        for handle in reversed(handles):
            handle.wait(60)
    assert all(torch.equal(out, one) for out in outs)


def test_waiting_for_unknown_work_says_so():
    with pytest.raises((RuntimeError, ValueError), match="ticket"):
        PoolHandle(1 << 60).wait()


def test_the_chooser_takes_it_and_names_the_instruction_set():
    chosen = kernels(torch.device("cpu"), torch.bfloat16)
    assert isinstance(chosen.grouped_experts, CpuExperts)
    assert best_isa() in chosen.why["grouped_experts"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 32, dtype=torch.float64)}, "float32, bfloat16 or float16"),
        ({"x": torch.zeros(4, 33, dtype=torch.bfloat16)}, "x's shape"),
        ({"out": torch.zeros(4, 32, dtype=torch.bfloat16)}, "out must be float32"),
        ({"token": torch.tensor([0, 4])}, "not a row of x"),
        ({"token": torch.tensor([0, -1])}, "not a row of x"),
        ({"token": torch.tensor([0, 1], dtype=torch.int32)}, "token must be int64"),
        ({"weight": torch.ones(3)}, "one length"),
        ({"spans": torch.tensor([[0, 3]])}, "spans"),
        ({"spans": torch.tensor([[1, 0]])}, "spans"),
        ({"slots": torch.tensor([[1]])}, "not in the slab"),
        ({"slots": torch.tensor([[-1]])}, "not in the slab"),
        ({"slab": torch.zeros(1, 100, dtype=torch.uint8)}, "does not fit"),
        ({"num_threads": 100_000}, "num_threads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_the_op_refuses_what_it_cannot_compute(change, message):
    arguments = {
        "x": torch.zeros(4, 32, dtype=torch.bfloat16),
        "token": torch.tensor([0, 1]),
        "weight": torch.ones(2),
        "spans": torch.tensor([[0, 2]]),
        "slots": torch.tensor([[0]]),
        "slab": torch.zeros(1, 3 * 16 * 32 * 2, dtype=torch.uint8),
        "out": torch.zeros(4, 32),
        "page_units": 16,
        "format": 1,
        "activation": 0,
        "max_isa": -1,
        "num_threads": 0,
    }
    with pytest.raises(RuntimeError, match=message):
        torch.ops.moesaic.grouped_experts(*(arguments | change).values())


EXIT = """
import torch
from moesaic.kernels import cpu, library
from moesaic.kernels.cpu.pool import open_step
cpu.load()
from tests.kernels import test_cpu_experts
open_step().__enter__()
kept = [test_cpu_experts.long_work() for _ in range(3)]
"""


@pytest.mark.long
def test_a_process_ends_cleanly_with_work_in_flight_and_a_step_open():
    subprocess.run([sys.executable, "-c", EXIT], check=True, timeout=120)
