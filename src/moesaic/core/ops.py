"""Units of work, their order, and their text form: what builders write and executors run."""

from __future__ import annotations

from dataclasses import dataclass, field

from moesaic.core.places import Lane, Place


@dataclass(frozen=True, slots=True)
class Compute:
    num_flops: float = 0.0
    num_bytes: float = 0.0  # read or written in the place's own memory


@dataclass(frozen=True, slots=True)
class Copy:
    src: Place
    dst: Place
    num_bytes: float


@dataclass(frozen=True, slots=True)
class Exchange:
    peers: tuple[Place, ...]
    num_bytes: float  # the most that one peer sends


Work = Compute | Copy | Exchange


@dataclass(frozen=True, slots=True)
class Op:
    """One unit of work on one lane. `after` holds indices of earlier ops of the same run."""

    name: str  # "L3.attn.m0", "L3.fetch.e5": L<layer>.<part>[.e<expert>|.p<page>][.m<micro>]
    lane: Lane
    work: Work
    after: tuple[int, ...] = ()
    background: bool = False  # nobody waits for it: outside the step's latency


@dataclass(slots=True)
class Schedule:
    """Ops in issue order; each lane runs its own in order, `after` joins lanes.

    `first` is the index of ops[0] in the run: a fragment appended to a running schedule starts past 0, and
    its `after` may name any earlier op of the run.
    """

    first: int = 0
    ops: list[Op] = field(default_factory=list)

    def add(self, op: Op) -> int:
        index = self.first + len(self.ops)
        assert all(0 <= i < index for i in op.after), f"{op.name} waits for a later op"
        self.ops.append(op)
        return index


# -- text form: one op per line ------------------------------------------------------------------------------
def format_work(work: Work) -> str:
    if isinstance(work, Compute):
        return f"compute flops={work.num_flops:.17g} bytes={work.num_bytes:.17g}"
    if isinstance(work, Copy):
        return f"copy {work.src}->{work.dst} bytes={work.num_bytes:.17g}"
    return f"exchange {','.join(map(str, work.peers))} bytes={work.num_bytes:.17g}"


def format_op(index: int, op: Op) -> str:
    after = f" after={','.join(map(str, op.after))}" if op.after else ""
    return f"{index} {op.lane} {op.name} {format_work(op.work)}{after}{' background' if op.background else ''}"


def format_schedule(schedule: Schedule) -> str:
    """`<index> <lane> <name> <work> [after=i,j] [background]`, one op per line."""
    return "".join(format_op(schedule.first + i, op) + "\n" for i, op in enumerate(schedule.ops))


def parse_schedule(text: str) -> Schedule:
    """Inverse of format_schedule. ValueError names the line that does not parse."""
    schedule: Schedule | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            index, op = _parse_op(line.split())
            schedule = schedule if schedule is not None else Schedule(first=index)
            if schedule.first + len(schedule.ops) != index:
                raise ValueError("index out of order")
            if not all(0 <= i < index for i in op.after):
                raise ValueError("waits for a later op")
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(f"schedule line {number} {line!r}: {error}") from error
        schedule.add(op)
    return schedule if schedule is not None else Schedule()


def _parse_op(words: list[str]) -> tuple[int, Op]:
    index, lane, name, kind, *rest = words
    background = "background" in rest
    where = [w for w in rest if "=" not in w and w != "background"]
    values = dict(w.split("=", 1) for w in rest if "=" in w)
    if values.keys() - {"flops", "bytes", "after"} or len(where) != (kind != "compute"):
        raise ValueError("a word too many, or none where places are due")
    work: Work
    if kind == "compute":
        work = Compute(float(values["flops"]), float(values["bytes"]))
    elif kind == "copy":
        src, dst = where[0].split("->")
        work = Copy(Place.parse(src), Place.parse(dst), float(values["bytes"]))
    elif kind == "exchange":
        work = Exchange(tuple(Place.parse(p) for p in where[0].split(",")), float(values["bytes"]))
    else:
        raise ValueError(f"unknown kind of work {kind!r}")
    after = tuple(int(i) for i in values["after"].split(",")) if "after" in values else ()
    return int(index), Op(name, Lane.parse(lane), work, after, background)


def format_grid(schedule: Schedule) -> str:
    """Lanes as columns, ops in issue order down the page: the form that golden tests and reviews read."""
    lanes = sorted({op.lane for op in schedule.ops}, key=str)
    columns = {lane: i for i, lane in enumerate(lanes)}
    rows = [[str(lane) for lane in lanes]]
    for op in schedule.ops:
        row = [""] * len(lanes)
        row[columns[op.lane]] = op.name + ("~" if op.background else "")
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(lanes))]
    return "".join(" | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows)
