"""What ran when: spans, and the figures that are read from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.core.ops import Copy, Op
from moesaic.core.places import Lane, Place


@dataclass(frozen=True, slots=True)
class Span:
    """One op as it ran. `index` is the op's index in the run; times count from the run's start."""

    index: int
    op: Op
    start_s: float
    end_s: float


Timeline = tuple[Span, ...]


def foreground_end_s(timeline: Sequence[Span]) -> float:
    """When the step's answer is ready: the end of the last span somebody waits for."""
    return max((s.end_s for s in timeline if not s.op.background), default=0.0)


def drain_s(timeline: Sequence[Span]) -> float:
    """When background copies end as well."""
    return max((s.end_s for s in timeline), default=0.0)


def busy_s(timeline: Sequence[Span]) -> dict[Lane, float]:
    """Seconds each lane had a span open; spans of one lane never overlap."""
    busy: dict[Lane, float] = {}
    for span in timeline:
        busy[span.op.lane] = busy.get(span.op.lane, 0.0) + span.end_s - span.start_s
    return busy


def busy_share(timeline: Sequence[Span]) -> dict[Lane, float]:
    """busy_s over the time from the first start to the last end."""
    if not timeline:
        return {}
    length_s = drain_s(timeline) - min(s.start_s for s in timeline)
    return {lane: s / length_s if length_s else 0.0 for lane, s in busy_s(timeline).items()}


def copied_bytes(timeline: Sequence[Span]) -> dict[tuple[Place, Place], float]:
    """Bytes moved by Copy ops, by (source, destination)."""
    moved: dict[tuple[Place, Place], float] = {}
    for span in timeline:
        if isinstance(span.op.work, Copy):
            key = (span.op.work.src, span.op.work.dst)
            moved[key] = moved.get(key, 0.0) + span.op.work.num_bytes
    return moved


def critical_path(timeline: Sequence[Span]) -> tuple[Span, ...]:
    """The chain of spans, first to last, that led to the foreground's end: each is preceded by whichever of
    its `after` ops or its lane's previous span ended last."""
    by_index = {s.index: s for s in timeline}
    previous: dict[int, Span] = {}
    last_of_lane: dict[Lane, Span] = {}
    for span in sorted(timeline, key=lambda s: s.index):  # a lane's order; clocks of two places may disagree
        if span.op.lane in last_of_lane:
            previous[span.index] = last_of_lane[span.op.lane]
        last_of_lane[span.op.lane] = span
    foreground = [s for s in timeline if not s.op.background]
    if not foreground:
        return ()
    path = [max(foreground, key=lambda s: s.end_s)]
    while True:
        span = path[-1]
        before = [by_index[i] for i in span.op.after if i in by_index]
        if span.index in previous:
            before.append(previous[span.index])
        if not before:
            return tuple(reversed(path))
        path.append(max(before, key=lambda s: s.end_s))
