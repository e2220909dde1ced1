"""Writes a checkpoint of random weights of a preset's geometry: geometry -> tensors -> shards -> writes -> files.

Everything but the last step is values. The same preset, depth and seed give the same bytes everywhere. Text from
such a model is noise: it is there to measure speed and memory.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from moesaic.bench.preset_configs import config_json, generation_config_json
from moesaic.bench.preset_tensors import is_expert, preset_tensors
from moesaic.bench.presets import Geometry
from moesaic.core.arguments import shown
from moesaic.core.errors import UserError
from moesaic.core.model import TensorSpec
from moesaic.core.units import format_bytes
from moesaic.models.byte_tokenizer import tokenizer_config_json, tokenizer_json
from moesaic.models.noise import (
    ONE,
    Bits,
    Kind,
    NoiseShape,
    bfloat16_bits,
    draw_cuts,
    kind_of,
    noise_blocks,
    router_rows,
)

SHARD_BYTES = 4_000_000_000
STEP_ELEMENTS = 16 << 20  # one write: 32 MiB
HEADER_ALIGN = 4096  # tensors start on a page, so that direct reads stay aligned
SPARE_BYTES = 64 << 20  # tokenizer, index, and what the file system needs beside the weights
MAX_THREADS = 16
_PARTIAL = ".partial"

Progress = Callable[[int, int], None]  # bytes written so far, bytes in all


@dataclass(frozen=True, slots=True)
class Shard:
    """One file: its tensors, each with the offset of its bytes behind the header."""

    name: str
    tensors: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    num_bytes: int

    def header(self) -> bytes:
        """The file's first bytes, up to where the tensors start."""
        table: dict[str, object] = {"__metadata__": {"format": "pt"}}
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            table[tensor.name] = {
                "dtype": "BF16",
                "shape": list(tensor.shape),
                "data_offsets": [offset, offset + tensor_bytes(tensor)],
            }
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % HEADER_ALIGN)
        return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that go to one place of one shard."""

    shard: int
    offset: int
    values: Bits


@dataclass(frozen=True, slots=True)
class Written:
    """What a finished checkpoint holds."""

    num_bytes: int
    expert_bytes: int
    num_shards: int


def make_checkpoint(
    directory: Path,
    geometry: Geometry,
    seed: int = 0,
    *,
    shard_bytes: int = SHARD_BYTES,
    force: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Writes the checkpoint into `directory`, which is made if it is not there.

    UserError when the directory holds something (`force`: its checkpoint files are replaced, nothing else is
    touched), when the disk has no room, or when writing fails. A failure leaves nothing of the new files behind.
    """
    shards = plan_shards(preset_tensors(geometry), shard_bytes)
    total = sum(shard.num_bytes for shard in shards)
    _check_target(directory, total, force)
    shape = NoiseShape(geometry.num_layers, geometry.hidden, geometry.vocab, seed)
    existed = directory.exists()
    partial = directory / _PARTIAL
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_shards(partial, shards, shape, progress)
        for name, (content, indent) in _small_files(geometry, shards, total).items():
            (partial / name).write_text(json.dumps(content, indent=indent), encoding="utf-8")
        _install(partial, directory)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not existed:
            shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{directory}: writing failed ({error.strerror})", "name a directory with room") from None
        raise
    experts = sum(tensor_bytes(t) for shard in shards for t in shard.tensors if is_expert(t))
    return Written(total, experts, len(shards))


def tensor_bytes(tensor: TensorSpec) -> int:
    return 2 * prod(tensor.shape)


def plan_shards(tensors: Sequence[TensorSpec], shard_bytes: int) -> tuple[Shard, ...]:
    """Cuts the list, in order, into files of at most `shard_bytes`; a larger tensor gets a file of its own."""
    groups: list[list[TensorSpec]] = [[]]
    size = 0
    for tensor in tensors:
        if size and size + tensor_bytes(tensor) > shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor_bytes(tensor)
    shards = []
    for number, group in enumerate(groups, 1):
        offsets, end = [], 0
        for tensor in group:
            offsets.append(end)
            end += tensor_bytes(tensor)
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        shards.append(Shard(name, tuple(group), tuple(offsets), end))
    return tuple(shards)


