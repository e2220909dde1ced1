"""The header of one safetensors file: read, and doubted.

A file is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes. Nothing of the header is
believed before it agrees with the file: a short file, overlapping or missing bytes, and shapes that do not match
their bytes are refused here, before anything is allocated. No byte of a tensor is read.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moesaic.core.errors import UserError

# bits of one element, for every type that the format knows; which of them a model may use is the caller's question
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMS = 16
_FETCH_AGAIN = "the file is damaged, fetch it again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor's bytes are: `num_bytes` at `offset` of `path`, little-endian, row-major."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Tensor name -> entry of the file at `path`, a regular file. UserError names the file, and the tensor if one is
    at fault."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = _header_bytes(path, file.read(8), file_bytes)
            text = file.read(length)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})", "check the file and its permissions") from None
    if len(text) < length:
        raise UserError(f"{path}: ends inside its header", _FETCH_AGAIN)
    entries = {}
    for name, value in _parse(path, text).items():
        if name != "__metadata__":
            entries[name] = _entry(path, name, value, 8 + length)
    _check_tiling(path, entries, 8 + length, file_bytes)
    return entries


def _header_bytes(path: Path, prefix: bytes, file_bytes: int) -> int:
    if len(prefix) < 8:
        raise UserError(f"{path}: has {file_bytes} bytes, too few for a safetensors file", _FETCH_AGAIN)
    length: int = struct.unpack("<Q", prefix)[0]
    if length > MAX_HEADER_BYTES:
        raise UserError(f"{path}: claims a header of {length} bytes, above the format's limit", "is it safetensors?")
    if length > file_bytes - 8:
        raise UserError(f"{path}: claims a header of {length} bytes but has {file_bytes} in all", _FETCH_AGAIN)
    return length


def _parse(path: Path, text: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError("a name occurs twice")
        return table

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise UserError(f"{path}: its header is nested too deep", _FETCH_AGAIN) from None
    except ValueError as error:
        raise UserError(f"{path}: its header is not JSON ({shown(str(error))})", _FETCH_AGAIN) from None
    if not isinstance(header, dict):
        raise UserError(f"{path}: its header is not a JSON object", _FETCH_AGAIN)
    return header


def shown(text: str) -> str:
    """`text` out of an untrusted file, fit for one line of a message."""
    return ascii(text)[1:-1][:200]


def _entry(path: Path, name: str, value: object, base: int) -> TensorEntry:
    where = f"{path}: tensor {shown(name)}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"{where} must have dtype, shape and data_offsets and nothing else", _FETCH_AGAIN)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise UserError(f"{where} has the unknown dtype {shown(str(dtype))}", "no known safetensors writer makes it")
    if not _counts(shape) or len(shape) > MAX_DIMS:
        raise UserError(f"{where} has no valid shape", _FETCH_AGAIN)
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UserError(f"{where} has no valid data_offsets", _FETCH_AGAIN)
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    begin, end = offsets
    if bits != 8 * (end - begin):
        raise UserError(f"{where} has {end - begin} bytes, not those of {dtype} {list(shape)}", _FETCH_AGAIN)
    return TensorEntry(path, dtype, tuple(shape), base + begin, end - begin)


def _counts(values: object) -> bool:
    """Whether `values` is a list of sizes that 63 bits hold."""
    return isinstance(values, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63 for v in values
    )


def _check_tiling(path: Path, entries: Mapping[str, TensorEntry], base: int, file_bytes: int) -> None:
    """The tensors must cover the file's bytes exactly: no overlap, no gap, no byte missing, none left over."""
    end, before = base, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        where = f"{path}: tensor {shown(name)}"
        if entry.offset < end:
            raise UserError(f"{where} overlaps {before}", _FETCH_AGAIN)
        if entry.offset > end:
            raise UserError(f"{where} leaves a gap of {entry.offset - end} bytes after {before}", _FETCH_AGAIN)
        end, before = entry.offset + entry.num_bytes, shown(name)
        if end > file_bytes:
            raise UserError(f"{where} ends at byte {end} but the file has {file_bytes}: truncated", _FETCH_AGAIN)
    if end < file_bytes:
        raise UserError(f"{path}: has {file_bytes - end} bytes that belong to no tensor", _FETCH_AGAIN)
