"""What will be built, settled before any memory is taken: the checked checkpoint, the cut budgets, the policies.

A refusal here leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from moesaic.core.errors import UserError
from moesaic.core.model import ModelSpec, TensorSpec
from moesaic.core.units import format_bytes, parse_bytes
from moesaic.cost.budget import BudgetWishes, DeviceBudget, DeviceNeeds, fit
from moesaic.cost.footprint import StepShape, dense_bytes, kv_token_bytes, workspace_bytes
from moesaic.kernels import library
from moesaic.kernels.api import FORMAT_DTYPES, Activation, ExpertShape
from moesaic.kernels.layout import QUANTIZED, ExpertFormat
from moesaic.memory.checkpoint import Checkpoint, check_tensors, open_checkpoint, read_json
from moesaic.memory.hub import resolve_model
from moesaic.memory.pages import PageLayout
from moesaic.policies.assignment import ASSIGNMENT
from moesaic.policies.eviction import EVICTION
from moesaic.runtime.device import ALLOCATOR_BYTES, choose_device, choose_dtype, context_bytes
from moesaic.runtime.options import EngineOptions, cache_shape, share_bytes
from moesaic.specs import ignored, read_spec, tensor_specs

BLOCK_TOKENS = 16
GPU_SHARE = 0.9  # of a GPU that is taken where no budget is given, as other engines do


@dataclass(frozen=True, slots=True)
class Source:
    """A checked checkpoint and what it says the model is."""

    checkpoint: Checkpoint
    spec: ModelSpec
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class EffectivePlan:
    """What was decided, in the words that are printed and saved with every run."""

    model: str
    device: str
    dtype: str
    assignment: str
    eviction: str
    cache: str
    budget: DeviceBudget
    host_bytes: int
    layout: PageLayout
    notes: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        b = self.budget
        limit = "no limit" if b.budget_bytes is None else format_bytes(b.budget_bytes)
        return (
            f"{self.model} {self.dtype} on {self.device} ({limit})"
            + (f", experts in {self.layout.quantized}" if self.layout.quantized else ""),
            f"experts: {b.expert_slots} slots of {format_bytes(b.expert_bytes)} on the device ({self.cache}, "
            f"{self.eviction}), all {format_bytes(self.host_bytes)} on the host; {self.assignment}",
            f"device: weights {format_bytes(b.dense_bytes)}, KV {format_bytes(b.kv_bytes)} "
            f"({b.kv_blocks * BLOCK_TOKENS} tokens, context {b.max_model_len}), workspace "
            f"{format_bytes(b.workspace_bytes)}, runtime {format_bytes(b.context_bytes)}, experts "
            f"{format_bytes(b.expert_slots * b.expert_bytes)}",
            *self.notes,
        )


def open_source(options: EngineOptions) -> Source:
    """Resolves, reads and checks everything of the checkpoint but the weights themselves."""
    directory = resolve_model(options.model)
    dummy = options.load_format == "dummy"
    checkpoint = Checkpoint(directory, read_json(directory, "config.json"), {}) if dummy else open_checkpoint(directory)
    spec = read_spec(checkpoint.config)
    tensors = tensor_specs(spec)
    if not dummy:
        check_tensors(checkpoint, tensors, lambda name: ignored(spec, name))
    if not spec.moe_layers:
        raise UserError(f"{directory}/config.json: no layer has experts", "moesaic runs mixture-of-experts models")
    if len({spec.moe(layer).intermediate for layer in spec.moe_layers}) > 1:
        raise UserError(f"{directory}/config.json: experts of several sizes", "one size is supported in this version")
    return Source(checkpoint, spec, tensors)


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything that is settled before memory is taken."""

    source: Source
    device: torch.device
    dtype: torch.dtype
    layout: PageLayout
    shape: ExpertShape
    plan: EffectivePlan


def decide(options: EngineOptions, source: Source) -> Decision:
    """Cuts the budgets. UserError names the least that works, or the field that cannot be honoured."""
    spec = source.spec
    EVICTION[options.eviction]
    if options.assignment != "auto":
        ASSIGNMENT[options.assignment]
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, spec.dtype)
    moe = spec.moe(spec.moe_layers[0])
    layout = PageLayout.cut(spec.hidden, moe.intermediate, dtype.itemsize, QUANTIZED.get(options.expert_format))
    shape = _shape(layout, dtype, moe.activation)  # type: ignore[arg-type]
    host_bytes = spec.num_experts * layout.expert_bytes
    _check_host(options, host_bytes)
    cache = cache_shape(options.cache)
    for flag, value, default in (("cache", options.cache, "auto"), ("eviction", options.eviction, "lru")):
        if value != default and options.assignment in ("all_on_device", "cpu_only"):
            raise UserError(f"--{flag} {value}: {options.assignment} evicts nothing", "leave out one of the two")
    budget = _cut(options, source, device, _needs(options, source, device, dtype, layout, shape))
    if cache is not None:
        budget = _with_cache(budget, cache, spec)
    assignment = _settled(options.assignment, budget.expert_slots, spec.num_experts)
    name = "one set a layer" if cache is None else f"{cache[0]} sets x {cache[1]} ways"
    plan = EffectivePlan(
        options.model, str(device), str(dtype).removeprefix("torch."), assignment, options.eviction, name,
        budget, host_bytes, layout, _cut_short(options, budget, host_bytes),
    )  # fmt: skip
    return Decision(source, device, dtype, layout, shape, plan)


