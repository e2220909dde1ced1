"""A Timeline as a Chrome trace (JSON object form), which Perfetto and chrome://tracing open.

One process per place, one track per lane; a span is a complete event in microseconds, and what waits for a span of
another lane hangs on it by a flow arrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from moesaic.core.errors import UserError
from moesaic.core.ops import Compute, Copy, Op
from moesaic.core.places import Lane, Place, Space
from moesaic.core.timeline import Span

_SPACE_ORDER = {Space.DEVICE: 0, Space.HOST: 1, Space.DISK: 2}
_QUEUE_ORDER = {"compute": 0, "load": 1, "store": 2, "net": 3}


class TraceWriter:
    """Writes spans to `path` as they come, holding none of them: `append` once per step or per drain.

    They are written beside `path`, which is made, or replaced, at the close: a run that was refused, and so has no
    span, leaves what was there. A context manager: the file is valid JSON once it is closed, also when the body
    raised. UserError where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.num_spans = 0
        self._seen: set[Place | Lane] = set()
        self._separator = "\n"
        self._path = path
        try:
            self._target = path.resolve()
            # a pipe or a device is written to as it is: it cannot be replaced
            self._is_device = self._target.exists() and not self._target.is_file()
            self._part = self._target if self._is_device else self._target.with_name(self._target.name + ".part")
            self._file: TextIO = self._part.open("w", encoding="utf-8")
        except (OSError, RuntimeError, ValueError) as error:
            raise self._fault(error) from error
        self._put('{"displayTimeUnit": "ms", "traceEvents": [')

    def append(self, spans: Sequence[Span]) -> None:
        """Writes `spans`; arrows are drawn between spans of one call."""
        if self._file.closed:
            return  # after a fault, which was said
        by_index = {span.index: span for span in spans}
        for span in spans:
            for event in self._names(span.op.lane):
                self._write(event)
            self._write(_complete(span))
            self.num_spans += 1
            for event in _arrows(span, by_index):
                self._write(event)

    def close(self) -> None:
        """Ends the file and puts it in its place. Twice does nothing more."""
        if self._file.closed:
            return
        if not self.num_spans and not self._is_device:
            self._discard()
            return
        self._put("\n]}\n")
        try:
            self._file.close()
            if not self._is_device:
                self._part.replace(self._target)
        except OSError as error:
            self._discard()
            raise self._fault(error) from error

    def _discard(self) -> None:
        try:
            self._file.close()  # what is still held back may fail to be written: it is thrown away anyhow
        except OSError:
            pass
        if not self._is_device:
            self._part.unlink(missing_ok=True)

    def _put(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError as error:
            self._discard()
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> UserError:
        why = getattr(error, "strerror", None) or str(error)
        return UserError(f"trace file {self._path}: {why}", "name a file in a folder that exists and has room")

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _names(self, lane: Lane) -> Iterator[dict[str, Any]]:
        if lane.place not in self._seen:
            self._seen.add(lane.place)
            pid = process_id(lane.place)
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": str(lane.place)}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        if lane not in self._seen:
            self._seen.add(lane)
            track = {"ph": "M", "pid": process_id(lane.place), "tid": track_id(lane)}
            yield {**track, "name": "thread_name", "args": {"name": str(lane)}}
            yield {**track, "name": "thread_sort_index", "args": {"sort_index": track_id(lane)}}

    def _write(self, event: dict[str, Any]) -> None:
        self._put(self._separator + json.dumps(event, separators=(",", ":")))
        self._separator = ",\n"


def write_trace(path: Path, timeline: Sequence[Span]) -> None:
    """The whole of `timeline` in one file; no file where it is empty."""
    with TraceWriter(path) as writer:
        writer.append(timeline)


def process_id(place: Place) -> int:
    """Devices sort first, then the host, then disks; 1000 of each."""
    return 1 + 1000 * _SPACE_ORDER[place.space] + place.ordinal


def track_id(lane: Lane) -> int:
    return 1 + 10 * (process_id(lane.place) - 1) + _QUEUE_ORDER[lane.queue]


def _complete(span: Span) -> dict[str, Any]:
    start_us, end_us = _microseconds(span.start_s), _microseconds(span.end_s)
    return {
        "name": span.op.name,
        "cat": "background" if span.op.background else "foreground",
        "ph": "X",
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "pid": process_id(span.op.lane.place),
        "tid": track_id(span.op.lane),
        "args": _args(span.index, span.op),
    }


def _args(index: int, op: Op) -> dict[str, Any]:
    args: dict[str, Any] = {"index": index, "bytes": op.work.num_bytes}
    if isinstance(op.work, Compute):
        args["flops"] = op.work.num_flops
    elif isinstance(op.work, Copy):
        args["way"] = f"{op.work.src}->{op.work.dst}"
    else:
        args["peers"] = ",".join(map(str, op.work.peers))
    args["after"] = list(op.after)
    args["background"] = op.background
    return args


def _arrows(span: Span, by_index: dict[int, Span]) -> Iterator[dict[str, Any]]:
    """From the end of each span of another lane that `span` waits for; a lane's own order needs no arrow."""
    for index in span.op.after:
        source = by_index.get(index)
        if source is None or source.op.lane == span.op.lane:
            continue
        arrow = {"name": "after", "cat": "after", "id": f"{index}-{span.index}"}
        for phase, lane, at_s in (("s", source.op.lane, source.end_s), ("f", span.op.lane, span.start_s)):
            end = {"bp": "e"} if phase == "f" else {}
            where = {"pid": process_id(lane.place), "tid": track_id(lane)}
            yield {**arrow, "ph": phase, "ts": _microseconds(at_s), **where, **end}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
