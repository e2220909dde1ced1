"""Law 4 for ExpertStore under any legal calls: what is pinned is not evicted, a failed fill changes nothing, counters
add up; and the law of order: a fill follows every op that may still use its slot, a reader follows its fill."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import ExpertId
from moesaic.memory.index import ExpertIndex, n_by_m, spread
from moesaic.memory.store import ExpertStore, State
from moesaic.policies.eviction import EVICTION

LAYERS = (0, 1, 4)
EXPERTS = [ExpertId(layer, e) for layer in LAYERS for e in range(4)]
expert_ids = st.sampled_from(EXPERTS)
GEOMETRIES: dict[str, Callable[[int], ExpertIndex]] = {
    "spread": lambda n: ExpertIndex(*spread(n, LAYERS), EVICTION["lru"]),
    "shared": lambda n: ExpertIndex(*n_by_m(2, n // 2, LAYERS), EVICTION["lfu"]),
    "one set": lambda n: ExpertIndex((n,), lambda expert: 0, EVICTION["fifo"]),
}


class StoreModel(RuleBasedStateMachine):
    """Keeps, beside the store, who pins what and every op that touched a slot and is not done."""

    @initialize(num_slots=st.integers(0, 7), geometry=st.sampled_from(sorted(GEOMETRIES)))
    def start(self, num_slots: int, geometry: str) -> None:
        self.store = ExpertStore(GEOMETRIES[geometry](num_slots), LAYERS)
        self.pins: dict[ExpertId, int] = {}
        self.begun: dict[ExpertId, int] = {}  # fills not issued -> slot
        self.fill_op: dict[ExpertId, int] = {}
        self.open_ops: dict[int, set[int]] = {slot: set() for slot in range(self.store.num_slots)}
        self.next_op = 0
        self.ended: set[int] = set()
        self.wanted = dict.fromkeys(LAYERS, 0)

    def issue(self) -> int:
        self.next_op += 1
        return self.next_op - 1

    @rule(expert=expert_ids)
    def demand(self, expert: ExpertId) -> None:
        assert self.store.demand(expert, self.next_op) is self.store.state(expert)
        self.wanted[expert.layer] += 1

    @rule(expert=expert_ids)
    def begin_fill(self, expert: ExpertId) -> None:
        if self.store.state(expert) is not State.MISS:
            return
        before = {e: (self.store.state(e), self.store.slot_of(e)) for e in EXPERTS}
        counters = self.store.counters.copy()
        grant = self.store.begin_fill(expert, self.next_op)
        if grant is None:
            assert {e: (self.store.state(e), self.store.slot_of(e)) for e in EXPERTS} == before
            assert self.store.counters == counters
            return
        assert not self.pins.get(grant.evicted or expert, 0), "a pinned expert was evicted"
        assert grant.evicted not in self.begun, "an expert whose fill is not issued was evicted"
        assert set(grant.after) >= self.open_ops[grant.slot], "the fill would overwrite a slot in use"
        assert before[grant.evicted][1] == grant.slot if grant.evicted else True
        if grant.evicted:
            self.fill_op.pop(grant.evicted, None)
        self.begun[expert] = grant.slot
        self.pins[expert] = 1
        assert self.store.state(expert) is State.PENDING

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def issue_or_cancel(self, data: st.DataObject) -> None:
        expert = data.draw(st.sampled_from(sorted(self.begun)))
        if data.draw(st.booleans()):
            self.issue_fill(expert)
        else:
            del self.begun[expert], self.pins[expert]
            self.store.cancel_fill(expert)
            assert self.store.state(expert) is State.MISS

    def issue_fill(self, expert: ExpertId) -> None:
        op = self.issue()
        self.store.filled_by(expert, op)
        self.open_ops[self.begun.pop(expert)] = {op}  # it follows all the others
        self.fill_op[expert] = op

    @rule(expert=expert_ids, num_reads=st.integers(1, 2))
    def run_at_once(self, expert: ExpertId, num_reads: int) -> None:
        """Fill if missing, read, release: the common way, which single calls drawn at random seldom complete."""
        self.begin_fill(expert)
        if expert in self.begun:
            self.issue_fill(expert)
        if self.store.state(expert) is State.MISS:
            return
        self.acquire(expert)
        for _ in range(num_reads):
            self.read(expert)
        while self.pins[expert]:
            self.release(expert)

    @rule(expert=expert_ids)
    def acquire(self, expert: ExpertId) -> None:
        if self.store.state(expert) is State.MISS or expert in self.begun:
            return
        slot, after = self.store.acquire(expert)
        self.pins[expert] = self.pins.get(expert, 0) + 1
        assert slot == self.store.slot_of(expert)
        op = self.fill_op.get(expert)
        assert after == ((op,) if op is not None else ())

    @precondition(lambda self: any(self.pins.values()))
    @rule(data=st.data())
    def read_or_release(self, data: st.DataObject) -> None:
        expert = data.draw(st.sampled_from(sorted(e for e, n in self.pins.items() if n)))
        assert self.store.slot_of(expert) is not None, "a pinned expert is gone"
        if expert in self.begun:
            return
        if data.draw(st.booleans()):
            self.read(expert)
        else:
            self.release(expert)

    def read(self, expert: ExpertId) -> None:
        op, slot = self.issue(), self.store.slot_of(expert)
        assert slot is not None
        self.store.read_by(expert, op)
        self.open_ops[slot].add(op)

    def release(self, expert: ExpertId) -> None:
        self.store.release(expert)
        self.pins[expert] -= 1

    @rule(num_open=st.integers(0, 4), others=st.sets(st.integers(0, 60), max_size=3))
    def settle(self, num_open: int, others: set[int]) -> None:
        """All but the last few ops have ended, or some op out of order."""
        self.ended |= set(range(self.next_op - num_open)) | {op for op in others if op < self.next_op}
        self.store.settle(self.ended.__contains__)
        for ops in self.open_ops.values():
            ops -= self.ended
        self.fill_op = {e: op for e, op in self.fill_op.items() if op not in self.ended}

    @invariant()
    def the_store_is_consistent(self) -> None:
        store = self.store
        store.check()
        pending = {e for e in EXPERTS if store.state(e) is State.PENDING}
        assert pending == set(self.begun) | set(self.fill_op)
        assert store.num_pending == len(pending)
        resident = {e for e in EXPERTS if store.state(e) is State.RESIDENT}
        assert set(store.resident()) == resident
        assert store.residency(EXPERTS) == {e: {HOST, DEVICE} if e in resident else {HOST} for e in EXPERTS}
        assert len(pending) + len(resident) <= store.num_slots
        counters = store.counters
        assert {layer: counters.hits[layer] + counters.misses[layer] for layer in LAYERS} == self.wanted


def test_store_keeps_pins_order_and_counters() -> None:
    run_state_machine_as_test(StoreModel, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@pytest.mark.long
def test_store_keeps_pins_order_and_counters_deep() -> None:
    run_state_machine_as_test(
        StoreModel,
        settings=settings(
            max_examples=1000, stateful_step_count=100, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
