"""What the assignment policies share: shares of experts that are, or are first copied, on the device."""

from __future__ import annotations

from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import Assignment, Demand, ExpertId, Move, Residency, Share


def by_expert(demand: Demand) -> dict[ExpertId, list[Share]]:
    """The demand grouped by expert in ascending id, sources in ascending order, as if all were resident on the device.
    Entries of zero tokens are left out."""
    grouped: dict[ExpertId, list[Share]] = {}
    for source, expert in sorted(demand, key=lambda key: (key[1], key[0].space.value, key[0].ordinal)):
        num_tokens = demand[source, expert]
        assert num_tokens >= 0, f"{expert} is wanted by {num_tokens} tokens"
        if num_tokens:
            grouped.setdefault(expert, []).append(Share(expert, source, DEVICE, num_tokens, "resident"))
    return grouped


def on_device(demand: Demand, residency: Residency) -> Assignment:
    """Everything runs on the device; what is not RESIDENT there is copied first by one blocking Move per expert."""
    shares: list[Share] = []
    moves: list[Move] = []
    for expert, wanted in by_expert(demand).items():
        if DEVICE in residency[expert]:
            shares += wanted
        else:
            shares += [share._replace(way="copied") for share in wanted]
            moves.append(Move(expert, HOST, DEVICE, blocking=True))
    return Assignment(tuple(shares), tuple(moves))
