"""grouped_experts: the slow twin against a dense formula, every implementation against the slow twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.kernels import experts as library_experts
from moesaic.kernels import reference
from moesaic.kernels.api import ABSENT, ExpertShape, SlotTable
from moesaic.kernels.choose import kernels
from tests.kernels.cases import (
    DEVICES,
    DTYPE_IDS,
    DTYPES,
    FORMATS,
    close,
    dense_experts,
    make_experts,
    make_rows,
)

# rows per expert; T is the number of tokens
ROWS = {
    "no rows": ([0, 0, 0, 0], 5),
    "no tokens": ([0, 0, 0, 0], 0),
    "one row": ([0, 1, 0, 0], 1),
    "one token, every expert": ([1, 1, 1, 1], 1),
    "uneven": ([3, 0, 1, 7], 9),
    "all to one": ([0, 0, 31, 0], 31),
    "all experts, many rows": ([33, 17, 16, 40], 40),
}


def _x(num_tokens, hidden, dtype, device="cpu"):
    return torch.randn(num_tokens, hidden, generator=torch.Generator().manual_seed(9)).to(device, dtype)


def _run(op, x, rows, pages, page_range=None):
    out_TH = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    op(x, rows, pages, out_TH, page_range).wait()
    return out_TH


def _shape(dtype, hidden=32, intermediate=48, page_units=16, activation="silu"):
    return ExpertShape(hidden, intermediate, page_units, FORMATS[dtype], activation)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
@pytest.mark.parametrize("case", ROWS)
def test_the_slow_twin_is_the_dense_formula(case, activation):
    counts, num_tokens = ROWS[case]
    shape = _shape(torch.float32, activation=activation)
    experts, rows = make_experts(len(counts), shape), make_rows(counts, num_tokens)
    x = _x(num_tokens, shape.hidden, torch.float64)
    out_TH = torch.zeros(x.shape, dtype=torch.float64)
    reference.grouped_experts(x, rows, experts.pages, out_TH).wait()
    torch.testing.assert_close(out_TH, dense_experts(x, rows, experts, activation), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["runs", "scattered"])
@pytest.mark.parametrize("case", ROWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_every_kind_equal_the_slow_twin(device, dtype, case, order):
    counts, num_tokens = ROWS[case]
    shape = _shape(dtype)
    experts, rows = make_experts(len(counts), shape, device, order=order), make_rows(counts, num_tokens, device)
    x = _x(num_tokens, shape.hidden, dtype, device)
    actual = _run(kernels(x.device, dtype).grouped_experts, x, rows, experts.pages)
    assert close(actual, _run(reference.grouped_experts, x, rows, experts.pages), dtype)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("rows_each", [2, 40])
@pytest.mark.parametrize("device", DEVICES)
def test_other_activations_equal_the_slow_twin(device, rows_each, activation):
    shape = _shape(torch.float32, activation=activation)
    experts, rows = make_experts(2, shape, device), make_rows([rows_each] * 2, 40, device)
    x = _x(40, shape.hidden, torch.float32, device)
    actual = _run(kernels(x.device, torch.float32).grouped_experts, x, rows, experts.pages)
    assert close(actual, _run(reference.grouped_experts, x, rows, experts.pages), torch.float32)


@pytest.mark.parametrize("rows_each", [1, 20])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_page_ranges_sum_to_the_whole(device, dtype, rows_each):
    shape = _shape(dtype, intermediate=80)
    experts, rows = make_experts(3, shape, device), make_rows([rows_each] * 3, 20, device)
    x = _x(20, shape.hidden, dtype, device)
    op = kernels(x.device, dtype).grouped_experts
    parts = [_run(op, x, rows, experts.pages, part) for part in ((0, 1), (1, 1), (1, 4), (4, 5))]
    assert close(sum(parts), _run(reference.grouped_experts, x, rows, experts.pages), dtype)
    assert torch.equal(parts[1], torch.zeros_like(parts[1]))


@pytest.mark.parametrize("padding_bytes", [0, 64, 192])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_padding_of_odd_pages_is_skipped(device, dtype, padding_bytes):
    shape = _shape(dtype, hidden=20, intermediate=15, page_units=5)  # 3*5*20 elements: no multiple of 64 bytes
    experts = make_experts(3, shape, device, padding_bytes=padding_bytes)
    rows, x = make_rows([4, 0, 2], 6, device), _x(6, 20, dtype, device)
    actual = _run(kernels(x.device, dtype).grouped_experts, x, rows, experts.pages)
    assert close(actual, _run(reference.grouped_experts, x, rows, experts.pages), dtype)


@pytest.mark.parametrize("op", [reference.grouped_experts, library_experts.grouped_experts])
@pytest.mark.parametrize("device", DEVICES)
def test_an_absent_expert_s_rows_are_skipped_and_one_present_in_part_is_an_error(device, op):
    shape = _shape(torch.float32)
    experts, x = make_experts(3, shape, device, absent=[1]), _x(4, shape.hidden, torch.float32, device)
    whole = make_experts(3, shape, device)
    without = make_rows([2, 0, 3], 4, device)
    assert torch.equal(_run(op, x, without, experts.pages), _run(op, x, without, whole.pages))
    # the same rows serve every place: what runs here and what runs elsewhere add up to all
    rows = make_rows([2, 2, 3], 4, device)
    elsewhere = make_experts(3, shape, device, absent=[0, 2])
    parts = _run(op, x, rows, experts.pages) + _run(op, x, rows, elsewhere.pages)
    assert close(parts, _run(op, x, rows, whole.pages), torch.float32)
    torn = [list(slots) for slots in experts.pages.table.page_slots]
    torn[0][-1] = ABSENT
    pages = replace(experts.pages, table=SlotTable(None, torn))
    with pytest.raises(AssertionError, match="in part"):
        _run(op, x, rows, pages)


@pytest.mark.parametrize("device", DEVICES)
def test_a_broken_row_leaves_the_others_bit_identical(device):
    shape = _shape(torch.float32)
    experts, rows = make_experts(2, shape, device), make_rows([6, 6], 6, device)
    x = _x(6, shape.hidden, torch.float32, device)
    op = kernels(x.device, torch.float32).grouped_experts
    good = _run(op, x, rows, experts.pages)
    x[2], x[4] = float("nan"), float("inf")
    broken = _run(op, x, rows, experts.pages)
    assert torch.equal(good[[0, 1, 3, 5]], broken[[0, 1, 3, 5]])
    assert not broken[[2, 4]].isfinite().any()


@pytest.mark.parametrize("rows_each", [3, 50])
@pytest.mark.parametrize("device", DEVICES)
def test_small_groups_and_row_blocks_add_up(device, rows_each, monkeypatch):
    monkeypatch.setattr(library_experts, "SCRATCH_BYTES", 40_000)
    monkeypatch.setattr(library_experts, "BLOCK_ROWS", 20)
    shape = _shape(torch.float32, intermediate=160)
    experts, rows = make_experts(2, shape, device), make_rows([rows_each] * 2, 50, device)
    x = _x(50, shape.hidden, torch.float32, device)
    actual = _run(library_experts.grouped_experts, x, rows, experts.pages)
    assert close(actual, _run(reference.grouped_experts, x, rows, experts.pages), torch.float32)


@pytest.mark.parametrize("rows_each", [2, 40])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_the_form_for_cuda_devices_is_right_on_the_cpu_too(dtype, rows_each, monkeypatch):
    """The batched form runs on CUDA only; its float32 products made here by hand, the rest is tested everywhere."""
    monkeypatch.setattr(library_experts, "_pages_on_cpu", library_experts._pages_on_device)
    monkeypatch.setattr(library_experts, "_bmm_float32", lambda a, b: torch.bmm(a.float(), b.float()))
    monkeypatch.setattr(library_experts, "_mm_float32", lambda a, b: torch.mm(a.float(), b.float()))
    for order in ("runs", "scattered"):
        shape = _shape(dtype, intermediate=80)
        experts, rows = make_experts(3, shape, order=order), make_rows([rows_each] * 3, 40)
        x = _x(40, shape.hidden, dtype)
        actual = _run(library_experts.grouped_experts, x, rows, experts.pages)
        assert close(actual, _run(reference.grouped_experts, x, rows, experts.pages), dtype)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    spare_tokens=st.integers(0, 3),
    hidden=st.sampled_from([2, 6, 17, 64]),
    page_units=st.integers(1, 9),
    num_pages=st.integers(1, 5),
    order=st.sampled_from(["runs", "scattered"]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_random_shapes_equal_the_slow_twin(counts, spare_tokens, hidden, page_units, num_pages, order, dtype, seed):
    shape = _shape(dtype, hidden, page_units * num_pages, page_units)
    num_tokens = max(counts) + spare_tokens
    experts, rows = make_experts(len(counts), shape, seed=seed, order=order), make_rows(counts, num_tokens, seed=seed)
    x = _x(num_tokens, hidden, dtype)
    actual = _run(library_experts.grouped_experts, x, rows, experts.pages)
    expected = _run(reference.grouped_experts, x, rows, experts.pages)
    # few elements average badly: the bar is for the rounding of each, so give it the scale of the whole
    error = (actual - expected).abs().max() if actual.numel() else torch.tensor(0.0)
    scale = expected.abs().max() if actual.numel() else torch.tensor(0.0)
    assert error <= {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 6e-3}[dtype] * scale + 1e-6


def test_the_library_needs_the_host_side_of_the_table():
    shape = _shape(torch.float32)
    experts, x = make_experts(1, shape), _x(1, shape.hidden, torch.float32)
    pages = type(experts.pages)(experts.pages.slab_SB, SlotTable(experts.pages.table.page_slots_EP), shape)
    with pytest.raises(AssertionError, match="driven from the host"):
        _run(library_experts.grouped_experts, x, make_rows([1], 1), pages)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("rows_each", [1, 16, 17, 300, 1500])
def test_temporaries_on_the_device_stay_under_the_bound(rows_each):
    shape = ExpertShape(2048, 2048, 128, "bf16")
    experts, rows = make_experts(2, shape, "cuda", order="runs"), make_rows([rows_each] * 2, 1500, "cuda")
    x, out_TH = _x(1500, 2048, torch.bfloat16, "cuda"), torch.zeros(1500, 2048, device="cuda")
    op = kernels(x.device, x.dtype).grouped_experts
    op(x, rows, experts.pages, out_TH)  # cuBLAS takes its own workspace on first use
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    op(x, rows, experts.pages, out_TH)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    assert 0 < peak <= library_experts.experts_workspace_bytes(shape, rows_each)


@pytest.mark.parametrize("form", ["cpu", "device"])
@pytest.mark.parametrize("rows_each", [1, 16, 17, 90, 200])
def test_temporaries_on_the_cpu_stay_under_the_bound(rows_each, form, monkeypatch):
    """What torch's allocator gave out at once; small constants, so that the bound is tight."""
    monkeypatch.setattr(library_experts, "SCRATCH_BYTES", 1 << 18)
    monkeypatch.setattr(library_experts, "BLOCK_ROWS", 96)
    if form == "device":
        monkeypatch.setattr(library_experts, "_pages_on_cpu", library_experts._pages_on_device)
    shape = ExpertShape(96, 512, 32, "fp32")
    experts, rows = make_experts(2, shape), make_rows([rows_each] * 2, 200)
    x, out_TH = _x(200, 96, torch.float32), torch.zeros(200, 96)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        library_experts.grouped_experts(x, rows, experts.pages, out_TH)
    sizes = [(e.start_ns(), e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for _, num_bytes in sorted(sizes):
        live += num_bytes
        peak = max(peak, live)
    bound = library_experts.experts_workspace_bytes(shape, rows_each)
    assert 0 < peak <= bound
    if form == "device" and rows_each >= 16:
        assert bound <= 3 * peak  # and is no idle one where it matters
