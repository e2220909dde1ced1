"""The `moesaic` command as a process: its streams, its signals, its environment, and one place where errors end.

Nothing here takes time to import, so that an interrupt while the rest is imported ends like any other.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs one verb and ends the process. Exit code 0: done; 1: our fault, or doctor found
    something missing; 2: the user's fault; 130: interrupted; 143: terminated."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with _terminable():
            code = _run(args)
    except (BrokenPipeError, SystemExit):
        # the reader of our output has gone, as `| head` does: nothing is left to say. SystemExit is rich's word for it
        abandon_stdout()
        code = 0
    except (Exception, KeyboardInterrupt) as error:
        from moesaic.cli.errors import report

        before_verb = args[: next((i for i, arg in enumerate(args) if not arg.startswith("-")), len(args))]
        code = report(error, as_json="--json" in args, debug="--debug" in before_verb)
        _flush_or_abandon()
    sys.exit(code)


def _run(args: Sequence[str]) -> int:
    _make_streams_safe()
    # Threads that wait for each other actively take the cores that the other threads need as soon as anything else
    # runs on the machine: a token then takes a hundred times as long. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from moesaic.cli.verbs import run

    code = run(args)
    if sys.stdout is not None:
        sys.stdout.flush()  # what cannot be written is a fault of this call, not of the interpreter's last breath
    return code


# -- signals -----------------------------------------------------------------------------------------------------
@contextmanager
def _terminable() -> Iterator[None]:
    """Makes SIGTERM clean up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise KeyboardInterrupt(signal.Signals(number).name)


# -- streams -----------------------------------------------------------------------------------------------------
def _make_streams_safe() -> None:
    """A closed stdout is refused, text that a stream's encoding lacks shows as ?, and descriptors 0 to 2 are open, so
    that no file of ours takes the place of a closed stream."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.stdout is None:
        from moesaic.core.errors import UserError

        raise UserError("stdout is closed", "send it to a file, or to /dev/null")


def abandon_stdout() -> None:
    """What is still held back for stdout goes nowhere, and cannot fail again."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file of the system
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _flush_or_abandon() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        abandon_stdout()