def _shape(layout: PageLayout, dtype: torch.dtype, activation: Activation) -> ExpertShape:
    """The layout in the kernels' words."""
    stored = layout.quantized or ExpertFormat(next(name for name, d in FORMAT_DTYPES.items() if d == dtype))
    return ExpertShape(
        layout.hidden, layout.intermediate, layout.page_units, stored.name, activation, stored.group, stored.zero_points
    )


def _cut_short(options: EngineOptions, budget: DeviceBudget, host_bytes: int) -> tuple[str, ...]:
    """Says so where the device has less room for experts than was asked for."""
    if options.expert_memory is None or options.assignment == "cpu_only":
        return ()
    asked = min(host_bytes, share_bytes(options.expert_memory, host_bytes, "--expert-memory"))
    held = budget.expert_slots * budget.expert_bytes
    if asked == 0 or (held and asked - held < budget.expert_bytes):
        return ()
    return (f"expert memory: {format_bytes(asked)} asked for, {format_bytes(held)} fit: whole experts, in the budget",)


def _check_host(options: EngineOptions, host_bytes: int) -> None:
    if options.host_memory is None:
        return
    limit = parse_bytes(options.host_memory, "--host-memory")
    if host_bytes > limit:
        raise UserError(
            f"host memory {format_bytes(limit)} is too small for {format_bytes(host_bytes)} of experts",
            f"give at least --host-memory {-(-host_bytes // (1 << 20))}MiB",
        )


def _cut(
    options: EngineOptions, source: Source, device: torch.device, needs: Callable[[int], DeviceNeeds]
) -> DeviceBudget:
    """The device budget, with the fewest slots that the assignment policy works with."""
    spec = source.spec
    needed = needs(MIN_SLOTS[options.assignment] if options.assignment != "all_on_device" else spec.num_experts)
    limit = None
    if options.expert_memory is not None:
        limit = share_bytes(options.expert_memory, spec.num_experts * needed.expert_bytes, "--expert-memory")
    budget_bytes = _budget_bytes(options, device)
    bounded = budget_bytes is not None or limit is not None or options.cache != "auto"
    if options.assignment == "cpu_only":
        limit = 0  # nothing would ever be in a slot
    elif options.assignment == "auto" and device.type == "cpu" and not bounded:
        limit = 0  # without a budget to keep, a second place in the same memory would only double it
    return fit(needed, BudgetWishes(budget_bytes, limit, options.max_model_len, options.max_num_seqs))


# expert slots without which a policy cannot run; all_on_device wants them all
MIN_SLOTS = {"auto": 0, "cpu_misses": 0, "cpu_only": 0, "fetch_misses": 1}


def _settled(wish: str, slots: int, num_experts: int) -> str:
    """The policy that runs: "auto" is everything on the device where it fits, else `cpu_misses`, of which `cpu_only`
    is what remains without a slot."""
    if wish == "auto" and slots == num_experts:
        return "all_on_device"
    if wish in ("auto", "cpu_misses"):
        return "cpu_misses" if slots else "cpu_only"
    return wish


def _budget_bytes(options: EngineOptions, device: torch.device) -> int | None:
    if options.device_memory is not None:
        wished = parse_bytes(options.device_memory, "--device-memory")
        if device.type == "cuda":
            total = torch.cuda.mem_get_info(device)[1]
            if wished > total:
                raise UserError(
                    f"--device-memory {format_bytes(wished)} is more than {device} has ({format_bytes(total)})",
                    "give what the GPU has, less what others use",
                )
        return wished
    if device.type == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return min(int(total * GPU_SHARE), free + torch.cuda.memory_reserved(device))


def _needs(
    options: EngineOptions, source: Source, device: torch.device, dtype: torch.dtype,
    layout: PageLayout, shape: ExpertShape,
) -> Callable[[int], DeviceNeeds]:  # fmt: skip
    spec, itemsize, tokens = source.spec, dtype.itemsize, options.max_num_batched_tokens
    a = spec.attention
    experts = library.workspace_bytes(shape, tokens)

    def workspace(max_model_len: int) -> int:
        attention = library.attention_workspace_bytes(
            a.num_heads, a.num_kv_heads, a.head_dim, itemsize, max_model_len, tokens
        )
        step = StepShape(tokens, options.max_num_seqs)
        allocator = ALLOCATOR_BYTES if device.type == "cuda" else 0
        return workspace_bytes(spec, itemsize, step, attention, experts) + allocator

    held = context_bytes(device, dtype)
    return lambda min_slots: DeviceNeeds(
        context_bytes=held,
        dense_bytes=dense_bytes(source.tensors, itemsize),
        workspace_bytes=workspace,
        kv_block_bytes=BLOCK_TOKENS * kv_token_bytes(spec, itemsize),
        block_tokens=BLOCK_TOKENS,
        expert_bytes=layout.expert_bytes,
        num_experts=spec.num_experts,
        min_slots=min_slots,
        max_positions=spec.max_positions,
    )


def _with_cache(budget: DeviceBudget, cache: tuple[int, int], spec: ModelSpec) -> DeviceBudget:
    """The budget with the slots that N sets x M ways take. UserError where they are more than fit."""
    wanted = cache[0] * cache[1]
    if wanted > budget.expert_slots:
        raise UserError(
            f"--cache {cache[0]}x{cache[1]} takes {wanted} expert slots, the device has room for {budget.expert_slots}",
            "give fewer sets or ways, or more --device-memory",
        )
    if cache[0] > len(spec.layers):
        raise UserError(
            f"--cache {cache[0]}x{cache[1]}: {cache[0]} sets for {len(spec.layers)} layers",
            "give at most one set per layer",
        )
    return replace(budget, expert_slots=wanted)
