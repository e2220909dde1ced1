"""Runs a named workload: the machine's rates, then every mode and budget in turn, round by round, then records."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

import moesaic
from moesaic.api import LLM
from moesaic.bench.assemble import DecodeRun, Provenance, record_of
from moesaic.bench.bounds import StepBytes, decode_bound, one_memory_bound
from moesaic.bench.machine import commit, describe_machine, versions
from moesaic.bench.measure import Recorder, Sample, generate_all
from moesaic.bench.peaks import Baseline, Peaks, take_baseline, watch
from moesaic.bench.prompts import Prompt, own_documents, random_prompt, read_documents, text_prompts
from moesaic.bench.rates import RateReport, measure_rates
from moesaic.bench.source import ModelSource, random_source, text_file, trained_source
from moesaic.bench.workloads import Budget, DecodeWorkload, RandomModel
from moesaic.core.model import ModelSpec
from moesaic.core.units import MiB
from moesaic.cost.footprint import dense_read_bytes, kv_token_bytes
from moesaic.kernels.layout import QUANTIZED
from moesaic.memory.checkpoint import read_json
from moesaic.memory.hub import resolve_model
from moesaic.memory.pages import PageLayout
from moesaic.observe.record import RunRecord, Value
from moesaic.policies.assignment import ASSIGNMENT
from moesaic.runtime.decide import EffectivePlan
from moesaic.runtime.device import choose_device, choose_dtype
from moesaic.runtime.step import Run
from moesaic.runtime.tokenizer import load_tokenizer
from moesaic.sim.routing_trace import RoutingTrace
from moesaic.specs import read_spec, tensor_specs

PACKAGE = Path(moesaic.__file__).parent
RUNS = 2  # rounds where nobody says how many
MACHINE_BLOCK_BYTES = 64 * MiB  # a copy where no model says how large an expert is

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line adds to a workload; empty or None: the workload's own."""

    modes: tuple[str, ...] = ()
    runs: int = RUNS
    model: Path | None = None
    text: Path | None = None
    routing: Path | None = None
    device: str | None = None


