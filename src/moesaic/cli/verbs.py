"""The table of verbs, the flags before the verb, and how words become a call.

A verb is a function with typer annotations in a light module of its own, which imports torch and the like inside the
function only: `moesaic --help` has 0.3 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import moesaic
from moesaic.cli import bench, demo, doctor, generate, make_checkpoint

VERBS: dict[str, Callable[..., Any]] = {
    "demo": demo.run,
    "bench": bench.run,
    "doctor": doctor.run,
    "generate": generate.run,
    "make-checkpoint": make_checkpoint.run,
}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moesaic {moesaic.__version__}")
        raise typer.Exit()


@app.callback()
def _before_verb(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of input errors too.")] = False,
) -> None:
    """Run mixture-of-experts language models that do not fit in GPU memory."""


for _name, _run in VERBS.items():
    app.command(_name, context_settings={"help_option_names": ["-h", "--help"]})(_run)


def run(args: Sequence[str]) -> int:
    """Runs the verb that `args` name and returns its exit code. Everything that goes wrong is raised: typer's own way
    to end a program would print its errors in boxes and swallow interrupts."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("moesaic", list(args)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    return 0
