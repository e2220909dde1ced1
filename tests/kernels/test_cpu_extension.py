"""The compiled CPU kernels against their slow twins."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from moesaic.kernels import cpu, reference
from tests.kernels.cases import DTYPE_IDS, DTYPES, close

EXTENSION = cpu.load()
needs_extension = pytest.mark.skipif(not EXTENSION.loaded, reason=EXTENSION.why_not)


def installed() -> bool:
    try:
        importlib.metadata.version("moesaic")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(shutil.which("c++") is None or not installed(), reason="no compiler, or run from sources")
def test_an_installation_with_a_compiler_has_the_compiled_kernels():
    assert EXTENSION.loaded, EXTENSION.why_not


def test_loading_twice_gives_the_same_answer():
    assert cpu.load() == EXTENSION
    assert EXTENSION.loaded == (EXTENSION.why_not == "")


def test_a_broken_library_is_named_and_not_raised(tmp_path, monkeypatch):
    (tmp_path / cpu.LIBRARY).write_bytes(b"no library at all")
    monkeypatch.setattr(cpu, "__path__", [str(tmp_path)])
    found = cpu.load()
    assert not found.loaded
    assert found.path == tmp_path / cpu.LIBRARY
    assert cpu.LIBRARY in found.why_not
    assert "\n" not in found.why_not


@needs_extension
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (1, 8), (2, 3, 40), (5, 4096), (700, 133), (0, 16), (64,)], ids=str)
def test_rms_norm_equals_the_slow_twin(shape, dtype):
    generator = torch.Generator().manual_seed(sum(shape))
    x = (3 * torch.randn(shape, generator=generator)).to(dtype)
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    actual = cpu.rms_norm(x, weight, 1e-3)
    assert actual.dtype == dtype
    assert close(actual, reference.rms_norm(x, weight, 1e-3), dtype)


@needs_extension
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_rms_norm_rounds_once_to_xs_dtype_before_it_multiplies(dtype):
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight = torch.linspace(0.9, 1.1, 64).to(dtype)
    wide = x.double()
    normalized = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(dtype)
    # float32 inside may round the other way where the exact value lies at a tie: one unit in the last place
    unit = torch.finfo(dtype).eps
    assert ((cpu.rms_norm(x, weight, 1e-6) - normalized * weight).abs() <= unit * (normalized * weight).abs() * 2).all()


@needs_extension
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_rms_norm_keeps_nan_and_leaves_its_inputs_alone(dtype):
    x = torch.ones(2, 19, dtype=dtype)
    x[1, 18] = float("nan")
    before = x.clone()
    y = cpu.rms_norm(x, torch.ones(19, dtype=dtype), 1e-6)
    assert not y[0].isnan().any()
    assert y[1].isnan().all()
    assert torch.equal(x.nan_to_num(), before.nan_to_num())


@needs_extension
def test_rms_norm_of_a_column_slice_reads_only_the_slice():
    wide = torch.full((6, 64), float("nan"))
    x = wide[:, 8:40]
    x.copy_(torch.randn(6, 32))
    weight = torch.ones(32)
    assert torch.equal(cpu.rms_norm(x, weight, 1e-6), cpu.rms_norm(x.contiguous(), weight, 1e-6))


@needs_extension
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(2, 8), torch.ones(7)),
        (torch.ones(2, 8), torch.ones(8, dtype=torch.bfloat16)),
        (torch.ones(2, 8, dtype=torch.float64), torch.ones(8, dtype=torch.float64)),
        (torch.tensor(1.0), torch.ones(1)),
    ],
    ids=["width", "dtype of weight", "dtype", "no axis"],
)
def test_rms_norm_refuses_what_it_cannot_compute(x, weight):
    with pytest.raises(RuntimeError, match="rms_norm"):
        cpu.rms_norm(x, weight, 1e-6)


def words(num_words: int) -> torch.Tensor:
    return torch.randint(-(1 << 62), 1 << 62, (num_words,), generator=torch.Generator().manual_seed(num_words))


def exact_sum(data: torch.Tensor) -> int:
    return int(np.add.reduce(data.numpy()))


SIZES = [0, 1, 7, 8, 63, 64, 65, 511, 512, 513, 4096, 100_003]


@pytest.mark.parametrize("num_threads", [1, 2, 3, 16])
@pytest.mark.parametrize("num_words", SIZES)
def test_the_slow_twin_of_stream_read_sums_every_word_once(num_words, num_threads):
    data = words(num_words)
    assert cpu.stream_read_reference(data, num_threads) == exact_sum(data)


@needs_extension
@pytest.mark.parametrize("num_threads", [1, 2, 3, 16])
@pytest.mark.parametrize("num_words", SIZES)
def test_stream_read_reads_every_word_once_whatever_the_threads(num_words, num_threads):
    data = words(num_words)
    assert cpu.stream_read(data, num_threads) == exact_sum(data)


@needs_extension
@pytest.mark.parametrize("offset", range(9))
def test_stream_read_takes_data_at_any_word(offset):
    data = words(5000)[offset:]
    assert cpu.stream_read(data, 2) == exact_sum(data)


@needs_extension
def test_stream_read_takes_any_dtype_of_whole_words():
    data = torch.ones(16, dtype=torch.uint8)
    assert cpu.stream_read(data, 1) == 2 * 0x0101010101010101


@needs_extension
@pytest.mark.parametrize(
    ("data", "num_threads"),
    [(torch.ones(3, dtype=torch.uint8), 1), (words(64).view(8, 8).t(), 1), (words(8), 0), (words(8), 5000)],
    ids=["part of a word", "not contiguous", "no thread", "too many threads"],
)
def test_stream_read_refuses_what_it_cannot_read(data, num_threads):
    with pytest.raises(RuntimeError, match="stream_read"):
        cpu.stream_read(data, num_threads)


def test_the_kernels_use_no_c_plus_plus_streams():
    """torch's CUDA builds export pieces of an older C++ runtime: a stream made by one and read by the other crashes."""
    sources = [p for p in (Path(__file__).parents[2] / "csrc/cpu").iterdir() if p.suffix in (".cpp", ".h")]
    assert len(sources) > 10
    for source in sources:
        assert not re.search(r"#include <(fstream|sstream|iostream)>|STD_TORCH_CHECK", source.read_text()), source.name
