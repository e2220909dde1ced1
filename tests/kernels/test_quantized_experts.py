"""grouped_experts on quantized pages: the slow twin is dequantize-then-multiply, the others are the slow twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.kernels import cpu, reference
from moesaic.kernels import experts as library_experts
from moesaic.kernels.choose import kernels
from moesaic.kernels.cpu.experts import ISAS, CpuExperts, best_isa
from tests.kernels.cases import (
    DEVICES,
    DTYPE_IDS,
    DTYPES,
    QUANTIZED_NAMES,
    dense_experts,
    make_experts,
    make_rows,
    quantized_shape,
)

EXTENSION = cpu.load()
needs_extension = pytest.mark.skipif(not EXTENSION.loaded, reason=EXTENSION.why_not)

# relative error: activations are rounded to x's dtype on the way; float32 ones only differ in the order of sums
BAR = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
# H, I, P: edges of groups, tiles and nibbles are cut off in turn
SIZES = [(96, 128, 64), (128, 256, 128), (200, 96, 48), (33, 45, 15), (64, 262, 262), (300, 80, 16)]
ROWS = [([1], 1), ([2, 0, 1], 3), ([3, 4, 17, 0], 20)]


def run(op, x, rows, pages, page_range=None):
    out_TH = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    op(x, rows, pages, out_TH, page_range).wait()
    return out_TH


def inputs(num_tokens, hidden, dtype, device="cpu", seed=9):
    return torch.randn(num_tokens, hidden, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def off(actual, expected):
    return float((actual.double().cpu() - expected.double().cpu()).norm() / expected.double().cpu().norm())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_the_slow_twin_is_dequantize_then_multiply(name, size):
    shape = quantized_shape(name, *size)
    experts, rows = make_experts(3, shape), make_rows([2, 0, 3], 5)
    x = inputs(5, shape.hidden, torch.float32)
    assert off(run(reference.grouped_experts, x, rows, experts.pages), dense_experts(x, rows, experts, "silu")) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("size", SIZES[1:4], ids=str)
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_torch_operators_equal_the_slow_twin(device, name, size, dtype):
    shape = quantized_shape(name, *size)
    for counts, num_tokens in ROWS:
        experts = make_experts(len(counts), shape, device, order="scattered")
        rows, x = make_rows(counts, num_tokens, device), inputs(num_tokens, shape.hidden, dtype, device)
        actual = run(library_experts.grouped_experts, x, rows, experts.pages)
        assert off(actual, run(reference.grouped_experts, x, rows, experts.pages)) < BAR[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_the_chosen_kernels_equal_the_slow_twin_within_a_thousandth(name, dtype):
    """Weights are dequantized exactly, and sums are float32: only the activations' dtype is left to differ in."""
    shape = quantized_shape(name, 160, 96, 48, activation="gelu")
    op = kernels(torch.device("cpu"), dtype).grouped_experts
    for counts, num_tokens in ROWS:
        experts, rows = make_experts(len(counts), shape), make_rows(counts, num_tokens)
        x = inputs(num_tokens, shape.hidden, dtype)
        assert off(run(op, x, rows, experts.pages), run(reference.grouped_experts, x, rows, experts.pages)) < 1e-3


@needs_extension
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_every_instruction_set_equals_the_slow_twin(isa, name, size):
    if isa not in ISAS[: ISAS.index(best_isa()) + 1]:
        pytest.skip(f"this processor has no {isa}")
    op, shape = CpuExperts(isa), quantized_shape(name, *size)
    # decode with one to eight rows, more of them, and enough for two tiles
    for counts, num_tokens in (([1, 2, 3], 3), ([4, 5, 0, 6], 6), ([7, 8], 8), ([9, 35], 35)):
        experts = make_experts(len(counts), shape, order="scattered")
        rows, x = make_rows(counts, num_tokens), inputs(num_tokens, shape.hidden, torch.float32)
        assert off(run(op, x, rows, experts.pages), run(reference.grouped_experts, x, rows, experts.pages)) < 1e-5


