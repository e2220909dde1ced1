"""Closing a model gives its device memory back, keeps its figures, and refuses further use."""

from __future__ import annotations

import weakref

import pytest

from moesaic.core.errors import UserError
from tests.engines import TINY, greedy, open_llm


def test_a_closed_model_holds_no_device_memory_and_says_that_it_is_closed():
    llm = open_llm(TINY, 10, assignment="fetch_misses")
    llm.generate([[1, 2, 3]], greedy(3), use_tqdm=False)
    parts = llm.engine.parts
    held = [weakref.ref(t) for t in (parts.run.runner.places.device_SB, parts.kv[0].keys, parts.decoder._embed)]
    del parts
    llm.close()
    llm.close()
    assert [ref() for ref in held] == [None] * 3
    assert llm.stats().decode_tokens == 2
    with pytest.raises(UserError, match="closed"):
        llm.generate([[1, 2, 3]], greedy(3), use_tqdm=False)
