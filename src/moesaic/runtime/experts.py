"""The sparse part of a layer: routing -> demand -> assignment -> ops -> sum.

Decides nothing: the policy answers where tokens run, the store grants slots, `lower` orders the ops, the executor runs
them. What is here is the binding of op names to tensors.

Shape suffixes: T tokens, H hidden, K experts per token, M routed rows, S page slots, B page bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from moesaic.core.interfaces import AdmissionPolicy, AssignmentPolicy, CostModel
from moesaic.core.ops import Compute, Copy, Op
from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import Assignment, ExpertId, Move
from moesaic.kernels.api import ABSENT, ExpertPages, ExpertRows, ExpertShape, Kernels, Routing, SlotTable
from moesaic.memory.store import ExpertStore, State
from moesaic.runtime.executor import LaneExecutor
from moesaic.runtime.forcing import RoutingTap
from moesaic.schedules.lower import DEVICE_COMPUTE, DEVICE_LOAD, DEVICE_STORE, ExpertCost, Wave, lower

HOST_TIMEOUT_S = 600.0  # a host kernel that has not answered by then never will


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """The experts' bytes: `host_SB` holds every expert in `ModelSpec.experts()` order, `device_SB` the slots.

    Expert number i owns host page slots [i * num_pages, (i + 1) * num_pages); device slot s owns the same range of
    the device's slab. `first_expert` is the number of each layer's expert 0, `num_experts` how many it has.
    """

    host_SB: Tensor
    device_SB: Tensor
    first_expert: Mapping[int, int]
    num_experts: Mapping[int, int]
    shapes: Mapping[int, ExpertShape]

    def host_pages(self, expert: ExpertId) -> range:
        return self._pages(self.first_expert[expert.layer] + expert.expert, expert.layer)

    def device_pages(self, slot: int, layer: int) -> range:
        return self._pages(slot, layer)

    def _pages(self, number: int, layer: int) -> range:
        n = self.shapes[layer].num_pages
        return range(number * n, (number + 1) * n)


@dataclass(frozen=True, slots=True)
class Deciders:
    assignment: AssignmentPolicy
    admission: AdmissionPolicy
    cost: CostModel


class HostStaging:
    """Host twins of a step's activations, registered with the driver where there is one: [T, H] in and out."""

    def __init__(self, max_tokens: int, hidden: int, dtype: torch.dtype, top_k: int, pinned: bool) -> None:
        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, pin_memory=pinned)

        self.x_TH = empty(max_tokens, hidden, dtype=dtype)
        self.y_TH = empty(max_tokens, hidden, dtype=torch.float32)
        self.ids_TK = empty(max_tokens, top_k, dtype=torch.int64)
        self.weights_TK = empty(max_tokens, top_k, dtype=torch.float32)


