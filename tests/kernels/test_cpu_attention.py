"""The compiled CPU attention against the dense formula and the slow twins: formats, instruction sets, shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from moesaic.kernels import attention, cpu, library, reference
from moesaic.kernels.api import KVFormat, PagedKV, PagedLatent, Ragged
from moesaic.kernels.choose import kernels
from moesaic.kernels.cpu.attention import CpuAttention, CpuLatentAttention
from moesaic.kernels.cpu.experts import ISAS
from moesaic.kernels.kv_formats import dequantize_kv, kv_row_dim, quantize_kv
from tests.kernels.cases import DTYPE_IDS, DTYPES, Sequences, close, dense_attention, make_sequences

EXTENSION = cpu.load()
needs_extension = pytest.mark.skipif(not EXTENSION.loaded, reason=EXTENSION.why_not)

STEP = [(1, 12), (6, 6), (0, 3), (4, 11), (1, 1), (2, 17), (1, 300)]
LONG = [(1, 257), (1, 256), (20, 700), (1, 1100), (90, 300)]
HEADS = [(1, 1, 16), (4, 2, 128), (6, 2, 20), (8, 1, 7), (7, 1, 80), (3, 3, 1), (16, 1, 64), (10, 2, 33)]
QUANTIZED: list[KVFormat] = ["int8", "int4"]


def run(op, s: Sequences, window=None, sinks=None, kv=None) -> Tensor:
    return op(s.query_TND, kv or s.kv, s.ragged, 0.3, window, sinks)


def quantized(s: Sequences, format: KVFormat) -> PagedKV:
    """The sequences' cache in `format`, written by the slow twin; whatever is not a sequence's has NaN for a scale."""
    head_dim = s.kv.keys.shape[3]
    size = (*s.kv.keys.shape[:3], kv_row_dim(head_dim, format))
    dtype = torch.int8 if format == "int8" else torch.uint8
    kv = PagedKV(*(torch.full(size, 85, dtype=dtype) for _ in range(2)), *torch.full((2, *size[:3]), float("nan")))
    used = ~s.kv.keys.isnan().any(-1).any(-1)
    slot_T = used.flatten().nonzero().flatten()
    reference.write_kv(s.kv.keys[used], s.kv.values[used], kv, slot_T)
    return kv


def dequantized(s: Sequences, kv: PagedKV) -> Sequences:
    """The same step with keys and values that are exactly what the quantized cache holds."""
    dim, block_tokens = s.kv.keys.shape[3], s.kv.keys.shape[1]
    dense = [
        dequantize_kv(codes, scales, dim) for codes, scales in ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
    ]
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for r, context in enumerate(s.ragged.context_lens):
        blocks = s.ragged.block_table_RW[r, : -(-context // block_tokens)]
        for rows, out in zip(dense, parts, strict=True):
            out.append(rows[blocks].flatten(0, 1)[:context])
    return Sequences(s.query_TND, PagedKV(*dense), s.ragged, *parts)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@needs_extension
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_every_format_instruction_set_and_shape_equals_the_dense_formula(dtype, heads, isa):
    s = make_sequences(STEP, heads, dtype=dtype)
    for window in (None, 1, 5):
        assert close(run(CpuAttention(isa), s, window), dense_attention(s, 0.3, window), dtype)


@needs_extension
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block_tokens", [1, 3, 16, 512])
def test_blocks_of_any_size_and_contexts_of_several_chunks_equal_the_dense_formula(block_tokens, isa):
    s = make_sequences(LONG, (4, 2, 24), block_tokens)
    for window in (None, 300):
        assert close(run(CpuAttention(isa), s, window), dense_attention(s, 0.3, window), torch.float32)


@needs_extension
@pytest.mark.parametrize("window", [255, 256, 257, 511, 512, 513])
def test_a_window_ends_at_its_token(window):
    s = make_sequences([(1, window - 1), (1, window), (1, window + 1), (3, window + 2), (1, 1000)], (2, 1, 32))
    assert close(run(CpuAttention(), s, window), dense_attention(s, 0.3, window), torch.float32)
    wider, narrower = (run(CpuAttention(), s, window + by) for by in (1, -1))
    assert not torch.equal(wider[2], narrower[2])


@needs_extension
@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_quantized_caches_equal_dequantize_then_attend(heads, isa, format):
    s = make_sequences(STEP, heads)
    kv = quantized(s, format)
    for window in (None, 5):
        expected = dense_attention(dequantized(s, kv), 0.3, window)
        assert relative(run(CpuAttention(isa), s, window, kv=kv), expected) < 1e-5


@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("op", [reference.paged_attention, attention.paged_attention], ids=["slow twin", "torch"])
def test_the_other_implementations_read_quantized_caches_too(op, format):
    s = make_sequences(STEP, (6, 2, 7))
    kv = quantized(s, format)
    assert relative(run(op, s, 5, kv=kv), dense_attention(dequantized(s, kv), 0.3, 5)) < 1e-5


@pytest.mark.parametrize(("format", "bound"), [("int8", 1 / 127), ("int4", 1 / 7)])
@pytest.mark.parametrize("head_dim", [1, 8, 13])
def test_quantizing_errs_by_half_a_step_and_keeps_zero(head_dim, format, bound):
    rows = torch.randn(5, 3, head_dim, generator=torch.Generator().manual_seed(head_dim))
    rows[2] = 0
    codes, scales = quantize_kv(rows, format)
    assert codes.shape == (5, 3, kv_row_dim(head_dim, format))
    back = dequantize_kv(codes, scales, head_dim)
    assert ((back - rows).abs() <= rows.abs().amax(-1, keepdim=True) * bound * 0.5001).all()
    assert torch.equal(back[2], rows[2])


@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("head_dim", [8, 5])
def test_write_kv_of_the_library_quantizes_as_the_slow_twin_does(head_dim, format):
    new = torch.randn(2, 4, 2, head_dim, generator=torch.Generator().manual_seed(3)).bfloat16()
    dtype = torch.int8 if format == "int8" else torch.uint8
    size = (4, 4, 2, kv_row_dim(head_dim, format))
    caches = [PagedKV(*torch.full((2, *size), 7, dtype=dtype), *torch.full((2, 4, 4, 2), 0.5)) for _ in range(2)]
    slot_T = torch.tensor([13, 2, 0, 11])
    for op, kv in zip((library.write_kv, reference.write_kv), caches, strict=True):
        op(new[0], new[1], kv, slot_T)
    for field in ("keys", "values", "key_scales", "value_scales"):
        assert torch.equal(getattr(caches[0], field), getattr(caches[1], field))
    assert (caches[0].key_scales == 0.5).sum() == 12 * 2


SINK_OPS = [reference.paged_attention, attention.paged_attention, *(CpuAttention(isa) for isa in ISAS)]


@pytest.mark.parametrize("op", SINK_OPS, ids=["slow twin", "torch", *ISAS])
@pytest.mark.parametrize("window", [None, 4])
def test_a_sink_takes_its_share_of_the_softmax(window, op):
    if isinstance(op, CpuAttention) and not EXTENSION.loaded:
        pytest.skip(EXTENSION.why_not)
    s = make_sequences([*STEP, (1, 600)], (4, 2, 16))
    sinks = torch.tensor([-3.0, 0.0, 2.5, 60.0])
    shares = []
    for r, keys in enumerate(s.keys):
        start, stop = s.ragged.query_starts[r : r + 2]
        scores = torch.einsum("qnd,lnd->nql", s.query_TND[start:stop], keys.repeat_interleave(2, dim=1)) * 0.3
        age = torch.arange(len(keys) - (stop - start), len(keys))[:, None] - torch.arange(len(keys))
        scores.masked_fill_((age < 0) | (age >= (window or 10**6)), float("-inf"))
        shares.append(torch.sigmoid(scores.double().logsumexp(-1) - sinks.double()[:, None]).T)
    expected = dense_attention(s, 0.3, window) * torch.cat(shares).unsqueeze(-1)
    assert close(run(op, s, window, sinks), expected, torch.float32)


@needs_extension
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5] * 8)], ids=["", "sinks"])
@pytest.mark.parametrize("isa", ISAS)
def test_the_bits_do_not_depend_on_the_number_of_threads_nor_on_the_rest_of_the_step(isa, sinks):
    s = make_sequences(LONG, (8, 2, 64), 16, torch.bfloat16)
    once = run(CpuAttention(isa, 1), s, sinks=sinks)
    for num_threads in (0, 1, 2, 3):
        for _ in range(3):
            assert torch.equal(run(CpuAttention(isa, num_threads), s, sinks=sinks), once)
    for r, context in enumerate(s.ragged.context_lens):
        start, stop = s.ragged.query_starts[r : r + 2]
        alone = Ragged([0, stop - start], [context], s.ragged.block_table_RW[r : r + 1])
        query = s.query_TND[start:stop]
        assert torch.equal(CpuAttention(isa)(query, s.kv, alone, 0.3, None, sinks), once[start:stop])


@needs_extension
def test_a_table_may_name_anything_behind_and_before_what_is_seen():
    s = make_sequences([(1, 40), (3, 60)], block_tokens=4)
    table = s.ragged.block_table_RW.clone()
    table[0, : (40 - 7) // 4] = -5
    table[1, : (60 - 2 - 7) // 4] = 10**9
    ragged = Ragged(s.ragged.query_starts, s.ragged.context_lens, table)
    actual = CpuAttention()(s.query_TND, s.kv, ragged, 0.3, 7)
    assert close(actual, dense_attention(s, 0.3, 7), torch.float32)


@needs_extension
def test_nothing_in_gives_nothing_out():
    s = make_sequences([(0, 5), (0, 0)])
    assert run(CpuAttention(), s).shape == (0, 4, 16)
    s = make_sequences([])
    assert run(CpuAttention(), s).shape == (0, 4, 16)


@needs_extension
def test_large_and_not_finite_scores_do_what_softmax_does():
    s = make_sequences([(1, 20), (1, 300), (1, 7)], (1, 1, 8))
    s.query_TND[0] *= 1e4
    s.query_TND[2, 0, 3] = float("nan")
    actual, expected = run(CpuAttention(), s), dense_attention(s, 0.3, None)
    assert close(actual[:2], expected[:2], torch.float32)
    assert actual[2].isnan().all()


@needs_extension
def test_queries_and_caches_may_be_views():
    s = make_sequences(STEP, (4, 2, 16), dtype=torch.bfloat16)
    wide = torch.full((s.query_TND.shape[0], 9, 16), float("nan"), dtype=torch.bfloat16)
    wide[:, 2:6] = s.query_TND
    both = torch.stack((s.kv.keys, s.kv.values), dim=3)
    views = PagedKV(both[:, :, :, 0], both[:, :, :, 1])
    actual = CpuAttention()(wide[:, 2:6], views, s.ragged, 0.3)
    assert torch.equal(actual, run(CpuAttention(), s))


@needs_extension
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s, t: (s.query_TND.double(), s.kv, s.ragged, t), "query"),
        (lambda s, t: (s.query_TND[:, :3], s.kv, s.ragged, t), "multiple"),
        (lambda s, t: (s.query_TND[..., :15], s.kv, s.ragged, t), "keys and values"),
        (lambda s, t: (s.query_TND, PagedKV(s.kv.keys, s.kv.values.bfloat16()), s.ragged, t), "one dtype"),
        (
            lambda s, t: (s.query_TND, PagedKV(s.kv.keys.to(torch.int8), s.kv.values.to(torch.int8)), s.ragged, t),
            "scales",
        ),
        (lambda s, t: (s.query_TND, s.kv, Ragged([0, 1], [9], t + 10**6), t), "block"),
        (lambda s, t: (s.query_TND, s.kv, Ragged([0, 1], [900], t), t), "table"),
        (lambda s, t: (s.query_TND, s.kv, Ragged([0, 2], [9], t), t), "query_starts"),
    ],
    ids=["dtype", "heads", "width", "mixed", "no scales", "block", "short table", "starts"],
)
def test_what_does_not_fit_is_refused(change, what):
    s = make_sequences([(1, 9)])
    query, kv, ragged, _ = change(s, s.ragged.block_table_RW)
    with pytest.raises(RuntimeError, match=what):
        CpuAttention()(query, kv, ragged, 0.3)


def latent_case(dtype, heads, rank, rope, lengths) -> tuple[Tensor, Tensor, PagedLatent, Ragged, Sequences]:
    """A latent step, and the same as attention with one kv head whose values are the keys' first part."""
    s = make_sequences(lengths, (heads, 1, rank + rope), dtype=dtype)
    for keys, values in zip(s.keys, s.values, strict=True):
        values.copy_(keys)
    query = s.query_TND
    return query[..., :rank], query[..., rank:], PagedLatent(s.kv.keys[:, :, 0]), s.ragged, s


