"""What the command line says when something goes wrong, and the exit code.

One line for the user's fault, a traceback for ours.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from typing import Any, TextIO

from moesaic.core.errors import UserError

USER_FAULT = 2
OUR_FAULT = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells count
TERMINATED = 143

# what writing to a stream can meet; an OSError of a file names it
_OUTPUT_FAULTS = frozenset({errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT})


def report(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Prints `error` to stderr, with `as_json` as an object on stdout as well, and returns the exit code.

    A UserError is the line "moesaic: <what>: <fix>", and so is a wrong word on the command line; `debug` adds the
    traceback. Any other exception is a fault of the program: its traceback is what a bug report needs, so it always
    comes.
    """
    if isinstance(error, KeyboardInterrupt):
        terminated = error.args == ("SIGTERM",)
        _print("moesaic: terminated" if terminated else "moesaic: interrupted", sys.stderr)
        return TERMINATED if terminated else INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":  # typer has printed the help
        return USER_FAULT
    theirs = user_error(error)
    if debug or theirs is None:
        _print("".join(traceback.format_exception(error)).rstrip("\n"), sys.stderr)
    if theirs is None:
        what = f"internal error: {type(error).__name__}: {error}"
        fix = "this is a bug in moesaic; please report the lines above"
    else:
        what, fix = theirs.what, theirs.fix
    line = f"{what}: {fix}" if fix else what
    _print(f"moesaic: {' '.join(line.split())}", sys.stderr)
    if as_json:
        _print(json.dumps({"error": {"what": what, "fix": fix}}), sys.stdout)
    return OUR_FAULT if theirs is None else USER_FAULT


def user_error(error: BaseException) -> UserError | None:
    """`error` as the user's fault, None where it is ours."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_FAULTS:
        return UserError(f"the output cannot be written ({error.strerror})", "send it where there is room")
    if callable(getattr(error, "format_message", None)):
        return _usage_error(error)
    return None


def _usage_error(error: Any) -> UserError:
    """A wrong word on the command line, by typer's message. Which module its exceptions are in differs by version."""
    what = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    verb = context.command_path if context is not None else "moesaic"
    return UserError(what[:1].lower() + what[1:], f"see `{verb} --help`")


def _print(text: str, stream: TextIO | None) -> None:
    """A stream that is closed or full cannot take the message either: the exit code remains."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        pass
