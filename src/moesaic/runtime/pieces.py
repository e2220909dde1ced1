"""Parallel positioned reads of tensors' rows: what one thread reads at a time, how, and into bounded scratch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moesaic.core.errors import UserError
from moesaic.core.model import TensorSpec
from moesaic.memory.safetensors_header import TensorEntry

Progress = Callable[[int, int], None]  # bytes read so far, bytes in all

STORED_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
MAX_THREADS = 16
BLOCK_BYTES = 4 << 20  # one read through scratch: small enough for a core's cache, large enough for the kernel
PIECE_BYTES = 32 << 20  # one unit of work for a thread
# torch runs an elementwise copy of fewer elements than this on the calling thread alone
SERIAL_ELEMENTS = 32767


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, stop) of one tensor, read by one thread. `first_slot` is that of the expert it belongs to."""

    spec: TensorSpec
    entry: TensorEntry
    start: int
    stop: int
    first_slot: int = 0

    @property
    def row_bytes(self) -> int:
        return self.entry.num_bytes // self.entry.shape[0]

    @property
    def num_bytes(self) -> int:
        return (self.stop - self.start) * self.row_bytes


class Reader:
    """One thread's file access: positioned reads, and scratch that is kept between pieces."""

    def __init__(self, files: Mapping[Path, int]) -> None:
        self._files = files
        self._scratch: dict[str, Tensor] = {}

    def scratch(self, name: str, num_bytes: int) -> Tensor:
        """uint8 [num_bytes], whose content lasts until the next call with this name."""
        held = self._scratch.get(name)
        if held is None or held.numel() < num_bytes:
            held = self._scratch[name] = torch.empty(max(num_bytes, BLOCK_BYTES), dtype=torch.uint8)
        return held[:num_bytes]

    def blocks(self, piece: Piece, multiple: int = 1) -> Iterator[tuple[int, int, Tensor]]:
        """(first row, row after the last, the rows' elements, flat, in the file's dtype) block by block; each but the
        last has a `multiple` of rows."""
        step = max(1, BLOCK_BYTES // piece.row_bytes // multiple) * multiple
        for start in range(piece.start, piece.stop, step):
            stop = min(start + step, piece.stop)
            rows = self.scratch("read", (stop - start) * piece.row_bytes)
            self.read_into(Piece(piece.spec, piece.entry, start, stop), [memoryview(rows.numpy())])
            yield start, stop, rows.view(source_dtype(piece.entry))

    def read_into(self, piece: Piece, buffers: list[memoryview]) -> None:
        """Reads the piece's bytes into `buffers` one after the other; together they have its size."""
        path, position = piece.entry.path, piece.entry.offset + piece.start * piece.row_bytes
        while buffers:
            try:
                count = os.preadv(self._files[path], buffers[:_IOV_MAX], position)
            except OSError as error:
                raise UserError(
                    f"{path}: reading tensor {piece.spec.name} failed ({error.strerror})", "check the disk"
                ) from None
            if count == 0:
                raise UserError(
                    f"{path}: ended inside tensor {piece.spec.name}: it became shorter while it was loaded",
                    "fetch the file again, and let nothing write to it",
                )
            position += count
            while buffers and count >= len(buffers[0]):
                count -= len(buffers.pop(0))
            if count:
                buffers[0] = buffers[0][count:]


_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))


def convert(source: Tensor, target: Tensor) -> Tensor:
    """Copies flat `source` into flat `target` of any dtype, on this thread alone; returns `target`.

    A reader thread that let torch spread each copy over all cores would have them compete with its siblings."""
    for start in range(0, source.numel(), SERIAL_ELEMENTS):
        target[start : start + SERIAL_ELEMENTS].copy_(source[start : start + SERIAL_ELEMENTS])
    return target


def num_threads() -> int:
    return min(MAX_THREADS, len(os.sched_getaffinity(0)))


def source_dtype(entry: TensorEntry) -> torch.dtype:
    return STORED_DTYPES[entry.dtype]


def row_ranges(entry: TensorEntry, step: int) -> Iterator[tuple[int, int]]:
    """Row ranges of about PIECE_BYTES that start at multiples of `step`."""
    num_rows = entry.shape[0]
    row_bytes = max(1, entry.num_bytes // num_rows)
    rows = max(1, PIECE_BYTES // row_bytes // step) * step
    return ((a, min(a + rows, num_rows)) for a in range(0, num_rows, rows))


def run_pieces(pieces: Sequence[Piece], work: Callable[[Piece, Reader], None], progress: Progress | None) -> None:
    """Runs `work` on every piece in file order over the threads; the first failure stops the rest and is raised."""
    ordered = sorted(pieces, key=lambda p: (p.entry.path, p.entry.offset, p.start))
    total, done = sum(p.num_bytes for p in ordered), 0
    local = threading.local()

    def one(piece: Piece) -> int:
        if not hasattr(local, "reader"):
            local.reader = Reader(files)
        work(piece, local.reader)
        return piece.num_bytes

    with ExitStack() as stack:
        files = {path: open_shared(path, stack) for path in {p.entry.path for p in ordered}}
        executor = stack.enter_context(ThreadPoolExecutor(num_threads(), thread_name_prefix="load"))
        stack.callback(executor.shutdown, wait=True, cancel_futures=True)
        for num_bytes in executor.map(one, ordered):
            done += num_bytes
            if progress is not None:
                progress(done, total)


def open_shared(path: Path, stack: ExitStack) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror})", "check the file and its permissions") from None
    stack.callback(os.close, descriptor)
    return descriptor
