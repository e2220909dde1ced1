"""`moesaic bench NAME`: runs a named workload and says how far it is from what the machine allows."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moesaic.core.errors import UserError

if TYPE_CHECKING:
    from moesaic.bench.run import BenchOptions

MACHINE = "machine"
KERNELS_CPU = "kernels-cpu"
# heading -> name in a record's numbers; what else was measured is in the record
_SPEED = {
    "decode\ntok/s": "decode",
    "prefill\ntok/s": "prefill",
    "TTFT": "time_to_first_token",
    "ITL p50": "inter_token_p50",
    "ITL p99": "inter_token_p99",
    "bound\ntok/s": "bound",
    "of it": "bound_reached",
}
_TRAFFIC = {
    "hits": "decode_hit_rate",
    "h2d": "decode_h2d",
    "host\nread": "decode_host_read",
    "link": "link_reached",
    "device\npeak": "peak_device_driver",
    "counted\npeak": "peak_device_counted",
    "host\npeak": "peak_host",
}


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A workload (see --list); machine: only the machine's rates; kernels-cpu: the CPU kernels one by one."
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="Assignment policy; give several to compare them (default: the workload's)."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="A checkpoint's folder instead of the workload's own.")] = None,
    text: Annotated[
        Path | None, typer.Option(help="JSON file of lists of documents by domain, to take prompts from.")
    ] = None,
    routing: Annotated[Path | None, typer.Option(help="Routing trace to force upon the model.")] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="Rounds; the modes alternate in each (default: 2).", show_default=False)
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:<n> (default: the workload's).")] = None,
    record: Annotated[Path | None, typer.Option(help="Append the records to this file, one JSON line each.")] = None,
    list_names: Annotated[bool, typer.Option("--list", help="List the workloads and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Run a named workload: speed, bytes moved, and the bound that this machine sets."""
    others = {"mode": mode, "model": model, "text": text, "routing": routing, "runs": runs, "record": record}
    if list_names:
        _refuse({"a workload": name, "device": device, **others}, "--list")
        _list(as_json)
        return
    if name is None:
        raise UserError("bench: no workload named", "name one of `moesaic bench --list`, machine or kernels-cpu")
    if name == MACHINE:
        _refuse(others, MACHINE)
        _machine(device, as_json)
        return
    if name == KERNELS_CPU:
        _refuse({"device": device, **{key: value for key, value in others.items() if key != "record"}}, KERNELS_CPU)
        _kernels_cpu(record, as_json)
        return
    from moesaic.bench.workloads import WORKLOADS

    WORKLOADS[name]  # an unknown name is refused before torch is loaded
    from moesaic.bench.run import RUNS, BenchOptions

    _workload(name, BenchOptions(tuple(mode or ()), runs or RUNS, model, text, routing, device), record, as_json)


def _refuse(given: Mapping[str, object], beside: str) -> None:
    """UserError for the first of `given` that is there: it would change nothing."""
    for name, value in given.items():
        if value is not None and value != []:
            flag = name if " " in name else f"--{name}"
            raise UserError(f"bench: {flag} has no meaning with {beside}", "leave it out")


def _list(as_json: bool) -> None:
    from moesaic.bench.workloads import WORKLOADS

    if as_json:
        typer.echo(json.dumps({name: workload.description for name, workload in WORKLOADS.items()}))
        return
    width = max(map(len, WORKLOADS))
    for name, workload in WORKLOADS.items():
        typer.echo(f"{name:{width}}  {workload.description}")


def _machine(device: str | None, as_json: bool) -> None:
    from moesaic.bench.run import run_machine

    report = run_machine(device)
    numbers = report.quantities()
    if as_json:
        rates = {key: {"value": q.value, "unit": q.unit} for key, q in numbers.items()}
        typer.echo(json.dumps({"rates": rates, "notes": report.notes}))
        return
    from rich.console import Console

    from moesaic.observe.report import quantities

    console = Console(highlight=False)
    console.print(quantities(numbers))
    for note in report.notes:
        console.print(note, style="dim", markup=False, soft_wrap=True)


def _kernels_cpu(record: Path | None, as_json: bool) -> None:
    from moesaic.bench.kernels_cpu import now, record_of_kernels, run_kernels_cpu
    from moesaic.observe.record import append_record, check_appendable

    if record is not None:
        check_appendable(record)
    started = now()
    report = run_kernels_cpu(lambda line: print(line, file=sys.stderr, flush=True))
    if record is not None:
        append_record(record, record_of_kernels(report, ("moesaic", *sys.argv[1:]), started))
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for table in report.tables():
        console.print(table)
    for note in report.notes:
        console.print(note, style="dim", markup=False, soft_wrap=True)


def _workload(name: str, options: BenchOptions, record: Path | None, as_json: bool) -> None:
    from moesaic.bench.run import run_workload
    from moesaic.bench.workloads import WORKLOADS
    from moesaic.observe.record import append_record, check_appendable

    workload = WORKLOADS[name]
    if record is not None:
        check_appendable(record)  # before minutes of work, not after
    command = ("moesaic", *sys.argv[1:])
    records = run_workload(workload, options, command, lambda line: print(line, file=sys.stderr, flush=True))
    if record is not None:
        for one in records:
            append_record(record, one)
    if as_json:
        typer.echo(json.dumps({"records": [json.loads(one.to_json()) for one in records]}))
        return
    from rich.console import Console

    from moesaic.observe.report import comparison

    console = Console(highlight=False)
    for columns in (_SPEED, _TRAFFIC):
        console.print(comparison(records, columns))
    for note in records[0].notes:
        console.print(note, style="dim", markup=False, soft_wrap=True)
