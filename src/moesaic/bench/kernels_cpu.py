"""`moesaic bench kernels-cpu`: every CPU kernel against the read bandwidth of the same run and torch's operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import torch
from rich.box import SIMPLE
from rich.table import Table
from torch import Tensor

import moesaic
from moesaic.bench.kernels_attention import AttentionRow, attention_rows
from moesaic.bench.kernels_experts import ExpertsRow, experts_rows
from moesaic.bench.machine import commit, describe_machine, versions
from moesaic.bench.rates import thread_counts
from moesaic.core.errors import UserError
from moesaic.core.units import GiB, MiB, format_bytes
from moesaic.kernels import cpu
from moesaic.kernels.cpu.experts import CpuExperts, best_isa
from moesaic.kernels.cpu.pool import pool_size
from moesaic.memory.buffers import HostArena
from moesaic.observe.record import Quantity, RunRecord
from moesaic.observe.report import quantities
from moesaic.runtime.machine import memory_facts

WORKLOAD = "kernels-cpu"
READ_BYTES = 8 * GiB
WEIGHT_BYTES = 2 * GiB
MIN_BYTES = GiB  # two Mixtral experts in fp32 do not fit less
_REPEATS = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """`read_bytes_s`: the best plain read, reached with `read_threads`; `matmul_flops_s`: torch's square product, by
    dtype: a yardstick of the arithmetic."""

    isa: str
    threads: int
    read_bytes_s: float
    read_threads: int
    matmul_flops_s: dict[str, float]
    experts: tuple[ExpertsRow, ...]
    attention: tuple[AttentionRow, ...]
    notes: tuple[str, ...]

    def quantities(self) -> dict[str, Quantity]:
        numbers = {
            "host_read": Quantity(self.read_bytes_s, "B/s"),
            "host_read_threads": Quantity(self.read_threads, "1"),
            "pool_threads": Quantity(self.threads, "1"),
        }
        numbers |= {f"matmul_{name}": Quantity(rate / 1e12, "TFLOP/s") for name, rate in self.matmul_flops_s.items()}
        for row in self.experts:
            name = f"experts {row.format} {row.geometry} {row.rows}"
            numbers[f"{name} bytes"] = Quantity(row.bytes_s, "B/s")
            numbers[f"{name} flops"] = Quantity(row.flops_s / 1e12, "TFLOP/s")
            numbers[f"{name} of_read"] = Quantity(row.share, "share")
            if row.torch_s_ratio is not None:
                numbers[f"{name} over_torch"] = Quantity(row.torch_s_ratio, "1")
        for attention in self.attention:
            name = f"{attention.op} {attention.format} {attention.shape}"
            numbers[f"{name} bytes"] = Quantity(attention.bytes_s, "B/s")
            numbers[f"{name} of_read"] = Quantity(attention.share, "share")
            numbers[f"{name} over_torch"] = Quantity(attention.bytes_s / attention.torch_bytes_s, "1")
        return numbers

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def tables(self) -> tuple[Table, ...]:
        """For a terminal: the machine, experts, attention."""
        machine = {name: q for name, q in self.quantities().items() if name.startswith(("host_", "pool_", "matmul_"))}
        experts = _table("format", "experts", "rows", "GB/s", "of read", "TFLOP/s", "over torch")
        for row in self.experts:
            over = "-" if row.torch_s_ratio is None else f"{row.torch_s_ratio:.2f}"
            rates = f"{row.bytes_s / 1e9:.1f}", f"{row.share:.0%}", f"{row.flops_s / 1e12:.3f}"
            experts.add_row(row.format, row.geometry, str(row.rows), *rates, over)
        attention = _table("format", "attention", "GB/s", "of read", "over torch")
        for one in self.attention:
            rates = f"{one.bytes_s / 1e9:.1f}", f"{one.share:.0%}", f"{one.bytes_s / one.torch_bytes_s:.2f}"
            attention.add_row(one.format, one.shape, *rates)
        return quantities(machine), experts, attention


def run_kernels_cpu(say: Say) -> KernelReport:
    """Takes minutes and up to 8 GiB. UserError where the kernels are not compiled or memory is short."""
    extension = cpu.load()
    if not extension.loaded:
        raise UserError(f"bench: the CPU kernels are {extension.why_not}", "install a C++ compiler and moesaic again")
    usable = memory_facts().usable
    read_bytes = min(READ_BYTES, usable // 2) // MiB * MiB
    if read_bytes < MIN_BYTES:
        raise UserError(f"bench: only {format_bytes(usable)} of memory are free", f"free {format_bytes(2 * MIN_BYTES)}")
    notes = [] if read_bytes == READ_BYTES else [f"host read over {format_bytes(read_bytes)}, half of the free memory"]
    arena = HostArena(read_bytes // MiB, MiB)
    try:
        flat_B = arena.slab_SB.view(-1)
        flat_B.fill_(1)  # untouched pages are all one zero page
        say(f"reading {format_bytes(read_bytes)}")
        read_bytes_s, read_threads = _best_read(flat_B)
        matmul = {name: _matmul_rate(dtype) for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
        rows = []
        weights_B = flat_B[: min(WEIGHT_BYTES, read_bytes)]
        for row in experts_rows(CpuExperts(), weights_B, read_bytes_s):
            say(f"experts {row.format} {row.geometry} {row.rows} rows: {row.share:.0%} of the read bandwidth")
            rows.append(row)
        del weights_B, flat_B
    finally:
        arena.close()
    say("attention")
    attention = tuple(attention_rows(read_bytes_s))
    return KernelReport(
        best_isa(), pool_size(), read_bytes_s, read_threads, matmul, tuple(rows), attention, tuple(notes)
    )


def record_of_kernels(report: KernelReport, command: tuple[str, ...], started: str) -> RunRecord:
    return RunRecord(
        workload=WORKLOAD,
        mode=report.isa,
        started=started,
        command=command,
        version=moesaic.__version__,
        commit=commit(Path(moesaic.__file__).parent),
        machine=describe_machine(torch.device("cpu")),
        versions=versions(),
        plan={"isa": report.isa, "threads": report.threads},
        numbers=report.quantities(),
        notes=report.notes,
    )


def _table(*headings: str) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        is_text = heading in ("format", "experts", "attention")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True)
    return table


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _best_read(flat_B: Tensor) -> tuple[float, int]:
    """Bytes a second and the number of threads that reached them; at least the pool's cores are tried."""
    best = (0.0, 1)
    for threads in thread_counts(pool_size()):
        for _ in range(_REPEATS):
            start_s = perf_counter()
            cpu.stream_read(flat_B, threads)
            best = max(best, (flat_B.nbytes / (perf_counter() - start_s), threads))
    return best


def _matmul_rate(dtype: torch.dtype, size: int = 2048) -> float:
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    best_s = float("inf")
    for _ in range(_REPEATS + 1):
        start_s = perf_counter()
        torch.mm(a, b)
        best_s = min(best_s, perf_counter() - start_s)
    return 2.0 * size**3 / best_s