class ExpertRunner:
    """Runs MoE layers; `kernels` and `host_kernels` are those of the device and of the host."""

    def __init__(
        self,
        places: ExpertPlaces,
        store: ExpertStore,
        deciders: Deciders,
        executor: LaneExecutor,
        kernels: tuple[Kernels, Kernels],
        staging: HostStaging,
        tap: RoutingTap,
    ) -> None:
        self.places = places
        self.store = store
        self.deciders = deciders
        self.executor = executor
        self.kernels, self.host_kernels = kernels
        self.staging = staging
        self.tap = tap
        self.step = 0
        itemsize = staging.x_TH.element_size()
        self.costs = {
            layer: ExpertCost(
                shape.num_pages * places.host_SB.shape[1],
                6 * shape.hidden * shape.intermediate,
                shape.hidden * (itemsize + 4),
            )
            for layer, shape in places.shapes.items()
        }

    def run(self, layer: int, x_TH: Tensor, routing: Routing, inputs: int) -> Tensor:
        """Weighted sum of each token's experts, float32 [T, H]. `inputs` is the op that made x and routing."""
        out_TH = x_TH.new_zeros(x_TH.shape, dtype=torch.float32)
        if self.tap.forces:
            # an op of its own, so that the ids' way to the host follows it and not only the router
            with self.executor.span(Op(f"L{layer}.forced", DEVICE_COMPUTE, Compute())) as inputs:
                routing = self.tap.routing(layer, routing)
        ids_TK, weights_TK = self._to_host(layer, routing, inputs)
        self.tap.record(layer, ids_TK)
        work = _LayerWork(self, layer, x_TH, out_TH, routing, ids_TK, weights_TK, inputs)
        work.run(self._assign(layer, work.num_tokens))
        return out_TH

    def preload(self, experts: Iterable[ExpertId]) -> None:
        """Copies experts to the device and waits until they are there; stops where the slots are used up."""
        last: int | None = None
        for expert in experts:
            grant = self.store.begin_fill(expert, self.step)
            if grant is None:
                break
            work = Copy(HOST, DEVICE, float(self.costs[expert.layer].expert_bytes))
            name = f"L{expert.layer}.fill.e{expert.expert}"
            with self.executor.span(Op(name, DEVICE_LOAD, work, grant.after, background=True)) as index:
                self.copy(expert)
            self.store.filled_by(expert, index)
            last = index
            self.store.release(expert)
        if last is not None:
            self.executor.wait(last)  # one lane, in order: the last is the last
        self.store.settle(self.executor.is_done)

    def copy(self, expert: ExpertId) -> None:
        """Starts the copy of an expert's pages from the host into its slot, on the current lane."""
        slot = self.store.slot_of(expert)
        assert slot is not None, f"{expert} has no slot"
        src, dst = self.places.host_pages(expert), self.places.device_pages(slot, expert.layer)
        self.places.device_SB[dst.start : dst.stop].copy_(self.places.host_SB[src.start : src.stop], non_blocking=True)

    def _assign(self, layer: int, num_tokens: Mapping[ExpertId, int]) -> Assignment:
        self.store.settle(self.executor.is_done)
        for expert in num_tokens:
            self.store.demand(expert, self.step)
        demand = {(DEVICE, expert): n for expert, n in num_tokens.items()}
        residency = self.store.residency(num_tokens)
        return self.deciders.assignment.assign(demand, residency, self.deciders.cost)

    def _to_host(self, layer: int, routing: Routing, inputs: int) -> tuple[Tensor, Tensor]:
        """Ids and weights on the host: the one point of a layer where the host waits for the device."""
        n = routing.topk_ids_TK.shape[0]
        ids_TK, weights_TK = self.staging.ids_TK[:n], self.staging.weights_TK[:n]
        num_bytes = float(ids_TK.nbytes + weights_TK.nbytes)
        with self.executor.span(Op(f"L{layer}.ids", DEVICE_STORE, Copy(DEVICE, HOST, num_bytes), (inputs,))) as index:
            ids_TK.copy_(routing.topk_ids_TK, non_blocking=True)
            weights_TK.copy_(routing.topk_weights_TK, non_blocking=True)
        self.executor.wait(index)
        return ids_TK, weights_TK