def plan_writes(shards: Sequence[Shard], blocks: Mapping[Kind, Sequence[Bits]], shape: NoiseShape) -> Iterator[Write]:
    """Every byte of every tensor, in order. Random choices are drawn in that order, from `shape.seed`."""
    rng = np.random.default_rng(shape.seed)
    for index, shard in enumerate(shards):
        for tensor, offset in zip(shard.tensors, shard.offsets, strict=True):
            kind, count = kind_of(tensor.part), prod(tensor.shape)
            if kind == "ones":
                yield Write(index, offset, np.full(count, ONE, np.uint16))
            elif kind == "router":
                rows = router_rows(shape, int(tensor.part.split(".")[1]), tensor.shape[0])
                yield Write(index, offset, bfloat16_bits(rows).ravel())
            else:
                for cut in draw_cuts(blocks, kind, count, STEP_ELEMENTS, rng):
                    values = cut.block[cut.start : cut.start + cut.count]
                    yield Write(index, offset + 2 * cut.target, values)


def _write_shards(directory: Path, shards: Sequence[Shard], shape: NoiseShape, progress: Progress | None) -> None:
    total, done = sum(shard.num_bytes for shard in shards), 0
    blocks = noise_blocks(shape)
    with ExitStack() as stack:
        files, starts = [], []
        for shard in shards:
            file = os.open(directory / shard.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, file)
            header = shard.header()
            os.ftruncate(file, len(header) + shard.num_bytes)
            _write_all(file, memoryview(header), 0)
            files.append(file)
            starts.append(len(header))

        def one(write: Write) -> int:
            data = write.values.data.cast("B")
            _write_all(files[write.shard], data, starts[write.shard] + write.offset)
            return len(data)

        threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        executor = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="write"))
        stack.callback(executor.shutdown, wait=True, cancel_futures=True)
        for num_bytes in executor.map(one, plan_writes(shards, blocks, shape)):
            done += num_bytes
            if progress is not None:
                progress(done, total)


def _write_all(file: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(file, data, position)
        data, position = data[count:], position + count


def _small_files(geometry: Geometry, shards: Sequence[Shard], total: int) -> dict[str, tuple[Any, int | None]]:
    """Name -> (content, JSON indent) of every file beside the shards."""
    weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    return {
        "model.safetensors.index.json": ({"metadata": {"total_size": total}, "weight_map": weight_map}, 1),
        "config.json": (config_json(geometry), 1),
        "generation_config.json": (generation_config_json(), 1),
        "tokenizer.json": (tokenizer_json(), None),
        "tokenizer_config.json": (tokenizer_config_json(), None),
    }


def _check_target(directory: Path, num_bytes: int, force: bool) -> None:
    try:
        is_there, is_directory = directory.exists(), directory.is_dir()
        is_empty = not is_directory or not any(directory.iterdir())
    except OSError as error:
        raise UserError(f"directory {shown(str(directory))}: {error.strerror}", "name another directory") from None
    if is_there and not is_directory:
        raise UserError(f"{directory}: is a file", "name a directory that is empty or not there yet")
    if not is_empty and not force:
        raise UserError(f"{directory}: is not empty", "name another directory, or give --force to write over it")
    above = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(above).free
    if free < num_bytes + SPARE_BYTES:
        raise UserError(
            f"{directory}: {format_bytes(num_bytes + SPARE_BYTES)} wanted, {format_bytes(free)} free",
            "name a directory with more room, or write fewer --layers",
        )


def _install(partial: Path, directory: Path) -> None:
    """Moves the finished files into place; weights of an older checkpoint go first, so that no mixture remains."""
    for old in (*directory.glob("model*.safetensors"), *directory.glob("model.safetensors.index.json")):
        old.unlink()
    for file in partial.iterdir():
        file.replace(directory / file.name)
    partial.rmdir()
