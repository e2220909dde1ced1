"""Engine options: checked at once, and unknown names are errors."""

from __future__ import annotations

import pytest

from moesaic.core.errors import UserError
from moesaic.runtime.options import EngineOptions, cache_shape, share_bytes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"device_memory": "6 bananas"}, "device_memory"),
        ({"host_memory": -1}, "host_memory"),
        ({"expert_memory": "140%"}, "expert_memory"),
        ({"expert_memory": "0%"}, "expert_memory"),
        ({"cache": "4"}, "cache"),
        ({"cache": "0x4"}, "cache"),
        ({"load_format": "pickle"}, "load_format"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_num_batched_tokens": 4}, "max_num_seqs"),
        ({"expert_memoy": "40%"}, "expert_memory"),
        ({"gpu_memory_utilization": 0.9}, "device_memory"),
        ({"trust_remote_code": True}, "never run"),
        ({"zzz": 1}, "known: "),
    ],
)
def test_what_cannot_be_is_refused_and_names_the_way_out(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EngineOptions.of("m", **values)


def test_cache_and_shares_are_read() -> None:
    assert cache_shape("auto") is None
    assert cache_shape("4x16") == (4, 16)
    assert share_bytes("40%", 1000, "x") == 400
    assert share_bytes("2KiB", 1000, "x") == 2048
    assert share_bytes(77, 1000, "x") == 77
