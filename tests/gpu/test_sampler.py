"""The sampler on a GPU: the CPU's tokens, one synchronization, bounded memory."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.runtime.sampler import SampleRow, sample
from moesaic.runtime.staging import Staging

pytestmark = pytest.mark.gpu
VOCAB = 32_000
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=50, min_p=0.01, logprobs=3),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={5: 2.0}),
    SamplingParams(temperature=1.5, min_tokens=9, logprobs=0),
]


def rows() -> list[SampleRow]:
    fill = GenerationDefaults().fill
    return [SampleRow(fill(p), [1, 2, 3], [4, 4, 5], frozenset({2}), (i + 0.5) / 4) for i, p in enumerate(PARAMS)]


def logits(seed: int) -> Tensor:
    return torch.randn(len(PARAMS), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_tokens_and_ranks_equal_the_cpus() -> None:
    host, device = Staging(torch.device("cpu"), 0), Staging(torch.device("cuda"), 64)
    for seed in range(20):
        device.begin_step()
        expected = sample(logits(seed), rows(), host)
        found = sample(logits(seed).cuda(), rows(), device)
        assert [s.token_id for s in found] == [s.token_id for s in expected]
        for a, b in zip(found, expected, strict=True):
            if a.logprobs is not None and b.logprobs is not None:
                assert a.logprobs.rank == b.logprobs.rank
                assert a.logprobs.logprob == pytest.approx(b.logprobs.logprob, abs=1e-5)


def test_a_step_synchronizes_once() -> None:
    staging, on_device, asked = Staging(torch.device("cuda"), 1024), logits(0).cuda(), rows()
    sample(on_device, asked, staging)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            sample(on_device, asked, staging)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    synchronizing = [str(w.message) for w in seen if "called a synchronizing" in str(w.message)]
    assert len(synchronizing) == 1, [(w.filename[-20:], w.lineno) for w in seen]


def test_temporaries_stay_within_80_bytes_a_logit() -> None:
    staging, on_device, asked = Staging(torch.device("cuda"), 1024), logits(0).cuda(), rows()
    sample(on_device, asked, staging)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sample(on_device, asked, staging)
    assert torch.cuda.max_memory_allocated() - before <= 80 * on_device.numel()


def test_a_staging_buffer_is_not_overwritten_while_it_is_read() -> None:
    staging = Staging(torch.device("cuda"), 4096)
    spin = torch.randn(4096, 4096, device="cuda")
    kept = []
    for step in range(6):
        staging.begin_step()
        for _ in range(20):
            spin = spin @ spin
        kept.append(staging.upload([step] * 4096))
        kept.append(staging.upload([step + 100] * 4096))  # does not fit: a new buffer, while the first copy is queued
    assert [int(t.unique().item()) for t in kept] == [x for step in range(6) for x in (step, step + 100)]
