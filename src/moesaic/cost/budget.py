"""One device budget cut into its parts: what must be there, the KV cache, and expert slots with all the rest.

Pure arithmetic on bytes. A budget that cannot work is refused with the least one that can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moesaic.core.errors import UserError
from moesaic.core.units import format_bytes

MiB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """What a model asks of a device. `workspace_bytes(max_model_len)` bounds a step's temporaries;
    `min_slots` is the fewest expert slots the assignment policy works with."""

    context_bytes: int  # what the driver and the libraries hold beside our allocations
    dense_bytes: int
    workspace_bytes: Callable[[int], int]
    kv_block_bytes: int
    block_tokens: int
    expert_bytes: int
    num_experts: int
    min_slots: int
    max_positions: int


@dataclass(frozen=True, slots=True)
class BudgetWishes:
    """What the user set; None: decide. `budget_bytes` None: no limit."""

    budget_bytes: int | None = None
    expert_limit_bytes: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 8


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """The cut. The parts sum to no more than the budget."""

    budget_bytes: int | None
    context_bytes: int
    dense_bytes: int
    workspace_bytes: int
    kv_bytes: int
    kv_blocks: int
    max_model_len: int
    expert_bytes: int
    expert_slots: int

    @property
    def used_bytes(self) -> int:
        held = self.context_bytes + self.dense_bytes + self.workspace_bytes + self.kv_bytes
        return held + self.expert_slots * self.expert_bytes


def fit(needs: DeviceNeeds, wishes: BudgetWishes) -> DeviceBudget:
    """Cuts the budget: first what must be there, then KV, then as many expert slots as remain.

    Without a wished context length the KV cache takes at most a quarter of what is left after the fixed parts
    (never less than 256 tokens or the model's own context, whichever is shorter), so that experts, which decide the
    speed, get the rest. Raises UserError with the least budget that works.
    """
    _check_length(needs, wishes)
    shortest = wishes.max_model_len or min(needs.max_positions, 256)
    least = _fixed(needs, shortest) + _kv(needs, shortest) + needs.min_slots * needs.expert_bytes
    if wishes.budget_bytes is not None and wishes.budget_bytes < least:
        raise UserError(
            f"device memory {format_bytes(wishes.budget_bytes)} is too small: weights outside the experts take "
            f"{format_bytes(needs.dense_bytes)}, KV cache {format_bytes(_kv(needs, shortest))}, workspace "
            f"{format_bytes(needs.workspace_bytes(shortest))}, runtime {format_bytes(needs.context_bytes)}, "
            f"{needs.min_slots} expert slots {format_bytes(needs.min_slots * needs.expert_bytes)}",
            f"give at least --device-memory {-(-least // MiB)}MiB"
            + (", or a shorter --max-model-len" if shortest > 256 else ""),
        )
    length = wishes.max_model_len or _longest(needs, wishes, shortest)
    fixed = _fixed(needs, length)
    blocks = _kv_blocks(needs, wishes, length, fixed)
    slots = _slots(needs, wishes, fixed + blocks * needs.kv_block_bytes)
    return DeviceBudget(
        wishes.budget_bytes, needs.context_bytes, needs.dense_bytes, needs.workspace_bytes(length),
        blocks * needs.kv_block_bytes, blocks, length, needs.expert_bytes, slots,
    )  # fmt: skip


def _check_length(needs: DeviceNeeds, wishes: BudgetWishes) -> None:
    length = wishes.max_model_len
    if length is not None and length > needs.max_positions:
        raise UserError(
            f"--max-model-len {length} is more than the model's {needs.max_positions} positions",
            f"give at most --max-model-len {needs.max_positions}",
        )


def _fixed(needs: DeviceNeeds, length: int) -> int:
    return needs.context_bytes + needs.dense_bytes + needs.workspace_bytes(length)


def _blocks(needs: DeviceNeeds, num_tokens: int) -> int:
    return -(-num_tokens // needs.block_tokens)


def _kv(needs: DeviceNeeds, num_tokens: int) -> int:
    return _blocks(needs, num_tokens) * needs.kv_block_bytes


def _spare(needs: DeviceNeeds, wishes: BudgetWishes, fixed: int) -> int | None:
    if wishes.budget_bytes is None:
        return None
    return wishes.budget_bytes - fixed - needs.min_slots * needs.expert_bytes


def _longest(needs: DeviceNeeds, wishes: BudgetWishes, shortest: int) -> int:
    """The longest context, halving down from the model's own, whose KV is a quarter of the spare bytes or less."""
    length = needs.max_positions
    if wishes.budget_bytes is None:
        return min(length, max(shortest, 4096))
    while length > shortest:
        spare = _spare(needs, wishes, _fixed(needs, length))
        assert spare is not None
        if _kv(needs, length) <= spare // 4:
            return length
        length //= 2
    return shortest


def _kv_blocks(needs: DeviceNeeds, wishes: BudgetWishes, length: int, fixed: int) -> int:
    """Room for every sequence at full length, at most a quarter of the spare bytes, never less than one sequence."""
    wanted = wishes.max_num_seqs * _blocks(needs, length)
    spare = _spare(needs, wishes, fixed)
    if spare is not None:
        wanted = min(wanted, spare // 4 // needs.kv_block_bytes)
    return max(wanted, _blocks(needs, length))


def _slots(needs: DeviceNeeds, wishes: BudgetWishes, taken: int) -> int:
    slots = needs.num_experts
    if wishes.budget_bytes is not None:
        slots = min(slots, (wishes.budget_bytes - taken) // needs.expert_bytes)
    if wishes.expert_limit_bytes is not None:
        slots = min(slots, wishes.expert_limit_bytes // needs.expert_bytes)
    if slots < needs.min_slots:
        raise UserError(
            f"expert memory {format_bytes(wishes.expert_limit_bytes or 0)} holds {slots} experts of "
            f"{format_bytes(needs.expert_bytes)}, the assignment policy needs {needs.min_slots}",
            f"give at least --expert-memory {-(-needs.min_slots * needs.expert_bytes // MiB)}MiB",
        )
    return slots
