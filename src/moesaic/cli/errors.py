"""What the command line says when something goes wrong, and the exit code.

One line for the user's fault, a traceback for ours.
"""

from __future__ import annotations

import json
import sys
import traceback

from moesaic.core.errors import UserError

USER_FAULT = 2
OUR_FAULT = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def report(error: BaseException, *, as_json: bool, debug: bool) -> int:
    """Prints `error` to stderr, with `as_json` as an object on stdout as well, and returns the exit code.

    A UserError is the line "moesaic: <what>: <fix>"; `debug` adds the traceback. Any other exception is a fault of
    the program: its traceback is what a bug report needs, so it always comes.
    """
    if isinstance(error, KeyboardInterrupt):
        print("moesaic: interrupted", file=sys.stderr)
        return INTERRUPTED
    theirs = isinstance(error, UserError)
    if debug or not theirs:
        traceback.print_exception(error, file=sys.stderr)
    what = error.what if isinstance(error, UserError) else f"internal error: {type(error).__name__}: {error}"
    fix = error.fix if isinstance(error, UserError) else "this is a bug in moesaic; please report the lines above"
    line = f"{what}: {fix}" if fix else what
    print(f"moesaic: {' '.join(line.split())}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": {"what": what, "fix": fix}}), flush=True)
    return USER_FAULT if theirs else OUR_FAULT