@needs_extension
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_compiled_kernels_round_no_activation(name, dtype):
    op, shape = CpuExperts(), quantized_shape(name, 1100, 256, 128)
    experts = make_experts(2, shape)
    for rows_each in (3, 20):
        rows, x = make_rows([rows_each] * 2, 20), inputs(20, shape.hidden, dtype)
        assert off(run(op, x, rows, experts.pages), run(reference.grouped_experts, x, rows, experts.pages)) < 1e-5


@needs_extension
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_the_number_of_threads_changes_no_bit(name):
    shape = quantized_shape(name, 96, 512, 64)
    experts, rows, x = make_experts(3, shape), make_rows([1, 4, 20], 20), inputs(20, 96, torch.float32)
    alone = run(CpuExperts(num_threads=1), x, rows, experts.pages)
    assert torch.equal(alone, run(CpuExperts(), x, rows, experts.pages))


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_page_ranges_sum_to_the_whole(device, name):
    shape = quantized_shape(name, 96, 160, 32)
    experts, rows = make_experts(3, shape, device), make_rows([3, 1, 3], 6, device)
    x = inputs(6, 96, torch.float32, device)
    op = kernels(x.device, torch.float32).grouped_experts
    parts = [run(op, x, rows, experts.pages, part) for part in ((0, 1), (1, 1), (1, 4), (4, 5))]
    assert off(sum(parts), run(reference.grouped_experts, x, rows, experts.pages)) < 2e-5


@pytest.mark.parametrize("name", ["int8", "int4-64-zp", "mxfp4"])
@pytest.mark.parametrize("rows_each", [2, 40])
def test_the_form_for_cuda_devices_is_right_on_the_cpu_too(rows_each, name, monkeypatch):
    monkeypatch.setattr(library_experts, "_pages_on_cpu", library_experts._pages_on_device)
    monkeypatch.setattr(library_experts, "_bmm_float32", lambda a, b: torch.bmm(a.float(), b.float()))
    monkeypatch.setattr(library_experts, "_mm_float32", lambda a, b: torch.mm(a.float(), b.float()))
    shape = quantized_shape(name, 64, 160, 32)
    for dtype in DTYPES:
        experts, rows = make_experts(3, shape), make_rows([rows_each] * 3, 40)
        x = inputs(40, 64, dtype)
        actual = run(library_experts.grouped_experts, x, rows, experts.pages)
        assert off(actual, run(reference.grouped_experts, x, rows, experts.pages)) < BAR[dtype]


@pytest.mark.parametrize("form", ["cpu", "device"])
@pytest.mark.parametrize("rows_each", [1, 40, 200])
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_temporaries_stay_under_the_bound(name, rows_each, form, monkeypatch):
    monkeypatch.setattr(library_experts, "SCRATCH_BYTES", 1 << 20)
    monkeypatch.setattr(library_experts, "BLOCK_ROWS", 96)
    if form == "device":
        monkeypatch.setattr(library_experts, "_pages_on_cpu", library_experts._pages_on_device)
    shape = quantized_shape(name, 96, 512, 32)
    experts, rows = make_experts(2, shape), make_rows([rows_each] * 2, 200)
    x, out_TH = inputs(200, 96, torch.float32), torch.zeros(200, 96)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        library_experts.grouped_experts(x, rows, experts.pages, out_TH)
    sizes = [(e.start_ns(), e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for _, num_bytes in sorted(sizes):
        live += num_bytes
        peak = max(peak, live)
    assert 0 < peak <= library_experts.experts_workspace_bytes(shape, rows_each)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any),
    hidden=st.integers(1, 200),
    page_units=st.integers(1, 140),
    num_pages=st.integers(1, 3),
    name=st.sampled_from(QUANTIZED_NAMES),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31),
)
def test_random_shapes_equal_the_slow_twin(counts, hidden, page_units, num_pages, name, dtype, seed):
    shape = quantized_shape(name, hidden, page_units * num_pages, page_units)
    experts, rows = make_experts(len(counts), shape, seed=seed), make_rows(counts, max(counts), seed=seed)
    x = inputs(max(counts), hidden, dtype, seed=seed)
    expected = run(reference.grouped_experts, x, rows, experts.pages)
    actual = run(kernels(x.device, dtype).grouped_experts, x, rows, experts.pages)
    assert (actual - expected).abs().max() <= 1e-3 * expected.abs().max() + 1e-6
