"""The machine's own rates, measured right before a workload runs: what no engine on it can beat.

Set by the machine, never by our kernels or policies: plain copies, plain prefetching reads, events.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moesaic.core.errors import UserError
from moesaic.core.units import GiB, MiB, format_bytes
from moesaic.kernels import cpu
from moesaic.memory.buffers import HostArena
from moesaic.observe.record import Quantity
from moesaic.runtime.machine import memory_facts
from moesaic.sim.bounds import MeasuredRates

Read = Callable[[Tensor, int], object]  # reads a uint8 tensor once, with that many threads

HOST_BYTES = 8 * GiB
_DEVICE_BYTES = 512 * MiB
_PIECE_BYTES = 256 * MiB  # one read beside a running link: short, so that both end at about the same time
_WINDOW_S = 0.25
_REPEATS = 3
_HAND_OFF_BYTES = 8192  # one token's activations of a 4096-wide model
_HAND_OFFS = 200


@dataclass(frozen=True, slots=True)
class RateReport:
    """The rates, and how they were got: threads that read best alone and beside the link, bytes read, remarks."""

    rates: MeasuredRates
    read_threads: int
    together_threads: int
    host_bytes: int
    notes: tuple[str, ...]

    def quantities(self) -> dict[str, Quantity]:
        return {
            "device_memory": Quantity(self.rates.device_bytes_s, "B/s"),
            "link_to_device": Quantity(self.rates.link_bytes_s, "B/s"),
            "host_read": Quantity(self.rates.host_read_bytes_s, "B/s"),
            "host_read_threads": Quantity(self.read_threads, "1"),
            "host_read_and_link": Quantity(self.rates.together_bytes_s, "B/s"),
            "host_read_and_link_threads": Quantity(self.together_threads, "1"),
            "hand_off": Quantity(self.rates.handoff_s, "s"),
        }


class Link(Protocol):
    """Copies blocks of the arena to the device in the background."""

    def begin(self, num_bytes: int) -> None: ...

    def is_done(self) -> bool: ...

    def wait(self) -> tuple[int, float]:
        """Bytes copied since `begin`, and the seconds that took."""
        ...


def measure_rates(
    device: torch.device, block_bytes: int, read: Read | None = None, host_bytes: int = HOST_BYTES
) -> RateReport:
    """Takes a few seconds, `host_bytes` of host memory (less where that is more than a sixteenth of what is free) and
    1 GiB of the device; gives all of it back. `block_bytes` is the size of a copy: an expert. `read` None: the fastest
    there is.
    """
    notes: list[str] = []
    read = read or _fastest_read(notes)
    usable_bytes = memory_facts().usable
    if usable_bytes < 256 * MiB:
        raise UserError(f"only {format_bytes(usable_bytes)} of memory are free", "free some before measuring")
    # a gigabyte is more than caches hold; a small machine gives a quarter of its memory at most
    share_bytes = max(usable_bytes // 16, min(GiB, usable_bytes // 4))
    if share_bytes < host_bytes:
        host_bytes = share_bytes
        notes.append(f"host rates over {format_bytes(host_bytes)}, as {format_bytes(usable_bytes)} of memory are free")
    block_bytes = min(block_bytes, host_bytes // 4) // 4096 * 4096
    with _arena(host_bytes // block_bytes, block_bytes, device, notes) as arena:
        slab_SB = arena.slab_SB
        link = _link(device, slab_SB)
        host_s, read_threads = _best_read(slab_SB, read)
        link_s = max(_link_rate(link, 8 * block_bytes) for _ in range(_REPEATS))
        together_s, together_threads = _best_together(slab_SB, read, link, link_s)
        device_s = _device_rate(device) if device.type == "cuda" else host_s
        hand_off_s = _hand_off(device)
        del link, slab_SB
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        notes.append("no GPU: device memory is host memory, the link is a copy within it")
    # both at once can only be slower than the best of each by noise
    together_s = max(together_s, host_s, link_s)
    rates = MeasuredRates(device_s, link_s, host_s, together_s, hand_off_s)
    return RateReport(rates, read_threads, together_threads, host_bytes, tuple(notes))


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Powers of two and then steps of two under the number of cores: the best is rarely at either end."""
    return tuple(sorted({1 << i for i in range(num_cores.bit_length())} | set(range(num_cores, num_cores // 2, -2))))


@contextmanager
def _arena(num_slots: int, page_bytes: int, device: torch.device, notes: list[str]) -> Iterator[HostArena]:
    arena = HostArena(num_slots, page_bytes)
    try:
        for slab_B in arena.slab_SB:  # block by block: an interrupt waits for one of them at most
            slab_B.fill_(1)  # untouched pages are all one zero page, and slow to register
        if device.type == "cuda":
            registration = arena.register()
            if registration.registered_bytes < arena.num_bytes:
                notes.append(f"memory for rates: {registration.message}")
        yield arena
    finally:
        arena.close()


def _fastest_read(notes: list[str]) -> Read:
    extension = cpu.load()
    if extension.loaded:
        return cpu.stream_read
    notes.append(f"host rates by numpy, slower than the memory: compiled kernels {extension.why_not}")
    return cpu.stream_read_reference


def _best_read(slab_SB: Tensor, read: Read) -> tuple[float, int]:
    """Bytes a second and the number of threads that reached them."""
    best = (0.0, 1)
    for threads in thread_counts(_num_cores()):
        for _ in range(_REPEATS):
            start_s = time.perf_counter()
            read(slab_SB, threads)
            best = max(best, (slab_SB.nbytes / (time.perf_counter() - start_s), threads))
    return best


def _best_together(slab_SB: Tensor, read: Read, link: Link, link_rate: float) -> tuple[float, int]:
    flat_B = slab_SB.view(-1)
    pieces = flat_B.split(_PIECE_BYTES)
    best = (0.0, 1)
    for threads in thread_counts(_num_cores()):
        link.begin(int(link_rate * _WINDOW_S))
        read_bytes, start_s, turn = 0, time.perf_counter(), 0
        while not link.is_done():
            piece = pieces[turn % len(pieces)]
            read(piece, threads)
            read_bytes += piece.nbytes
            turn += 1
        read_s = time.perf_counter() - start_s
        link_bytes, link_s = link.wait()
        best = max(best, (link_bytes / link_s + read_bytes / read_s, threads))
    return best


def _link_rate(link: Link, num_bytes: int) -> float:
    link.begin(max(num_bytes, GiB // 2))
    copied_bytes, seconds = link.wait()
    return copied_bytes / seconds


def _link(device: torch.device, slab_SB: Tensor) -> Link:
    return _CudaLink(device, slab_SB) if device.type == "cuda" else _MemoryLink(slab_SB)


class _CudaLink:
    def __init__(self, device: torch.device, slab_SB: Tensor) -> None:
        self._slab_SB = slab_SB
        self._target_2B = torch.empty(2, slab_SB.shape[1], dtype=torch.uint8, device=device)
        self._stream = torch.cuda.Stream(device)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._bytes = self._next = 0

    def begin(self, num_bytes: int) -> None:
        blocks = -(-num_bytes // self._slab_SB.shape[1])
        self._bytes = blocks * self._slab_SB.shape[1]
        with torch.cuda.stream(self._stream):
            self._start.record()
            for _ in range(blocks):
                source = self._slab_SB[self._next % self._slab_SB.shape[0]]
                self._target_2B[self._next % 2].copy_(source, non_blocking=True)
                self._next += 1
            self._end.record()

    def is_done(self) -> bool:
        return bool(self._end.query())

    def wait(self) -> tuple[int, float]:
        self._end.synchronize()
        return self._bytes, self._start.elapsed_time(self._end) * 1e-3


class _MemoryLink:
    """The bounded CPU pool's link: a thread that copies within host memory."""

    def __init__(self, slab_SB: Tensor) -> None:
        self._slab_SB = slab_SB
        self._target_2B = torch.empty(2, slab_SB.shape[1], dtype=torch.uint8)
        self._thread: threading.Thread | None = None
        self._result = (0, 1.0)

    def begin(self, num_bytes: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(num_bytes,))
        self._thread.start()

    def is_done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> tuple[int, float]:
        assert self._thread is not None, "wait before begin"
        self._thread.join()
        return self._result

    def _run(self, num_bytes: int) -> None:
        copied, turn, start_s = 0, 0, time.perf_counter()
        while copied < num_bytes:
            self._target_2B[turn % 2].copy_(self._slab_SB[turn % self._slab_SB.shape[0]])
            copied += self._slab_SB.shape[1]
            turn += 1
        self._result = (copied, time.perf_counter() - start_s)


def _device_rate(device: torch.device) -> float:
    """A copy within the device's memory: bytes read and bytes written."""
    source, target = (torch.ones(_DEVICE_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    best = 0.0
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(8):
            target.copy_(source)
        end.record()
        end.synchronize()
        best = max(best, 8 * 2 * source.nbytes / (start.elapsed_time(end) * 1e-3))
    return best


def _hand_off(device: torch.device) -> float:
    """Median of: activations to the host, the host learns of it, a result back. What a layer with a miss waits for."""
    pinned = device.type == "cuda"
    there = torch.zeros(_HAND_OFF_BYTES, dtype=torch.uint8, device=device)
    here = torch.zeros(_HAND_OFF_BYTES, dtype=torch.uint8, pin_memory=pinned)
    times = []
    for _ in range(_HAND_OFFS):
        start_s = time.perf_counter()
        here.copy_(there, non_blocking=True)
        if pinned:
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
        there.copy_(here, non_blocking=True)
        times.append(time.perf_counter() - start_s)
    return sorted(times)[len(times) // 2]


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
