"""Engine options: checked at once, and unknown names are errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moesaic.core.errors import UserError
from moesaic.runtime.options import EngineOptions, cache_shape, share_bytes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"device_memory": "6 bananas"}, "device_memory"),
        ({"host_memory": -1}, "host_memory"),
        ({"expert_memory": "140%"}, "expert_memory"),
        ({"expert_memory": "nan%"}, "expert_memory"),
        ({"expert_memory": 0.4}, "write it as 40%"),
        ({"expert_memory": "0.4"}, "write it as 40%"),
        ({"expert_memory": "9" * 400}, "expert_memory"),
        ({"device_memory": 6e9}, "device_memory"),
        ({"device_memory": True}, "device_memory"),
        ({"cache": "4"}, "cache"),
        ({"cache": "0x4"}, "cache"),
        ({"load_format": "pickle"}, "load_format"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_num_batched_tokens": 4}, "max_num_seqs"),
        ({"max_num_batched_tokens": 10**8}, "max_num_batched_tokens"),
        ({"max_num_seqs": 10**6, "max_num_batched_tokens": 10**6}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_num_seqs": None}, "max_num_seqs"),
        ({"seed": "a"}, "seed"),
        ({"cache": None}, "cache"),
        ({"cache": 5}, "cache"),
        ({"cache": "9" * 5000 + "x1"}, "cache"),
        ({"eviction": []}, "eviction"),
        ({"device": None}, "device"),
        ({"dtype": 5}, "dtype"),
        ({"trace": 5}, "trace"),
        ({"trace": ""}, "trace"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"expert_memoy": "40%"}, "expert_memory"),
        ({"gpu_memory_utilization": 0.9}, "device_memory"),
        ({"trust_remote_code": True}, "never run"),
        ({"zzz": 1}, "known: "),
    ],
)
def test_what_cannot_be_is_refused_and_names_the_way_out(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EngineOptions(**({"model": "m"} | values))  # type: ignore[arg-type]


def test_paths_dtypes_and_devices_are_taken_by_their_names() -> None:
    options = EngineOptions(Path("a/b"), "bfloat16", device="cpu", trace=Path("t.json"))  # type: ignore[arg-type]
    assert (options.model, options.trace) == ("a/b", "t.json")
    options = EngineOptions("m", torch.float16, device=torch.device("cuda:1"))  # type: ignore[arg-type]
    assert (options.dtype, options.device) == ("float16", "cuda:1")


def test_cache_and_shares_are_read() -> None:
    assert cache_shape("auto") is None
    assert cache_shape("4x16") == (4, 16)
    assert cache_shape("4X16") == (4, 16)
    assert share_bytes("40%", 1000, "x") == 400
    assert share_bytes("0%", 1000, "x") == share_bytes("0", 1000, "x") == 0
    assert share_bytes("2KiB", 1000, "x") == 2048
    assert share_bytes(77, 1000, "x") == 77
