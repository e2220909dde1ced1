"""The `moesaic` command: the table of verbs, the flags before the verb, and one place where errors end.

A verb is a function with typer annotations in a light module of its own, which imports torch and the like inside the
function only: `moesaic --help` has 0.3 s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import moesaic
from moesaic.cli import bench, demo, doctor, generate, make_checkpoint
from moesaic.cli.errors import report

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


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs one verb and ends the process. Exit code 0: done; 1: our fault, or doctor found
    something missing; 2: the user's fault; 130: interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        app(args=args, prog_name="moesaic")
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:
        before_verb = args[: next((i for i, arg in enumerate(args) if not arg.startswith("-")), len(args))]
        sys.exit(report(error, as_json="--json" in args, debug="--debug" in before_verb))
