"""From a decision to a running engine: memory is taken once and in full, then weights are read into it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from moesaic.core.places import DEVICE, HOST, HardwareProfile, TierSpec
from moesaic.cost.budget import DeviceBudget
from moesaic.cost.footprint import expert_flops_per_token
from moesaic.cost.roofline import RooflineCost
from moesaic.kernels import choose
from moesaic.kernels.api import Kernels, PagedKV
from moesaic.memory.buffers import DevicePool, HostArena, Registration
from moesaic.memory.index import ExpertIndex, n_by_m, spread
from moesaic.memory.kv import KVBlocks
from moesaic.memory.store import ExpertStore
from moesaic.models import build as build_decoder
from moesaic.observe.chrome import TraceWriter
from moesaic.policies.admission import ADMISSION
from moesaic.policies.assignment import ASSIGNMENT
from moesaic.policies.eviction import EVICTION
from moesaic.runtime.decide import BLOCK_TOKENS, Decision, decide, open_source
from moesaic.runtime.dummy import dummy_dense, dummy_experts
from moesaic.runtime.engine import Engine, EngineLimits, EngineParts
from moesaic.runtime.executor import LaneExecutor
from moesaic.runtime.experts import Deciders, ExpertPlaces, ExpertRunner, HostStaging
from moesaic.runtime.forcing import RoutingTap
from moesaic.runtime.loader import load_dense, load_experts
from moesaic.runtime.meter import Meter
from moesaic.runtime.options import EngineOptions, cache_shape
from moesaic.runtime.pieces import Progress
from moesaic.runtime.rates import measure_profile
from moesaic.runtime.step import Run
from moesaic.runtime.tokenizer import load_tokenizer, read_generation_defaults

UNLIMITED_BYTES = 1 << 62
FILLS_IN_FLIGHT = 1  # experts: more would queue up behind the link and arrive after they are wanted


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything that was allocated."""

    pool: DevicePool
    arena: HostArena
    weights: dict[str, Tensor]
    kv: tuple[PagedKV, ...]
    device_SB: Tensor
    expert_errors: dict[int, float]  # by layer, where experts were quantized

    def close(self) -> None:
        """The host's memory goes at once; the device's with the last tensor, which the engine drops after this."""
        self.arena.close()
        self.pool.close()
        if self.pool.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, self.pool.device)


