"""Runs ops on lanes and leaves a span for each: CUDA streams where there is a GPU, in line where there is none.

A lane of a CUDA device is a stream: enqueueing returns at once, and `after` becomes a wait on the stream, never on the
host. A lane of the host (and every lane when the device is the bounded CPU pool) runs in line: the op first waits
for its `after`, then runs to its end. In line, issue order is a valid order, because `after` names earlier ops only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from moesaic.core.ops import Op, Schedule
from moesaic.core.places import Lane, Space
from moesaic.core.timeline import Span, Timeline


@dataclass(slots=True)
class _Running:
    index: int
    op: Op
    start: torch.cuda.Event
    end: torch.cuda.Event


class LaneExecutor:
    """core.interfaces.Executor on real hardware. `device` is "cuda:n" or "cpu".

    Times are host seconds since the executor was built; stream times come from CUDA events, tied to the host's
    clock at each drain.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._origin_s = time.perf_counter()
        self._next = 0
        self._ended: list[Span] = []
        self._running: dict[int, _Running] = {}
        self._order: deque[int] = deque()
        self._events: list[torch.cuda.Event] = []
        self._streams: dict[Lane, torch.cuda.Stream] = {}
        if device.type == "cuda":
            self._anchor, self._anchor_s = self._tie_clocks()

    @property
    def next_index(self) -> int:
        return self._next

    def enqueue(self, fragment: Schedule, bindings: Mapping[str, Callable[[], None]]) -> None:
        """Starts the fragment's ops in order. `bindings` maps each op's name to what it does; an op without one is
        our fault. Raises what a binding raises; ops before it have been started."""
        assert fragment.first == self._next, "fragment was built for another point of the run"
        for op in fragment.ops:
            with self.span(op):
                bindings[op.name]()

    @contextmanager
    def span(self, op: Op) -> Iterator[int]:
        """Runs the body as `op` on its lane; yields the op's index."""
        index = self._next
        self._next += 1
        stream = self._stream(op.lane)
        if stream is None:
            self._wait_on_host(op.after)
            start_s = time.perf_counter() - self._origin_s
            try:
                yield index
            finally:
                self._ended.append(Span(index, op, start_s, time.perf_counter() - self._origin_s))
            return
        with torch.cuda.stream(stream):
            for other in op.after:
                running = self._running.get(other)
                if running is not None and running.op.lane != op.lane:
                    stream.wait_event(running.end)
            start, end = self._event(), self._event()
            start.record(stream)
            try:
                yield index
            finally:
                end.record(stream)
                self._running[index] = _Running(index, op, start, end)
                self._order.append(index)

    def is_done(self, index: int) -> bool:
        running = self._running.get(index)
        return running is None or running.end.query()

    def wait(self, index: int) -> None:
        """Blocks the host until op `index` has ended."""
        self._wait_on_host((index,))

    def collect(self) -> Timeline:
        for _ in range(len(self._order)):
            running = self._running[self._order.popleft()]
            if running.end.query():
                self._end(running)
            else:
                self._order.append(running.index)
        spans = tuple(sorted(self._ended, key=lambda s: s.index))
        self._ended = []
        return spans

    def drain(self) -> Timeline:
        self._wait_on_host(tuple(self._running))
        spans = self.collect()
        if self.device.type == "cuda":
            self._anchor, self._anchor_s = self._tie_clocks()
        return spans

    # -- streams and clocks ------------------------------------------------------------------------------------
    def _stream(self, lane: Lane) -> torch.cuda.Stream | None:
        """None: the lane runs in line. The compute lane is the caller's current stream, so that plain torch code
        between ops is ordered with them."""
        if self.device.type != "cuda" or lane.place.space is not Space.DEVICE:
            return None
        if lane.queue == "compute":
            return torch.cuda.current_stream(self.device)
        if lane not in self._streams:
            self._streams[lane] = torch.cuda.Stream(self.device)
        return self._streams[lane]

    def _wait_on_host(self, indices: tuple[int, ...]) -> None:
        for index in indices:
            running = self._running.get(index)
            if running is not None:
                running.end.synchronize()

    def _event(self) -> torch.cuda.Event:
        return self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)

    def _end(self, running: _Running) -> None:
        """Turns a finished op into a span; its end becomes the new anchor, which keeps the float32 milliseconds that
        CUDA answers with short and exact."""
        start_s = self._anchor_s + self._anchor.elapsed_time(running.start) * 1e-3
        end_s = self._anchor_s + self._anchor.elapsed_time(running.end) * 1e-3
        self._ended.append(Span(running.index, running.op, start_s, max(start_s, end_s)))
        del self._running[running.index]
        self._events.append(running.start)
        if running.op.lane.queue == "compute":
            self._events.append(self._anchor)
            self._anchor, self._anchor_s = running.end, end_s
        else:
            self._events.append(running.end)

    def _tie_clocks(self) -> tuple[torch.cuda.Event, float]:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        event.synchronize()
        return event, time.perf_counter() - self._origin_s
