"""`moesaic doctor`: what this machine is and whether each part works; each failure with the line that mends it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from moesaic.runtime.checks import Check

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "failed": "[bold red]failed[/]"}


def run(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Say what this machine is, whether each part works, and how to mend what does not."""
    checks = examine()
    works = all(check.status != "failed" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": works, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks, works)
    raise typer.Exit(0 if works else 1)


def examine() -> list[Check]:
    """Every check, in the order in which they are printed."""
    from moesaic.kernels.cpu.detect import instruction_sets
    from moesaic.runtime import checks, gpu_checks, machine

    memory = machine.memory_facts()
    gpu = gpu_checks.gpu_checks(memory)
    found = [checks.system_check()]
    found += [checks.cpu_check(machine.cpu_facts(), instruction_sets()), checks.memory_check(memory)]
    found += checks.package_checks(checks.declared_floors(), checks.installed_version)
    found.append(checks.attempt("torch", "pip install 'torch>=2.11'", checks.torch_check))
    found.append(checks.attempt("CPU kernels", "install moesaic again", checks.extension_check))
    found.append(checks.compiler_check(has_gpu=bool(gpu)))
    if gpu:
        found += gpu
    else:
        found += [checks.Check("GPU", "ok", "none: Triton is not needed, the device is a pool in host memory")]
        found.append(checks.lockable_check(memory))
    found.append(checks.cache_check(hub_cache()))
    return found


def hub_cache() -> Path:
    """The Hugging Face hub's cache folder, by the same variables that the hub's own tools read."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return (Path(home) / "hub").expanduser()


def _print(checks: list[Check], works: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        mend = f"\n[cyan]fix: {escape(check.fix)}[/]" if check.fix else ""
        table.add_row(_MARKS[check.status], check.name, escape(check.value) + mend)
    console = Console()
    console.print(table)
    failed = sum(check.status == "failed" for check in checks)
    notes = sum(check.status == "note" for check in checks)
    console.print("Everything that is needed works." if works else f"{failed} part(s) need mending.", end=" ")
    console.print(f"{notes} note(s)." if notes else "")
