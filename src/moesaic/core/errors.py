"""The one exception that means "the user can mend this": one line that says what, where and how."""

from __future__ import annotations


class UserError(ValueError):
    """A fault of the input or the machine, not of the program.

    `what` names the fault and the file or field it is in; `fix` says how to mend it. The command line
    prints both on one line and exits with code 2; nothing half-done may be left behind by the raiser.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}: {fix}" if fix else what)
        self.what = what
        self.fix = fix