LATENT_OPS = [reference.latent_attention, *(CpuLatentAttention(isa) for isa in ISAS)]


@pytest.mark.parametrize("op", LATENT_OPS, ids=["slow twin", *ISAS])
@pytest.mark.parametrize(("heads", "rank", "rope"), [(3, 32, 8), (5, 7, 4), (16, 512, 64)])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_latent_attention_equals_the_dense_formula(dtype, heads, rank, rope, op):
    if isinstance(op, CpuLatentAttention) and not EXTENSION.loaded:
        pytest.skip(EXTENSION.why_not)
    latent_query, rope_query, latent, ragged, s = latent_case(
        dtype, heads, rank, rope, [(1, 12), (3, 9), (0, 2), (1, 1)]
    )
    actual = op(latent_query, rope_query, latent, ragged, 0.05)
    assert actual.dtype == dtype
    assert close(actual, dense_attention(s, 0.05, None)[..., :rank], dtype)


@needs_extension
def test_latent_attention_over_several_chunks_has_the_same_bits_for_all_threads():
    *case, s = latent_case(torch.bfloat16, 20, 64, 16, [(1, 900), (5, 300)])
    once = CpuLatentAttention(num_threads=1)(*case, 0.05)
    assert close(once, dense_attention(s, 0.05, None)[..., :64], torch.bfloat16)
    for num_threads in (2, 3):
        assert torch.equal(CpuLatentAttention(num_threads=num_threads)(*case, 0.05), once)


@needs_extension
def test_the_cpu_is_served_by_the_compiled_attention_and_says_so():
    chosen = kernels(torch.device("cpu"), torch.bfloat16)
    assert isinstance(chosen.paged_attention, CpuAttention)
    assert "compiled" in chosen.why["paged_attention"]
