"""Which experts are wanted, where they are, where their tokens run: the question and the answer of one MoE layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from moesaic.core.places import Place


class ExpertId(NamedTuple):
    """One FFN of one MoE layer (logical): the same whichever place holds its pages."""

    layer: int
    expert: int

    def __str__(self) -> str:
        return f"L{self.layer}.e{self.expert}"


class PageRange(NamedTuple):
    """Pages [start, stop) of an expert: computable alone, partial sums add."""

    start: int
    stop: int


Demand = Mapping[tuple[Place, ExpertId], int]  # tokens that arrived where, for whom
Residency = Mapping[ExpertId, frozenset[Place]]  # where an expert's pages are RESIDENT now

# How the pages reach the processor that computes a share: already there; copied there first by a blocking Move;
# read over the link without a copy; or computed on the host out of host memory.
Way = Literal["resident", "copied", "in_place", "host"]


class Share(NamedTuple):
    """`num_tokens` of `expert`, which arrived at `source`, run at `place`, for `pages` of it (None: all)."""

    expert: ExpertId
    source: Place
    place: Place
    num_tokens: int
    way: Way
    pages: PageRange | None = None


class Move(NamedTuple):
    """Pages of `expert` go from `src` to `dst`; blocking: a share waits for it, otherwise a droppable fill."""

    expert: ExpertId
    src: Place
    dst: Place
    blocking: bool
    pages: PageRange | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The whole answer for one layer. Shares of one (source, expert) conserve its demand: page ranges cover
    every page exactly once, and shares of all pages sum to the demand in tokens."""

    shares: tuple[Share, ...]
    moves: tuple[Move, ...] = ()


def imbalance(loads: Sequence[float]) -> float:
    """Largest load over the mean: 1 is perfect balance. 1 as well where nothing is loaded."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
