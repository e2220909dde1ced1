"""KVBlocks under any calls: free + held = capacity, blocks have one owner, a failed extension takes nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.memory.kv import KVBlocks

CALLS = st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 40))), max_size=60)


def run(num_blocks: int, block_tokens: int, calls: list[tuple[str, int | None]]) -> None:
    """A call with None frees the sequence."""
    kv = KVBlocks(num_blocks, block_tokens)
    held: dict[str, int] = {}
    for seq, num_tokens in calls:
        before = {s: kv.table(s) for s in "abcd"}
        if num_tokens is None:
            kv.free(seq)
            held.pop(seq, None)
        else:
            need = max(held.get(seq, 0), -(-num_tokens // block_tokens))
            fits = sum(held.values()) - held.get(seq, 0) + need <= num_blocks
            assert kv.extend(seq, num_tokens) is fits
            if fits:
                held[seq] = need
                assert kv.table(seq)[: len(before[seq])] == before[seq]
            else:
                assert kv.table(seq) == before[seq]
        assert all(kv.table(s) == before[s] for s in "abcd" if s != seq)
        assert {s: kv.held(s) for s in "abcd"} == {s: held.get(s, 0) for s in "abcd"}
        assert kv.num_free == num_blocks - sum(held.values())
        kv.check()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 8), st.integers(1, 16), CALLS)
def test_blocks_equal_the_naive_model(num_blocks: int, block_tokens: int, calls: list[tuple[str, int | None]]) -> None:
    run(num_blocks, block_tokens, calls)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(st.integers(0, 12), st.integers(1, 16), CALLS)
def test_blocks_equal_the_naive_model_deep(
    num_blocks: int, block_tokens: int, calls: list[tuple[str, int | None]]
) -> None:
    run(num_blocks, block_tokens, calls)
