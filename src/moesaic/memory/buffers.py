"""The tensors behind pools: one counted pool per device, one mapping of host memory for all experts.

Suffixes: S page slots, B bytes of a page. Bytes rest here and nowhere else; `runtime` moves them.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moesaic.core.errors import UserError
from moesaic.core.units import GiB, format_bytes, slab_bytes


class DevicePool:
    """Everything that lives on one device, counted by name against a hard budget.

    On the CPU the same pool in host memory, with the same counts. The pool hands out tensors and keeps only their
    sizes: memory returns when the holder drops the tensor, and the count when the holder says so with `free`.
    """

    def __init__(self, device: torch.device, budget_bytes: int) -> None:
        self.device = device
        self.budget_bytes = budget_bytes
        self._held: dict[str, int] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor of `shape`, counted under `name`, which may be used several times.

        UserError when the budget, or the device itself, has no room; nothing is counted then."""
        num_bytes = math.prod(shape) * dtype.itemsize
        self._check_room(name, num_bytes)
        try:
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
        except RuntimeError as error:  # torch's out-of-memory errors on either device
            reason = str(error).splitlines()[0][:160]
            raise UserError(
                f"{name}: {self.device} did not give {format_bytes(num_bytes)} ({reason})",
                "lower --device-memory to what is free",
            ) from None
        self._count(name, num_bytes)
        return tensor

    def carve(self, name: str, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> dict[str, Tensor]:
        """Tensors of `shapes` as views of one allocation: a device's allocator rounds each allocation of its own up, by
        as much as 20 MiB on CUDA, which would add up beside the budget."""
        starts, end = {}, 0
        for key, shape in shapes.items():
            starts[key] = end // dtype.itemsize
            end += slab_bytes(math.prod(shape) * dtype.itemsize)
        slab = self.allocate(name, (end // dtype.itemsize,), dtype)
        return {key: slab[starts[key] : starts[key] + math.prod(shape)].view(shape) for key, shape in shapes.items()}

    def reserve(self, name: str, num_bytes: int) -> None:
        """Counts bytes that are held outside the pool: a context, a library's workspace."""
        self._check_room(name, num_bytes)
        self._count(name, num_bytes)

    def free(self, name: str) -> int:
        """Forgets everything counted under `name`; returns its bytes. The caller has dropped the tensors."""
        return self._held.pop(name, 0)

    @property
    def used_bytes(self) -> int:
        return sum(self._held.values())

    @property
    def free_bytes(self) -> int:
        return self.budget_bytes - self.used_bytes

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes by name."""
        return dict(self._held)

    def close(self) -> None:
        """Forgets all counts and gives cached device memory back to the driver."""
        self._held.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _check_room(self, name: str, num_bytes: int) -> None:
        assert num_bytes >= 0, name
        if num_bytes > self.free_bytes:
            raise UserError(
                f"device budget {format_bytes(self.budget_bytes)} has no room for {name}: it needs "
                f"{format_bytes(num_bytes)} beside the {format_bytes(self.used_bytes)} in use",
                f"raise --device-memory to at least {format_bytes(self.used_bytes + num_bytes)}",
            )

    def _count(self, name: str, num_bytes: int) -> None:
        self._held[name] = self._held.get(name, 0) + num_bytes


class Registrar(Protocol):
    """What makes host memory a device can reach without staging."""

    def register(self, address: int, num_bytes: int) -> str | None:
        """None, or why it failed."""
        ...

    def unregister(self, address: int) -> None: ...


class CudaRegistrar:
    """cudaHostRegister: pins pages that are already there, ten times faster than a pinned allocation."""

    def __init__(self) -> None:
        torch.cuda.init()
        self._runtime = torch.cuda.cudart()

    def register(self, address: int, num_bytes: int) -> str | None:
        error = self._runtime.cudaHostRegister(address, num_bytes, 0)
        return None if int(error) == 0 else str(self._runtime.cudaGetErrorString(error))

    def unregister(self, address: int) -> None:
        self._runtime.cudaHostUnregister(address)


@dataclass(frozen=True, slots=True)
class Registration:
    """How much of an arena is registered, from its start on, and in words why not more."""

    registered_bytes: int
    message: str


class HostArena:
    """All experts of a model in one anonymous mapping of equal page slots.

    `slab_SB` uint8 [num_slots, page_bytes] is valid until `close`. The kernel gives memory as pages are first
    written, huge pages where it can. UserError when the address space has no room.
    """

    def __init__(self, num_slots: int, page_bytes: int) -> None:
        self.num_slots = num_slots
        self.page_bytes = page_bytes
        self.num_bytes = num_slots * page_bytes
        try:
            mapping = mmap.mmap(-1, max(1, self.num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"host memory: no room for {format_bytes(self.num_bytes)} of experts ({error})",
                "lower --host-memory, or raise the machine's limit",
            ) from None
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError):
            pass  # small pages work as well, only slower
        self._map: mmap.mmap | None = mapping
        whole = torch.frombuffer(mapping, dtype=torch.uint8)
        self.slab_SB = whole[: self.num_bytes].view(num_slots, page_bytes)
        self._chunks: list[int] = []
        self._registrar: Registrar | None = None

    def register(self, chunk_bytes: int = GiB, unit_slots: int = 1, registrar: Registrar | None = None) -> Registration:
        """Registers the arena with the device driver in chunks of about `chunk_bytes`, until one fails.

        A chunk ends where a run of `unit_slots` slots (an expert) and a memory page end: the driver refuses a copy
        that straddles two chunks, so copy whole units at most. Failure is returned, never raised: unregistered
        memory still works.
        """
        assert self._registrar is None, "registered twice"
        if registrar is None:
            if not torch.cuda.is_available():
                return Registration(0, "not registered: no CUDA device")
            registrar = CudaRegistrar()
        self._registrar = registrar
        address, chunk = self.slab_SB.data_ptr(), _chunk_bytes(chunk_bytes, unit_slots * self.page_bytes)
        for start in range(0, self.num_bytes, chunk):
            size = min(chunk, self.num_bytes - start)
            failure = registrar.register(address + start, size)
            if failure is not None:
                return Registration(
                    start,
                    f"{format_bytes(start)} of {format_bytes(self.num_bytes)} registered, then: {failure}; "
                    "copies of the rest are staged by the driver and slower",
                )
            self._chunks.append(address + start)
        return Registration(self.num_bytes, f"{format_bytes(self.num_bytes)} registered")

    def close(self) -> None:
        """Unregisters, and gives the memory back whoever still holds a view of it (a view then reads zeros)."""
        if self._map is None:
            return
        for address in self._chunks:
            assert self._registrar is not None
            self._registrar.unregister(address)
        self._chunks.clear()
        self._map.madvise(mmap.MADV_DONTNEED)
        self.slab_SB = torch.empty((0, self.page_bytes), dtype=torch.uint8)
        # never mmap.close: torch keeps the map object alive but would not stop it from unmapping under a view
        self._map = None


def _chunk_bytes(wanted_bytes: int, unit_bytes: int) -> int:
    """The multiple of units and of memory pages that is nearest below `wanted_bytes`, or the least one."""
    step = max(1, math.lcm(unit_bytes, mmap.PAGESIZE))
    return max(1, wanted_bytes // step) * step
