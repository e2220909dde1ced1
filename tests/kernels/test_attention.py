"""Attention, rotary, KV writes, RMSNorm: slow twins against independent formulas, the fast ones against both."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.kernels import attention, library, reference
from moesaic.kernels.api import PagedKV
from moesaic.kernels.choose import kernels
from tests.kernels.cases import DEVICES, DTYPE_IDS, DTYPES, close, dense_attention, make_sequences

# (queries, context) of each sequence
STEPS = {
    "nothing": [],
    "one token, first": [(1, 1)],
    "decode": [(1, 9), (1, 4), (1, 5)],
    "decode, some of equal length": [(1, 7), (1, 9), (1, 9), (1, 9), (1, 7)],
    "whole prompts": [(5, 5), (13, 13), (1, 1)],
    "chunks with a past": [(3, 10), (8, 12), (7, 8)],
    "decode, alike and then far apart": [(1, 9), (1, 11), (1, 10), (1, 60), (1, 2), (1, 3), (1, 50)],
    "mixed": [(1, 12), (6, 6), (4, 11), (1, 1), (1, 1), (2, 17)],
}
WINDOWS = [None, 1, 4, 6, 100]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("case", STEPS)
def test_the_slow_twin_is_the_dense_formula(case, window):
    sequences = make_sequences(STEPS[case])
    actual = reference.paged_attention(sequences.query_TND, sequences.kv, sequences.ragged, 0.3, window)
    assert close(actual, dense_attention(sequences, 0.3, window), torch.float32)


@pytest.mark.parametrize("lengths_on_device", [True, False])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("case", STEPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_steps_of_every_kind_equal_the_dense_formula(device, dtype, case, window, lengths_on_device):
    sequences = make_sequences(STEPS[case], dtype=dtype, device=device, lengths_on_device=lengths_on_device)
    op = kernels(sequences.query_TND.device, dtype).paged_attention
    actual = op(sequences.query_TND, sequences.kv, sequences.ragged, 0.3, window)
    assert actual.dtype == dtype
    assert close(actual, dense_attention(sequences, 0.3, window), dtype)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (8, 1)])
@pytest.mark.parametrize("head_dim", [16, 20, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
def test_head_counts_and_widths_equal_the_dense_formula(device, dtype, head_dim, heads):
    sequences = make_sequences(STEPS["mixed"], (*heads, head_dim), dtype=dtype, device=device)
    op = kernels(sequences.query_TND.device, dtype).paged_attention
    for window in (None, 5):
        actual = op(sequences.query_TND, sequences.kv, sequences.ragged, head_dim**-0.5, window)
        assert close(actual, dense_attention(sequences, head_dim**-0.5, window), dtype)


@pytest.mark.parametrize("window", [None, 3, 70])
@pytest.mark.parametrize("device", DEVICES)
def test_masked_queries_in_blocks_equal_the_whole(device, window, monkeypatch):
    monkeypatch.setattr(attention, "MAX_MASKED_QUERIES", 7)
    sequences = make_sequences([(40, 64), (50, 50)], device=device)
    actual = attention.paged_attention(sequences.query_TND, sequences.kv, sequences.ragged, 0.3, window)
    assert close(actual, dense_attention(sequences, 0.3, window), torch.float32)


def test_neighbours_decode_together_while_padding_stays_small(monkeypatch):
    def counts(lengths, lengths_on_device=True):
        ragged = make_sequences(lengths, lengths_on_device=lengths_on_device).ragged
        return [count for _, count in attention._together(ragged)]

    assert counts([(1, 9), (1, 12), (1, 10)]) == [3]
    assert counts([(1, 9), (1, 12), (1, 10)], lengths_on_device=False) == [1, 1, 1]
    assert counts([(1, 9), (1, 9), (1, 10)], lengths_on_device=False) == [2, 1]
    assert counts([(1, 2), (1, 2), (1, 2), (1, 50)]) == [3, 1]
    assert counts([(1, 9), (2, 9), (2, 9), (1, 9), (1, 9)]) == [1, 1, 1, 2]
    monkeypatch.setattr(attention, "TOGETHER_TOKENS", 24)
    assert counts([(1, 9), (1, 12), (1, 10), (1, 30), (1, 5), (1, 5)]) == [2, 1, 1, 2]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.just(1) | st.integers(1, 9), st.integers(0, 12)), max_size=6),
    block_tokens=st.sampled_from([1, 3, 16]),
    window=st.none() | st.integers(1, 20),
    lengths_on_device=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_random_steps_equal_the_dense_formula(lengths, block_tokens, window, lengths_on_device, seed):
    sequences = make_sequences(
        [(q, q + past) for q, past in lengths],
        block_tokens=block_tokens,
        seed=seed,
        lengths_on_device=lengths_on_device,
    )
    actual = attention.paged_attention(sequences.query_TND, sequences.kv, sequences.ragged, 0.3, window)
    assert close(actual, dense_attention(sequences, 0.3, window), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_tokens", [0, 1, 6])
def test_write_kv_fills_its_slots_and_nothing_else(num_tokens, device, dtype):
    slot_T = torch.tensor([13, 2, 0, 11, 7, 6])[:num_tokens].to(device)
    new = torch.randn(2, num_tokens, 2, 8).to(device, dtype)
    caches = [PagedKV(*torch.full((2, 4, 4, 2, 8), 7.0, dtype=dtype, device=device)) for _ in range(2)]
    kernels(new.device, dtype).write_kv(new[0], new[1], caches[0], slot_T)
    reference.write_kv(new[0], new[1], caches[1], slot_T)
    for actual, twin, written in zip(
        (caches[0].keys, caches[0].values), (caches[1].keys, caches[1].values), new, strict=True
    ):
        assert torch.equal(actual, twin)
        assert torch.equal(actual.flatten(0, 1)[slot_T], written)
        assert (actual == 7).sum() == (16 - num_tokens) * 2 * 8


@pytest.mark.parametrize("tables", ["float32", "as x"])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_rotary_turns_pairs_by_their_angle(num_tokens, device, dtype, tables):
    x = torch.randn(num_tokens, 3, 8).to(device, dtype)
    angle = (torch.rand(num_tokens, 4) * 6).to(device)
    cos, sin = (
        torch.cat([f(angle)] * 2, dim=-1).to(torch.float32 if tables == "float32" else dtype)
        for f in (torch.cos, torch.sin)
    )
    actual = kernels(x.device, dtype).rotary(x, cos, sin)
    assert actual.dtype == dtype
    assert close(actual, reference.rotary(x, cos, sin), dtype)
    pairs = torch.complex(x[..., :4].double(), x[..., 4:].double())
    turned = pairs * torch.complex(cos[:, None, :4].double(), sin[:, None, :4].double())
    assert close(actual, torch.cat((turned.real, turned.imag), dim=-1), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(0, 16), (1, 1), (3, 16), (2, 5, 24), (2, 4096)])
@pytest.mark.parametrize("implementation", ["library", "chosen"])
def test_rms_norm_equals_the_slow_twin_and_the_formula(implementation, shape, device, dtype):
    x = (torch.randn(shape) * 30).to(device, dtype)
    weight = (torch.rand(shape[-1:]) + 0.5).to(device, dtype)
    before = x.clone()
    op = library.rms_norm if implementation == "library" else kernels(x.device, dtype).rms_norm
    actual = op(x, weight, 1e-3)
    assert actual.dtype == dtype
    assert torch.equal(x, before)
    assert close(actual, reference.rms_norm(x, weight, 1e-3), dtype)
    wide = x.double()
    assert close(actual, wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double(), dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_rms_norm_of_a_view_with_wide_rows_equals_that_of_its_copy(device):
    x = torch.randn(6, 40, device=device)[:, :24]
    weight = torch.rand(24, device=device)
    op = kernels(x.device, x.dtype).rms_norm
    assert torch.equal(op(x, weight, 1e-5), op(x.contiguous(), weight, 1e-5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "lengths",
    [[(2048, 2048)], [(512, 8192)], [(1, 8192)] * 3, [(1, 1800 + r) for r in range(9)], [(1, 5000), (512, 4000)]],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_temporaries_on_the_device_stay_under_the_bound(dtype, lengths):
    sequences = make_sequences(lengths, (32, 8, 128), block_tokens=64, dtype=dtype, device="cuda")
    tokens = sequences.query_TND.shape[0]
    context = max(c for _, c in lengths)
    bound = attention.attention_workspace_bytes(32, 8, 128, dtype.itemsize, context, tokens)
    for window in (None, 1000):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = attention.paged_attention(sequences.query_TND, sequences.kv, sequences.ragged, 0.1, window)
        torch.cuda.synchronize()
        assert 0 < torch.cuda.max_memory_allocated() - before <= bound
        del out
