"""Every page equals the slices of the checkpoint's tensors that it stands for, in every dtype; memory is bounded."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from moesaic.core.errors import UserError
from moesaic.core.routing import ExpertId
from moesaic.core.units import slab_bytes
from moesaic.kernels import formats
from moesaic.kernels.layout import QUANTIZED, Block
from moesaic.memory.buffers import DevicePool, HostArena
from moesaic.memory.checkpoint import open_checkpoint
from moesaic.memory.pages import PageLayout
from moesaic.runtime import pieces
from moesaic.runtime.loader import load_dense, load_experts
from moesaic.specs import read_spec, tensor_specs
from tests.checkpoints import CONFIGS, MIXTRAL, QWEN3, tensor_table, write_checkpoint, write_shard

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# tiles, groups and pages are cut short, and layers are few
ODD = MIXTRAL | {"hidden_size": 300, "intermediate_size": 272, "num_attention_heads": 2, "num_hidden_layers": 1}
STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def _tensor(checkpoint, name):
    with safe_open(checkpoint.entries[name].path, "pt") as file:
        return file.get_tensor(name)


def _page(checkpoint, specs, layout, expert, page, dtype):
    """What a page must hold, recomputed from the whole tensors."""
    names = {t.part: t.name for t in specs if t.expert == expert}
    units = slice(page * layout.page_units, (page + 1) * layout.page_units)
    gate, up, down = (_tensor(checkpoint, names[part]) for part in ("gate", "up", "down"))
    return torch.cat([gate[units].flatten(), up[units].flatten(), down[:, units].flatten()]).to(dtype)


def _check_pages(directory, dtype, layout=None, progress=None):
    checkpoint = open_checkpoint(directory)
    spec = read_spec(checkpoint.config)
    specs = tensor_specs(spec)
    moe = spec.moe(spec.moe_layers[0])
    layout = layout or PageLayout.cut(spec.hidden, moe.intermediate, dtype.itemsize)
    arena = HostArena(spec.num_experts * layout.num_pages, layout.page_bytes)
    try:
        load_experts(checkpoint, specs, layout, dtype, arena, progress)
        for number, expert in enumerate(spec.experts()):
            for page in range(layout.num_pages):
                slot = arena.slab_SB[number * layout.num_pages + page, : 3 * layout.block_bytes].view(dtype)
                assert torch.equal(slot, _page(checkpoint, specs, layout, expert, page, dtype)), (expert, page)
    finally:
        arena.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family", CONFIGS)
def test_pages_equal_slices_of_the_tensors(tmp_path, family, stored, dtype):
    _check_pages(write_checkpoint(tmp_path, CONFIGS[family], 2, stored), dtype)


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.sampled_from([4, 12, 20, 32]),
    units=st.integers(1, 24),
    num_pages=st.integers(1, 5),
    stored=st.sampled_from(list(STORED)),
    dtype=st.sampled_from(DTYPES),
    block_bytes=st.sampled_from([1, 100, 1000, 1 << 20]),
    piece_bytes=st.sampled_from([1, 300, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_pages_equal_slices_whatever_the_cut_and_the_read_sizes(
    tmp_path_factory, hidden, units, num_pages, stored, dtype, block_bytes, piece_bytes, seed
):
    config = MIXTRAL | {"hidden_size": hidden, "intermediate_size": units * num_pages, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "num_local_experts": 3}
    directory = write_checkpoint(tmp_path_factory.mktemp("layout"), config, 1, stored, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BLOCK_BYTES", block_bytes)
        patch.setattr(pieces, "PIECE_BYTES", piece_bytes)
        _check_pages(directory, dtype, PageLayout(hidden, units * num_pages, dtype.itemsize, units))


def _quantized_page(checkpoint, specs, layout, expert, page):
    """Gate, up and down of one page as they are once quantized, each block by itself, and what they were."""
    names = {t.part: t.name for t in specs if t.expert == expert}
    units = slice(page * layout.page_units, (page + 1) * layout.page_units)
    gate, up, down = (_tensor(checkpoint, names[part]).float() for part in ("gate", "up", "down"))
    exact = gate[units], up[units], down[:, units]
    parts = (formats.quantize(block, layout.quantized) for block in exact)
    return [formats.dequantize(p, Block(layout.quantized, *x.shape)) for p, x in zip(parts, exact, strict=True)], exact


@pytest.mark.parametrize("name", [name for name in QUANTIZED if name != "int4"])
@pytest.mark.parametrize(
    ("config", "stored", "block_bytes"),
    [(MIXTRAL, "BF16", 1 << 20), (QWEN3, "F32", 5000), (ODD, "F16", 1 << 18)],
    ids=["mixtral", "qwen3", "odd"],
)
def test_quantized_pages_are_the_quantized_slices_and_the_error_is_theirs(tmp_path, config, stored, block_bytes, name):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, config, 2, stored))
    spec = read_spec(checkpoint.config)
    specs = tensor_specs(spec)
    layout = PageLayout.cut(spec.hidden, spec.moe(spec.moe_layers[0]).intermediate, 4, QUANTIZED[name])
    arena = HostArena(spec.num_experts * layout.num_pages, layout.page_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BLOCK_BYTES", block_bytes)
        patch.setattr(pieces, "PIECE_BYTES", 3 * block_bytes)
        errors = load_experts(checkpoint, specs, layout, torch.float32, arena)
    sums = {layer: [0.0, 0.0] for layer in spec.moe_layers}
    for number, expert in enumerate(spec.experts()):
        slots_NB = arena.slab_SB[number * layout.num_pages : (number + 1) * layout.num_pages]
        for page, blocks in enumerate(zip(*formats.unpack(slots_NB, layout.page), strict=True)):
            expected, exact = _quantized_page(checkpoint, specs, layout, expert, page)
            assert all(torch.equal(a, b) for a, b in zip(blocks, expected, strict=True)), (expert, page)
            sums[expert.layer][0] += sum(
                float((a - b).double().square().sum()) for a, b in zip(expected, exact, strict=True)
            )
            sums[expert.layer][1] += sum(float(b.double().square().sum()) for b in exact)
    arena.close()
    assert errors == {layer: pytest.approx((e / n) ** 0.5, rel=1e-4) for layer, (e, n) in sums.items()}
    assert all(0 < error < 0.15 for error in errors.values())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stored", STORED)
def test_everything_else_arrives_by_part_and_is_counted(tmp_path, stored, dtype):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, QWEN3, 3, stored))
    specs = tensor_specs(read_spec(QWEN3))
    pool = DevicePool(torch.device("cpu"), 1 << 20)
    weights = load_dense(checkpoint, specs, dtype, pool)
    dense = {t.part: t for t in specs if t.expert is None}
    assert set(weights) == set(dense)
    for part, weight in weights.items():
        assert torch.equal(weight, _tensor(checkpoint, dense[part].name).to(dtype)), part
    assert pool.held == {"weights": sum(slab_bytes(w.numel() * w.itemsize) for w in weights.values())}


def test_a_pool_too_small_for_the_weights_is_refused(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, MIXTRAL))
    with pytest.raises(UserError, match="no room for weights"):
        load_dense(checkpoint, tensor_specs(read_spec(MIXTRAL)), torch.float32, DevicePool(torch.device("cpu"), 9000))


def test_rounding_is_that_of_torch(tmp_path):
    """Ties, overflow, infinities, NaN, subnormals and signed zero convert bit for bit as Tensor.to does."""
    config = MIXTRAL | {"num_hidden_layers": 1}
    special = torch.tensor(
        [1e-45, -0.0, 65520.0, 65519.99, 3.4e38, float("inf"), float("nan"), 1 + 2**-8, 1 + 3 * 2**-8]
    )
    write_checkpoint(tmp_path, config, 1, "F32")
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    entry = open_checkpoint(tmp_path).entries["model.layers.0.block_sparse_moe.experts.0.w2.weight"]
    content[entry.offset : entry.offset + special.numel() * 4] = special.numpy().tobytes()
    path.write_bytes(bytes(content))
    checkpoint, specs = open_checkpoint(tmp_path), tensor_specs(read_spec(config))
    for dtype in (torch.bfloat16, torch.float16):
        layout = PageLayout.cut(32, 48, 2)
        arena = HostArena(4, layout.page_bytes)
        load_experts(checkpoint, specs, layout, dtype, arena)
        expected = _page(checkpoint, specs, layout, ExpertId(0, 0), 0, dtype)
        got = arena.slab_SB[0, : 3 * layout.block_bytes]
        assert torch.equal(got.view(torch.int16), expected.view(torch.int16))
        arena.close()


def test_progress_rises_to_the_total(tmp_path):
    seen = []
    _check_pages(
        write_checkpoint(tmp_path, MIXTRAL, 2), torch.float32, progress=lambda done, all_: seen.append((done, all_))
    )
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert {all_ for _, all_ in seen} == {seen[-1][0]} == {2 * 4 * 3 * 32 * 48 * 2}


@pytest.mark.parametrize("which", ["experts", "dense"])
def test_a_file_that_shrinks_after_it_was_opened_is_named(tmp_path, which):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, MIXTRAL, 2))
    specs = tensor_specs(read_spec(MIXTRAL))
    victim = tmp_path / "model-00002-of-00002.safetensors"
    os.truncate(victim, victim.stat().st_size // 2)
    layout = PageLayout.cut(32, 48, 4)
    arena = HostArena(8, layout.page_bytes)
    pool = DevicePool(torch.device("cpu"), 1 << 20)
    load = {
        "experts": lambda: load_experts(checkpoint, specs, layout, torch.float32, arena),
        "dense": lambda: load_dense(checkpoint, specs, torch.float32, pool),
    }[which]
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors: ended inside tensor") as caught:
        load()
    assert "\n" not in str(caught.value)
    arena.close()


def test_a_file_that_vanishes_is_named_and_no_file_stays_open(tmp_path):
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, MIXTRAL, 2))
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UserError, match=r"model-00001-of-00002\.safetensors: cannot be opened"):
        load_dense(
            checkpoint, tensor_specs(read_spec(MIXTRAL)), torch.float32, DevicePool(torch.device("cpu"), 1 << 20)
        )
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_tied_embeddings_must_equal_them(tmp_path, same):
    config = MIXTRAL | {"tie_word_embeddings": True}
    write_checkpoint(tmp_path, config)
    table = tensor_table(MIXTRAL)
    write_shard(tmp_path / "model.safetensors", table)
    if same:
        content = bytearray((tmp_path / "model.safetensors").read_bytes())
        entries = open_checkpoint(tmp_path).entries
        table, head = entries["model.embed_tokens.weight"], entries["lm_head.weight"]
        content[head.offset : head.offset + head.num_bytes] = content[table.offset : table.offset + table.num_bytes]
        (tmp_path / "model.safetensors").write_bytes(bytes(content))
    checkpoint, specs = open_checkpoint(tmp_path), tensor_specs(read_spec(config))
    pool = DevicePool(torch.device("cpu"), 1 << 20)
    if same:
        assert "lm_head" not in load_dense(checkpoint, specs, torch.float32, pool)
    else:
        with pytest.raises(UserError, match=r"lm_head\.weight differs.*tie_word_embeddings"):
            load_dense(checkpoint, specs, torch.float32, pool)
        assert pool.used_bytes == 0


PEAK = """
    import json, sys, torch
    from pathlib import Path
    from moesaic.kernels.layout import QUANTIZED
    from moesaic.memory.buffers import DevicePool, HostArena
    from moesaic.memory.checkpoint import open_checkpoint
    from moesaic.memory.pages import PageLayout
    from moesaic.runtime.loader import load_dense, load_experts
    from moesaic.specs import read_spec, tensor_specs

    def peak():
        return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

    checkpoint = open_checkpoint(Path(sys.argv[1]))
    dtype = getattr(torch, sys.argv[2])
    spec = read_spec(checkpoint.config)
    specs = tensor_specs(spec)
    before = peak()
    quantized = QUANTIZED.get(sys.argv[3])
    layout = PageLayout.cut(spec.hidden, spec.moe(0).intermediate, dtype.itemsize, quantized)
    arena = HostArena(spec.num_experts * layout.num_pages, layout.page_bytes)
    load_experts(checkpoint, specs, layout, dtype, arena)
    pool = DevicePool(torch.device("cpu"), 1 << 40)
    weights = load_dense(checkpoint, specs, dtype, pool)
    print(json.dumps({"peak": peak() - before, "weights": arena.num_bytes + pool.used_bytes}))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "form"),
    [("bfloat16", "auto"), ("float32", "auto"), ("float16", "auto"), ("bfloat16", "int4"), ("bfloat16", "fp8")],
)
def test_loading_takes_the_weights_and_bounded_scratch(tmp_path, dtype, form):
    """Peak memory of a process that loads 300 MB: weights and less than 256 MiB, whatever it converts."""
    from moesaic.bench.make_checkpoint import make_checkpoint
    from moesaic.bench.presets import geometry_of

    make_checkpoint(tmp_path / "m", geometry_of("mixtral-tiny", num_layers=48))
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK), str(tmp_path / "m"), dtype, form],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    measured = json.loads(out)
    assert measured["weights"] > (300e6 if form == "auto" else 90e6)
    assert measured["peak"] < measured["weights"] + (256 << 20)
