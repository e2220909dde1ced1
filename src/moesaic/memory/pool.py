"""PagePool: the equal slots of one place, which are free and which are pinned. Indices only, every call O(1)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class PagePool:
    """`num_slots` slots, each free or held; a held slot may be pinned, several times over.

    Misuse (freeing a free or a pinned slot, releasing an unpinned one) is a fault of the program: assert.
    """

    __slots__ = ("_free", "_pins", "_position", "_unpinned", "num_slots")

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 0, num_slots
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._position = list(range(num_slots - 1, -1, -1))  # of each free slot in _free; -1: held
        self._pins = [0] * num_slots
        self._unpinned: set[int] = set()

    def alloc(self) -> int | None:
        """A free slot, now held and unpinned, or None where all are held."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._position[slot] = -1
        self._unpinned.add(slot)
        return slot

    def take(self, slot: int) -> None:
        """Like alloc, for a free slot that the caller names."""
        position = self._position[slot]
        assert position >= 0, f"slot {slot} is held"
        last = self._free.pop()
        if last != slot:
            self._free[position] = last
            self._position[last] = position
        self._position[slot] = -1
        self._unpinned.add(slot)

    def free(self, slot: int) -> None:
        """Gives a held, unpinned slot back."""
        assert self._position[slot] < 0, f"slot {slot} is free already"
        assert not self._pins[slot], f"slot {slot} is pinned"
        self._position[slot] = len(self._free)
        self._free.append(slot)
        self._unpinned.remove(slot)

    def pin(self, slot: int) -> None:
        assert self._position[slot] < 0, f"slot {slot} is free"
        if not self._pins[slot]:
            self._unpinned.remove(slot)
        self._pins[slot] += 1

    def release(self, slot: int) -> None:
        """Takes one pin off."""
        pins = self._pins[slot] - 1
        assert pins >= 0, f"slot {slot} is not pinned"
        self._pins[slot] = pins
        if not pins:
            self._unpinned.add(slot)

    def pinned(self, slot: int) -> bool:
        return self._pins[slot] > 0

    def num_pins(self, slot: int) -> int:
        return self._pins[slot]

    def held(self, slot: int) -> bool:
        return self._position[slot] < 0

    @property
    def unpinned(self) -> AbstractSet[int]:
        """Held slots without a pin: those that may be given up. A live view; do not change the pool while iterating."""
        return self._unpinned

    @property
    def num_free(self) -> int:
        return len(self._free)

    def check(self) -> None:
        """Asserts the invariants (tests): free and held slots together are all slots; free ones have no pin."""
        assert sorted(self._free) == [s for s in range(self.num_slots) if not self.held(s)]
        assert all(self._free[self._position[s]] == s for s in self._free)
        assert all(pins >= 0 for pins in self._pins)
        assert not any(self._pins[s] for s in self._free)
        assert self._unpinned == {s for s in range(self.num_slots) if self.held(s) and not self._pins[s]}