@dataclass(slots=True)
class Case:
    """One mode under one budget, and what its rounds gave."""

    mode: str
    budget: Budget
    samples: list[Sample] = field(default_factory=list)
    peaks: list[Peaks] = field(default_factory=list)
    plan: EffectivePlan | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that the rounds of one call share."""

    workload: DecodeWorkload
    source: ModelSource
    spec: ModelSpec
    itemsize: int
    device: torch.device
    prompts: tuple[Prompt, ...]
    forced: RoutingTrace | None
    baseline: Baseline


def run_workload(
    workload: DecodeWorkload, options: BenchOptions, command: tuple[str, ...], say: Say
) -> tuple[RunRecord, ...]:
    """One record per budget and mode, budgets outermost. Modes alternate, so that their ratio survives noise.

    UserError before anything is loaded for a mode, model, text or trace that cannot be used.
    """
    modes = options.modes or workload.modes
    for mode in modes:
        ASSIGNMENT[mode]
    forced = RoutingTrace.load(options.routing) if options.routing else None
    device = choose_device(options.device or workload.device)
    baseline = take_baseline(device)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    say(f"{workload.name}: {workload.description}")
    with _source(workload, options, device) as source:
        for note in source.notes:
            say(note)
        bench, text_notes = _prepare(workload, options, source, device, forced, baseline)
        say("measuring the machine's rates")
        report = measure_rates(device, _expert_bytes(bench))
        cases = [Case(mode, budget) for budget in workload.budgets() for mode in modes]
        for number in range(options.runs):
            for case in cases:
                say(f"round {number + 1} of {options.runs}: {case.mode}, {case.budget}")
                _measure(bench, case)
    provenance = Provenance(
        started,
        command,
        moesaic.__version__,
        commit(PACKAGE),
        describe_machine(device),
        versions(),
        report.quantities(),
    )
    notes = (*source.notes, *text_notes, *report.notes)
    return tuple(record_of(workload, _finish(bench, case, report, notes), provenance) for case in cases)


def run_machine(device_wish: str | None) -> RateReport:
    """Only the rates."""
    device = choose_device(device_wish or "auto")
    return measure_rates(device, MACHINE_BLOCK_BYTES)


def _source(
    workload: DecodeWorkload, options: BenchOptions, device: torch.device
) -> AbstractContextManager[ModelSource]:
    if options.model is not None:
        return nullcontext(trained_source(resolve_model(str(options.model)), PACKAGE, options.model.name))
    if isinstance(workload.model, RandomModel):
        in_memory = (workload.device_bytes or 0) if device.type == "cpu" else 0
        return random_source(workload.model, in_memory)
    return nullcontext(trained_source(None, PACKAGE))


def _prepare(
    workload: DecodeWorkload,
    options: BenchOptions,
    source: ModelSource,
    device: torch.device,
    forced: RoutingTrace | None,
    baseline: Baseline,
) -> tuple[Bench, tuple[str, ...]]:
    spec = read_spec(read_json(source.directory, "config.json"))
    itemsize = choose_dtype("auto", spec.dtype).itemsize
    notes = []
    if isinstance(workload.model, RandomModel) and options.text is None:
        prompts: tuple[Prompt, ...] = (random_prompt(spec.vocab, workload.prompt_tokens, workload.seed),)
        notes.append(f"text: random tokens, seed {workload.seed}")
    else:
        path, note = text_file(options.text, PACKAGE)
        notes.append(note)
        documents = read_documents(path) if path is not None else own_documents(PACKAGE)
        prompts = text_prompts(documents, load_tokenizer(source.directory).encode, workload.prompt_tokens)
    if forced is not None:
        notes.append(f"routing: forced from {options.routing} ({forced.source})")
    if device.type == "cpu":
        notes.append("bound: without a GPU every byte of a step is read out of one memory; caches may beat it")
    return Bench(workload, source, spec, itemsize, device, prompts, forced, baseline), tuple(notes)


def _measure(bench: Bench, case: Case) -> None:
    """One round of one case in an engine of its own: caches and allocators start the same in every mode."""
    with watch(bench.device, bench.baseline) as peaks, _opened(bench, case) as (llm, recorder):
        plan = llm.engine.parts.plan
        assert isinstance(plan, EffectivePlan)
        case.plan = plan
        seed = bench.workload.seed + len(case.peaks)
        case.samples += generate_all(llm, bench.prompts, bench.workload.new_tokens, seed, recorder)
        peaks.device_counted_bytes = llm.stats().device_peak_bytes
    case.peaks.append(peaks)


@contextmanager
def _opened(bench: Bench, case: Case) -> Iterator[tuple[LLM, Recorder]]:
    workload = bench.workload
    llm = LLM(
        str(bench.source.directory),
        device=str(bench.device),
        device_memory=case.budget.device_memory,
        expert_memory=case.budget.expert_memory,
        assignment=case.mode,
        load_format=bench.source.load_format,
        expert_format=workload.expert_format,
        max_model_len=workload.prompt_tokens + workload.new_tokens,
        max_num_batched_tokens=workload.prompt_tokens,
        max_num_seqs=1,
    )
    try:
        run = llm.engine.parts.run
        assert isinstance(run, Run)
        run.runner.tap.force(bench.forced)
        yield llm, Recorder(run.runner.tap, lambda: _empty_trace(bench.spec))
    finally:
        llm.close()
        del llm
        gc.collect()  # the engine's parts refer to each other in circles, and hold the device's memory
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def _empty_trace(spec: ModelSpec) -> RoutingTrace:
    moe = spec.moe(spec.moe_layers[0])
    return RoutingTrace(spec.moe_layers, moe.num_experts, moe.top_k)


def _finish(bench: Bench, case: Case, report: RateReport, notes: tuple[str, ...]) -> DecodeRun:
    """The case with its bound and its plan in plain values."""
    assert case.plan is not None, "a case without a round"
    workload, spec, budget = bench.workload, bench.spec, case.plan.budget
    context_tokens = workload.prompt_tokens + workload.new_tokens // 2
    step_bytes = dense_read_bytes(spec, tensor_specs(spec), bench.itemsize)
    step_bytes += kv_token_bytes(spec, bench.itemsize) * context_tokens
    traces = [sample.routing for sample in case.samples if sample.routing is not None]
    bound_of = one_memory_bound if bench.device.type == "cpu" else decode_bound
    bound = bound_of(traces, budget.expert_slots, StepBytes(budget.expert_bytes, step_bytes), report.rates)
    plan = plain_plan(case.plan, bench.source.label, bench.source.load_format)
    all_notes = (*notes, *case.plan.notes)
    return DecodeRun(case.mode, case.budget, tuple(case.samples), tuple(case.peaks), bound, plan, all_notes)


def plain_plan(plan: EffectivePlan, label: str, load_format: str) -> dict[str, Value]:
    """Every field of the effective plan as a plain value; the model by its label, because its folder is temporary."""
    values: dict[str, Value] = {}
    for name in (f.name for f in dataclasses.fields(plan)):
        value = getattr(plan, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            prefix = _PREFIXES.get(name, name)
            values |= {f"{prefix}_{k}": str(v) if dataclasses.is_dataclass(v) else v for k, v in inner.items()}
        elif name != "notes":
            values[name] = value
    return {**values, "model": label, "load_format": load_format}


_PREFIXES = {"budget": "device"}


def _expert_bytes(bench: Bench) -> int:
    moe, quantized = bench.spec.moe(bench.spec.moe_layers[0]), QUANTIZED.get(bench.workload.expert_format)
    return PageLayout.cut(bench.spec.hidden, moe.intermediate, bench.itemsize, quantized).expert_bytes
