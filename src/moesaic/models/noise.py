"""Random weights that route like a model's: shared blocks of noise, and routers with hot experts.

Every big matrix is cut out of a few shared blocks of normal noise (std 0.02), so a 23 GB checkpoint costs little more
than writing it. Routing decides what an expert cache is worth, so it is shaped on purpose: each router row is scaled
by a lognormal factor (some experts are hotter); embeddings have unit variance and share a common part; matrices that
write into the residual stream are scaled down by 1 / (2 sqrt(layers)), so that what a router sees is mostly the
token's own embedding at every depth. With plain noise everywhere attention drowns the token and nearly all tokens
take the same experts: a cache would look perfect.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["noise", "resid", "embed", "ones", "router"]
Bits = npt.NDArray[np.uint16]  # bfloat16 values

STD = 0.02
BLOCK_ELEMENTS = (1 << 25) + 4099  # coprime to row lengths, so that rows cut from a block never line up
ONE = 0x3F80  # 1.0 in bfloat16

_NOISE_SCALES = (0.9, 1.0, 1.1)
_RESID_SCALES = (0.95, 1.05)


@dataclass(frozen=True, slots=True)
class NoiseShape:
    """What the statistics depend on. `common`: variance share of the part that all embeddings have in common;
    `skew`: sigma of the lognormal scale of router rows; `block_elements`: length of a noise block."""

    num_layers: int
    hidden: int
    vocab: int
    seed: int = 0
    common: float = 0.3
    skew: float = 0.5
    block_elements: int = BLOCK_ELEMENTS


def kind_of(part: str) -> Kind:
    """What fills a tensor, by its part (see core.model.TensorSpec)."""
    name = part.rsplit(".", 1)[-1]
    if name == "embed_tokens":
        return "embed"
    if name.endswith("norm"):
        return "ones"
    if name == "router":
        return "router"
    return "resid" if name in ("down", "o_proj") else "noise"


def bfloat16_bits(values: npt.NDArray[np.float32]) -> Bits:
    """float32 rounded to the nearest bfloat16, ties to even; no NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def noise_blocks(shape: NoiseShape) -> dict[Kind, list[Bits]]:
    """Blocks by kind. Those of noise and resid hold their elements twice in a row, so that a cut of up to
    `block_elements` may start anywhere in the first copy; the embedding block holds whole rows, once."""
    resid = 0.5 / shape.num_layers**0.5
    wanted: list[tuple[Kind, float]] = [
        *(("noise", scale) for scale in _NOISE_SCALES),
        *(("resid", scale * resid) for scale in _RESID_SCALES),
        ("embed", 1.0),
    ]
    blocks: dict[Kind, list[Bits]] = {}
    interrupted = threading.Event()
    with ThreadPoolExecutor(len(wanted)) as executor:
        filled = executor.map(lambda i: _block(shape, i, *wanted[i], interrupted), range(len(wanted)))
        try:
            for (kind, _), block in zip(wanted, filled, strict=True):
                blocks.setdefault(kind, []).append(block)
        except BaseException:
            interrupted.set()  # the pool waits for its threads: seconds of work that nobody wants any more
            raise
    return blocks


def router_rows(shape: NoiseShape, layer: int, num_experts: int) -> npt.NDArray[np.float32]:
    """A router's weight [num_experts, hidden]."""
    rng = np.random.Generator(np.random.PCG64([shape.seed, 7, layer]))
    rows = rng.standard_normal((num_experts, shape.hidden), dtype=np.float32) * STD
    heat = np.exp(shape.skew * rng.standard_normal((num_experts, 1))).astype(np.float32)
    return np.asarray(rows * heat, np.float32)


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements [start, start + count) of `block` go to elements [target, target + count) of a tensor."""

    block: Bits
    start: int
    count: int
    target: int


def draw_cuts(
    blocks: Mapping[Kind, Sequence[Bits]], kind: Kind, num_elements: int, step: int, rng: np.random.Generator
) -> list[Cut]:
    """How a tensor of `num_elements` is put together: for noise and resid a random block and start every `step`
    elements; for an embedding its block over and over."""
    choice = blocks[kind]
    if kind == "embed":
        length = len(choice[0])
        return [Cut(choice[0], 0, min(length, num_elements - a), a) for a in range(0, num_elements, length)]
    assert kind in ("noise", "resid"), kind
    cuts = []
    for target in range(0, num_elements, step):
        block = choice[int(rng.integers(len(choice)))]
        assert min(step, num_elements) <= len(block) // 2, "a cut would run past its block"
        start = int(rng.integers(len(block) // 2))
        cuts.append(Cut(block, start, min(step, num_elements - target), target))
    return cuts


def _block(shape: NoiseShape, index: int, kind: Kind, scale: float, interrupted: threading.Event) -> Bits:
    rng = np.random.Generator(np.random.SFC64([shape.seed, index]))
    hidden, num_elements = shape.hidden, shape.block_elements
    if kind == "embed":
        num_elements = min(shape.vocab, max(1, num_elements // hidden)) * hidden
        topic = np.random.Generator(np.random.SFC64([shape.seed, 99])).standard_normal(hidden, dtype=np.float32)
    bits = np.empty(num_elements if kind == "embed" else 2 * num_elements, np.uint16)
    step = hidden * max(1, (1 << 22) // hidden)
    for start in range(0, num_elements, step):
        if interrupted.is_set():
            break
        stop = min(start + step, num_elements)
        values = rng.standard_normal(stop - start, dtype=np.float32)
        if kind == "embed":
            own, shared = (1 - shape.common) ** 0.5, shape.common**0.5
            values = (values.reshape(-1, hidden) * own + topic * shared).ravel()
        else:
            values *= np.float32(STD * scale)
        bits[start:stop] = bfloat16_bits(values)
    if kind != "embed":
        bits[num_elements:] = bits[:num_elements]
    return bits