class _LayerWork:
    """One layer of one step: its rows by expert, and the waves that run them."""

    def __init__(
        self, runner: ExpertRunner, layer: int, x_TH: Tensor, out_TH: Tensor,
        routing: Routing, ids_TK: Tensor, weights_TK: Tensor, inputs: int,
    ) -> None:  # fmt: skip
        self.runner, self.layer, self.inputs = runner, layer, inputs
        self.x_TH, self.out_TH = x_TH, out_TH
        self.shape, self.cost = runner.places.shapes[layer], runner.costs[layer]
        self.num_experts = runner.places.num_experts[layer]
        top_k = ids_TK.shape[1]
        flat_M = ids_TK.flatten()
        order_M = torch.argsort(flat_M, stable=True)
        counts = torch.bincount(flat_M, minlength=self.num_experts).tolist()
        self.top_k, self.routing = top_k, routing
        self.starts = [0]
        for count in counts:
            self.starts.append(self.starts[-1] + count)
        self.num_tokens = {ExpertId(layer, e): n for e, n in enumerate(counts) if n}
        self.host_rows = ExpertRows(order_M // top_k, weights_TK.flatten()[order_M], None, self.starts)
        self._device_rows: ExpertRows | None = None
        self.pinned: list[ExpertId] = []  # acquired, or filled and not yet released
        self.granted: list[ExpertId] = []  # slots whose copy is not issued

    def run(self, assignment: Assignment) -> None:
        """Issues everything. Whatever is raised on the way leaves no pin behind and no fill that was never issued."""
        try:
            self._run(assignment)
        finally:
            for expert in self.granted:
                self.runner.store.cancel_fill(expert)
            for expert in self.pinned:
                self.runner.store.release(expert)

    def _run(self, assignment: Assignment) -> None:
        store = self.runner.store
        ways: dict[str, list[ExpertId]] = {"resident": [], "copied": [], "host": []}
        for share in assignment.shares:
            assert share.pages is None, f"the runner computes whole experts: {share}"
            # what an earlier step is still copying is followed, not copied again
            followed = share.way == "copied" and store.state(share.expert) is State.PENDING
            ways["resident" if followed else share.way].append(share.expert)
        resident = {}
        for expert in ways["resident"]:
            resident[expert] = store.acquire(expert)[1]
            self.pinned.append(expert)
        left = ways["copied"]
        wave = self._grant(left)
        fills = self._fills(assignment.moves)
        self._issue(Wave(self.layer, self.num_tokens, resident, wave, tuple(ways["host"]), fills))
        while left := left[len(wave) :]:
            wave = self._grant(left)
            assert wave, f"no slot for {left[0]}: a policy that copies was given no slots"
            self._issue(Wave(self.layer, self.num_tokens, fetched=wave))

    def _grant(self, experts: Sequence[ExpertId]) -> dict[ExpertId, tuple[int, ...]]:
        """As many of `experts`, in order, as slots can be granted for at once."""
        wave: dict[ExpertId, tuple[int, ...]] = {}
        for expert in experts:
            grant = self.runner.store.begin_fill(expert, self.runner.step)
            if grant is None:
                break
            self.granted.append(expert)
            wave[expert] = grant.after
        return wave

    def _fills(self, moves: Sequence[Move]) -> dict[ExpertId, tuple[int, ...]]:
        """Fills that admission lets start and the store has slots for; the rest is dropped, not queued."""
        store, deciders = self.runner.store, self.runner.deciders
        expert_bytes = self.cost.expert_bytes
        fills: dict[ExpertId, tuple[int, ...]] = {}
        for move in moves:
            if move.blocking or store.state(move.expert) is not State.MISS:
                continue
            admitted = deciders.admission.admit(move, store.num_pending * expert_bytes)
            grant = store.begin_fill(move.expert, self.runner.step) if admitted else None
            if grant is None:
                store.drop(move.expert)
            else:
                self.granted.append(move.expert)
                fills[move.expert] = grant.after
        return fills

    def _issue(self, wave: Wave) -> None:
        """Lowers and starts one wave; its pins end here, because what is issued is protected by order."""
        executor = self.runner.executor
        schedule = lower(wave, self.cost, self.x_TH.shape[0], executor.next_index, self.inputs)
        issued: set[str] = set()
        try:
            executor.enqueue(schedule, self._bindings(wave, issued))
        finally:
            self._note(wave, {op.name: schedule.first + i for i, op in enumerate(schedule.ops) if op.name in issued})

    def _note(self, wave: Wave, issued: Mapping[str, int]) -> None:
        """Tells the store which copies fill and which ops read the wave's slots; `issued` maps names to indices."""
        store, prefix = self.runner.store, f"L{self.layer}."
        for kind, experts in (("fetch", wave.fetched), ("fill", wave.fills)):
            for expert in experts:
                copy = issued.get(f"{prefix}{kind}.e{expert.expert}")
                if copy is not None:
                    store.filled_by(expert, copy)
                    self.granted.remove(expert)
                    self.pinned.append(expert)
        reads = {expert: issued.get(f"{prefix}expert.e{expert.expert}") for expert in wave.fetched}
        reads |= dict.fromkeys(wave.resident, issued.get(prefix + "hits"))
        for expert, reader in reads.items():
            if reader is not None:
                store.read_by(expert, reader)
        while self.pinned:
            store.release(self.pinned.pop())

    # -- what the op names do ------------------------------------------------------------------------------------
    def _bindings(self, wave: Wave, issued: set[str]) -> dict[str, Callable[[], None]]:
        """Callables by op name; each adds its name to `issued` once it has done its part without raising."""
        prefix = f"L{self.layer}."
        bindings: dict[str, Callable[[], None]] = {
            prefix + "hits": lambda: self._on_device(tuple(wave.resident)),
            prefix + "x": self._x_to_host,
            prefix + "host": lambda: self._on_host(wave.host),
            prefix + "y": self._y_to_device,
        }
        for expert in wave.fetched:
            bindings[f"{prefix}fetch.e{expert.expert}"] = partial(self.runner.copy, expert)
            bindings[f"{prefix}expert.e{expert.expert}"] = partial(self._on_device, (expert,))
        for expert in wave.fills:
            bindings[f"{prefix}fill.e{expert.expert}"] = partial(self.runner.copy, expert)

        def noted(name: str, work: Callable[[], None]) -> None:
            work()
            issued.add(name)

        return {name: partial(noted, name, work) for name, work in bindings.items()}

    def _on_device(self, experts: Sequence[ExpertId]) -> None:
        places, store = self.runner.places, self.runner.store
        slots = {e: store.slot_of(e) for e in experts}
        table = self._table({e: places.device_pages(s, self.layer) for e, s in slots.items() if s is not None})
        pages = ExpertPages(places.device_SB, table, self.shape)
        self.runner.kernels.grouped_experts(self.x_TH, self.device_rows(), pages, self.out_TH).wait()

    def device_rows(self) -> ExpertRows:
        """The rows as device tensors, made when first used: copies that are wanted at once are issued before."""
        if self._device_rows is None:
            if self.x_TH.device.type == "cpu":
                self._device_rows = self.host_rows
            else:
                order_M = torch.argsort(self.routing.topk_ids_TK.flatten(), stable=True)
                weight_M = self.routing.topk_weights_TK.flatten()[order_M]
                self._device_rows = ExpertRows(order_M // self.top_k, weight_M, None, self.starts)
        return self._device_rows

    def _on_host(self, experts: Sequence[ExpertId]) -> None:
        n = self.x_TH.shape[0]
        staging, places = self.runner.staging, self.runner.places
        table = self._table({e: places.host_pages(e) for e in experts})
        pages = ExpertPages(places.host_SB, table, self.shape)
        y_TH = staging.y_TH[:n].zero_()
        self.runner.host_kernels.grouped_experts(staging.x_TH[:n], self.host_rows, pages, y_TH).wait(HOST_TIMEOUT_S)

    def _x_to_host(self) -> None:
        self.runner.staging.x_TH[: self.x_TH.shape[0]].copy_(self.x_TH, non_blocking=True)

    def _y_to_device(self) -> None:
        y_TH = self.runner.staging.y_TH[: self.x_TH.shape[0]]
        self.out_TH += y_TH.to(self.out_TH.device, non_blocking=True)

    def _table(self, pages: Mapping[ExpertId, range]) -> SlotTable:
        table: list[Sequence[int]] = [(ABSENT,) * self.shape.num_pages] * self.num_experts
        for expert, slots in pages.items():
            table[expert.expert] = slots
        return SlotTable(None, table)
