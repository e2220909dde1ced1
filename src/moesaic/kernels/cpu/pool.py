"""The compiled kernels' own threads: what they work on is waited for by a handle.

One thread per physical core that affinity and the control group's quota allow. They sleep when there is nothing to
do, and spin only inside `open_step`, where the next work is microseconds away. All of it needs cpu.load().
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SLICE_S = 0.5  # a wait returns this often to let Python see signals


class PoolHandle:
    """kernels.api.Handle of work in the pool. Dropped while the work runs, it waits for its end."""

    __slots__ = ("_error", "_ticket")

    def __init__(self, ticket: int) -> None:
        self._ticket: int | None = ticket
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._ticket is None or bool(torch.ops.moesaic.work_done(self._ticket))

    def wait(self, timeout_s: float | None = None) -> None:
        """Raises TimeoutError, after which it may be called again, or what the work ended with."""
        left_s = float("inf") if timeout_s is None else max(0.0, timeout_s)
        while self._ticket is not None:
            slice_s = min(left_s, _SLICE_S)
            try:
                finished = torch.ops.moesaic.work_wait(self._ticket, slice_s)
            except Exception as error:  # RuntimeError, or what torch makes of another C++ exception
                self._ticket, self._error = None, error
                break
            if finished:
                self._ticket = None
                break
            left_s -= slice_s
            if left_s <= 0:
                raise TimeoutError(f"CPU work did not end within {timeout_s} s")
        if self._error is not None:
            raise self._error

    def __del__(self) -> None:
        try:
            self.wait()
        except Exception:  # the interpreter may be half gone, and nobody is left to tell
            pass


@contextmanager
def open_step() -> Iterator[None]:
    """Idle pool threads spin until the end of the block, so that work starts within microseconds. Nests."""
    torch.ops.moesaic.step_begin()
    try:
        yield
    finally:
        torch.ops.moesaic.step_end()


def pool_size() -> int:
    """Threads of the pool: the physical cores this process may use."""
    return int(torch.ops.moesaic.pool_size())
