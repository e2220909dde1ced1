"""KVBlocks: which blocks of a paged KV cache belong to which sequence. Indices only."""

from __future__ import annotations

from collections.abc import Hashable


class KVBlocks:
    """`num_blocks` blocks of `block_tokens` tokens each, handed out sequence by sequence."""

    __slots__ = ("_free", "_tables", "block_tokens", "num_blocks")

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        assert num_blocks >= 0, num_blocks
        assert block_tokens > 0, block_tokens
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tables: dict[Hashable, list[int]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one sequence."""
        return -(-num_tokens // self.block_tokens)

    def extend(self, seq_id: Hashable, num_tokens: int) -> bool:
        """Makes room for `num_tokens` tokens of the sequence in all. False (nothing changed) where blocks lack.
        Never takes a block away."""
        table = self._tables.get(seq_id)
        missing = self.blocks_for(num_tokens) - (len(table) if table else 0)
        if missing > len(self._free):
            return False
        if missing > 0:
            if table is None:
                table = self._tables[seq_id] = []
            for _ in range(missing):
                table.append(self._free.pop())
        return True

    def free(self, seq_id: Hashable) -> None:
        """Gives all blocks of the sequence back; one that holds none is no fault."""
        self._free.extend(reversed(self._tables.pop(seq_id, ())))

    def table(self, seq_id: Hashable) -> tuple[int, ...]:
        """Token t of the sequence lies in block table[t // block_tokens]. Empty where the sequence holds none."""
        return tuple(self._tables.get(seq_id, ()))

    def held(self, seq_id: Hashable) -> int:
        """Blocks that the sequence holds."""
        return len(self._tables.get(seq_id, ()))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def check(self) -> None:
        """Asserts the invariants (tests): every block is free or in one table, once."""
        blocks = self._free + [block for table in self._tables.values() for block in table]
        assert sorted(blocks) == list(range(self.num_blocks))