def _hold_to(device: torch.device, budget: DeviceBudget) -> None:
    """Makes the budget a hard limit: torch's allocator gives cached blocks back, or fails, rather than pass it. Sums
    stay in float32, also inside a split product."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.cuda.empty_cache()
    if budget.budget_bytes is not None:
        total = torch.cuda.mem_get_info(device)[1]
        # the limit is the process's, so what it holds already (another model, say) comes on top
        limit_bytes = budget.budget_bytes - budget.context_bytes + torch.cuda.memory_reserved(device)
        fraction = limit_bytes / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, fraction), device)


def take_memory(decision: Decision, options: EngineOptions, progress: Progress | None) -> Memory:
    """Allocates by the plan and reads the weights. On any failure what was taken is given back."""
    source, plan, layout = decision.source, decision.plan, decision.layout
    spec, budget = source.spec, plan.budget
    with ExitStack() as undo:
        if decision.device.type == "cuda":
            _hold_to(decision.device, budget)
            undo.callback(torch.cuda.set_per_process_memory_fraction, 1.0, decision.device)
        pool = DevicePool(decision.device, budget.budget_bytes or UNLIMITED_BYTES)
        undo.callback(pool.close)
        pool.reserve("runtime", budget.context_bytes)
        pool.reserve("workspace", budget.workspace_bytes)
        arena = HostArena(spec.num_experts * layout.num_pages, layout.page_bytes)
        undo.callback(arena.close)
        heads = (spec.attention.num_kv_heads, spec.attention.head_dim)
        kv_LC = pool.allocate("kv", (len(spec.layers), 2, budget.kv_blocks, BLOCK_TOKENS, *heads), decision.dtype)
        kv = tuple(PagedKV(layer[0], layer[1]) for layer in kv_LC)
        slab_shape = (budget.expert_slots * layout.num_pages, layout.page_bytes)
        device_SB = pool.allocate("experts", slab_shape, torch.uint8)
        if options.load_format == "dummy":
            weights = dummy_dense(spec, source.tensors, decision.dtype, pool, options.seed)
            errors = dummy_experts(spec, layout, decision.dtype, arena, options.seed)
        else:
            weights = load_dense(source.checkpoint, source.tensors, decision.dtype, pool)
            errors = load_experts(source.checkpoint, source.tensors, layout, decision.dtype, arena, progress)
        undo.pop_all()
    return Memory(pool, arena, weights, kv, device_SB, errors)


def profile_of(decision: Decision, memory: Memory, kernels: tuple[Kernels, Kernels]) -> HardwareProfile:
    """Measured where the policy weighs host against copy; a machine without slots has nothing to weigh."""
    if decision.plan.budget.expert_slots:
        return measure_profile(memory.arena.slab_SB, memory.device_SB, decision.shape, decision.dtype, kernels)
    return HardwareProfile("this machine", {HOST: TierSpec(0, 1.0), DEVICE: TierSpec(0, 1.0)}, {}, "not measured")


def build_runner(
    decision: Decision, memory: Memory, store: ExpertStore, executor: LaneExecutor, max_tokens: int
) -> ExpertRunner:
    """The sparse part, with its policies and kernels of both places."""
    spec, plan, device, dtype = decision.source.spec, decision.plan, decision.device, decision.dtype
    first, counts, number = {}, {}, 0
    for layer in spec.moe_layers:
        first[layer], counts[layer] = number, spec.moe(layer).num_experts
        number += counts[layer]
    places = ExpertPlaces(
        memory.arena.slab_SB, memory.device_SB, first, counts, dict.fromkeys(spec.moe_layers, decision.shape)
    )
    kernels = (choose.kernels(device, dtype), choose.kernels(torch.device("cpu"), dtype))
    flops = expert_flops_per_token(spec, spec.moe_layers[0])
    deciders = Deciders(
        ASSIGNMENT[plan.assignment](decision.layout.expert_bytes, flops),
        ADMISSION["limit"](FILLS_IN_FLIGHT * decision.layout.expert_bytes),
        RooflineCost(profile_of(decision, memory, kernels)),
    )
    top_k = max(spec.moe(layer).top_k for layer in spec.moe_layers)
    staging = HostStaging(max_tokens, spec.hidden, dtype, top_k, pinned=device.type == "cuda")
    return ExpertRunner(places, store, deciders, executor, kernels, staging, RoutingTap(spec, device))


def build_store(decision: Decision, eviction: str, cache: tuple[int, int] | None) -> ExpertStore:
    """Slots by the plan: one set a layer, or N sets x M ways."""
    layers = decision.source.spec.moe_layers
    geometry = spread(decision.plan.budget.expert_slots, layers) if cache is None else n_by_m(*cache, layers)
    return ExpertStore(ExpertIndex(*geometry, EVICTION[eviction]), layers)


def _notes(decision: Decision, registration: Registration, errors: dict[int, float]) -> tuple[str, ...]:
    """What became of the memory and the weights, for the plan."""
    notes = [f"host arena: {registration.message}"] if decision.device.type == "cuda" else []
    if errors:
        layers = ", ".join(f"L{layer} {error:.2%}" for layer, error in errors.items())
        notes.append(f"experts quantized to {decision.layout.quantized}, relative RMS error of the weights: {layers}")
    return tuple(notes)


def build_engine(options: EngineOptions, progress: Progress | None = None) -> Engine:
    """An engine by `options`, its weights loaded. UserError, with nothing left behind, where that cannot be."""
    source = open_source(options)
    tokenizer = load_tokenizer(source.checkpoint.directory)
    directory, config = source.checkpoint.directory, source.checkpoint.config
    defaults = read_generation_defaults(directory, config, tokenizer.eos_token_id)
    decision = decide(options, source)
    spec, plan = source.spec, decision.plan
    kept = ExitStack()  # what the engine's close undoes
    with ExitStack() as undo:
        trace = undo.enter_context(TraceWriter(Path(options.trace))) if options.trace else None
        memory = take_memory(decision, options, progress)
        undo.callback(memory.close)
        registration = memory.arena.register(unit_slots=decision.layout.num_pages)
        executor = LaneExecutor(decision.device)
        store = build_store(decision, options.eviction, cache_shape(options.cache))
        runner = build_runner(decision, memory, store, executor, options.max_num_batched_tokens)
        arena_facts = (memory.arena.num_bytes, memory.expert_errors)
        meter = Meter(spec, store, memory.pool, plan.budget.budget_bytes is not None, *arena_facts)
        observers = (meter.add, trace.append) if trace is not None else (meter.add,)
        run = Run(spec, decision.dtype.itemsize, executor, runner, observers)
        undo.callback(run.drain)  # before memory goes, and so that a trace has the last copies
        if plan.budget.expert_slots == spec.num_experts:
            runner.preload(spec.experts())
        notes = _notes(decision, registration, memory.expert_errors)
        parts = EngineParts(
            decoder=build_decoder(spec, memory.weights, runner.kernels),
            kv=memory.kv,
            kv_blocks=KVBlocks(plan.budget.kv_blocks, BLOCK_TOKENS),
            tokenizer=tokenizer,
            device=decision.device,
            run=run,
            limits=EngineLimits(plan.budget.max_model_len, options.max_num_seqs, options.max_num_batched_tokens),
            defaults=defaults,
            seed=options.seed,
            stats=meter,
            close=kept.close,
            plan=replace(plan, notes=plan.notes + notes),
        )
        engine = Engine(parts)
        kept.enter_context(undo.pop_all())
    return engine
