"""RoutingTrace: which experts each token chose, layer by layer. Recorded from a model or generated; JSON lines on disk.

A trace makes routing a controlled variable: it is replayed through the shipped cache (sim/replay), bounded
(sim/bounds), or forced upon a model with random weights.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from moesaic.core.errors import UserError
from moesaic.core.routing import ExpertId

FORMAT = "moesaic.routing_trace"
VERSION = 1
_HEADER = {
    "format": str,
    "version": int,
    "layers": list,
    "num_experts": int,
    "top_k": int,
    "num_steps": int,
    "source": str,
}


@dataclass(slots=True)
class TraceStep:
    """One step of some tokens. `ids` has, per layer of the trace, the tokens' experts laid end to end (uint16)."""

    num_tokens: int = 0
    domain: str | None = None
    ids: list[array[int]] = field(default_factory=list)


class RoutingTrace:
    """Steps over `layers` (the model's MoE layers, in order) of `num_experts` experts, `top_k` chosen per token.

    `source` says where it comes from. A step is complete once every layer is recorded.
    """

    def __init__(self, layers: Sequence[int], num_experts: int, top_k: int, source: str = "recorded") -> None:
        self.layers = tuple(layers)
        self.num_experts = num_experts
        self.top_k = top_k
        self.source = source
        self.steps: list[TraceStep] = []
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise UserError(f"routing trace: layers {list(self.layers)}", "give ascending layer numbers")
        if not 0 < top_k <= num_experts <= 1 << 16:
            raise UserError(
                f"routing trace: top_k {top_k} of {num_experts} experts", "give 1 <= top_k <= num_experts <= 65536"
            )
        self._position = {layer: i for i, layer in enumerate(self.layers)}

    # -- record ---------------------------------------------------------------------------------------------------
    def begin_step(self, domain: str | None = None) -> None:
        """Opens a step; the one before must be complete. `domain` labels the text, such as "code"."""
        assert not self.steps or len(self.steps[-1].ids) == len(self.layers), "the last step lacks layers"
        self.steps.append(TraceStep(domain=domain))

    def record(self, layer: int, ids_TK: Sequence[Sequence[int]]) -> None:
        """The experts of every token of the open step at `layer`, which must be the step's next layer.

        Raises UserError where the ids do not fit the trace's geometry."""
        step = self.steps[-1]
        assert layer == self.layers[len(step.ids)], f"layer {layer} out of order"
        self._append(step, [e for ids in ids_TK for e in ids], len(ids_TK))

    def _append(self, step: TraceStep, flat: Sequence[int], num_tokens: int) -> None:
        where = f"routing trace: step {len(self.steps) - 1} layer {self.layers[len(step.ids)]}"
        k = self.top_k
        if step.ids and num_tokens != step.num_tokens:
            raise UserError(f"{where}: {num_tokens} tokens, {step.num_tokens} in the layer before", "record it anew")
        if len(flat) != num_tokens * k:
            raise UserError(f"{where}: {len(flat)} ids for {num_tokens} tokens of {k} experts", "record it anew")
        for start in range(0, len(flat), k):
            chosen = flat[start : start + k]
            if len(set(chosen)) != k or not all(type(e) is int and 0 <= e < self.num_experts for e in chosen):
                raise UserError(
                    f"{where}: token {start // k} has experts {list(chosen)}",
                    f"give {k} different ids below {self.num_experts}",
                )
        step.num_tokens = num_tokens
        step.ids.append(array("H", flat))

    # -- read -----------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.steps)

    def ids(self, step: int, layer: int) -> tuple[tuple[int, ...], ...]:
        """The experts of each token, in the router's order: [tokens][top_k]."""
        flat = self.steps[step].ids[self._position[layer]]
        return tuple(tuple(flat[i : i + self.top_k]) for i in range(0, len(flat), self.top_k))

    def requests(self) -> Iterator[tuple[ExpertId, ...]]:
        """What a cache is asked: per step and layer the distinct experts, ascending, wanted together."""
        for step in self.steps:
            for layer, flat in zip(self.layers, step.ids, strict=True):
                yield tuple(ExpertId(layer, e) for e in sorted(set(flat)))

    def overlap(self) -> float:
        """Mean share of a token's experts that the token before it chose in the same layer; tokens in recorded order,
        so it says something for one sequence only. 0 with fewer than two tokens."""
        shared = pairs = 0
        for position in range(len(self.layers)):
            before: set[int] | None = None
            for chosen in self._tokens(position):
                if before is not None:
                    shared += len(before & chosen)
                    pairs += 1
                before = chosen
        return shared / (pairs * self.top_k) if pairs else 0.0

    def hottest_quarter(self) -> float:
        """Share of routes that the most used quarter of each layer's experts takes; 0 where nothing is recorded."""
        hot = total = 0
        for position in range(len(self.layers)):
            count = Counter(e for step in self.steps for e in step.ids[position])
            hot += sum(n for _, n in count.most_common(max(1, self.num_experts // 4)))
            total += count.total()
        return hot / total if total else 0.0

    def _tokens(self, position: int) -> Iterator[set[int]]:
        for step in self.steps:
            flat = step.ids[position]
            for i in range(0, len(flat), self.top_k):
                yield set(flat[i : i + self.top_k])

    # -- disk -----------------------------------------------------------------------------------------------------
    def save(self, path: Path) -> None:
        """Writes JSON lines, compressed where the name ends in .gz: a header, then one line a step. The file appears
        whole or not at all."""
        part = path.with_name(path.name + ".part")
        header = {"format": FORMAT, "version": VERSION, "layers": self.layers, "num_experts": self.num_experts}
        header |= {"top_k": self.top_k, "num_steps": len(self.steps), "source": self.source}
        try:
            with gzip.open(part, "wt") if path.suffix == ".gz" else part.open("w") as file:
                file.write(json.dumps(header) + "\n")
                for step in self.steps:
                    line: dict[str, Any] = {"tokens": step.num_tokens}
                    if step.domain is not None:
                        line["domain"] = step.domain
                    line["ids"] = [ids.tolist() for ids in step.ids]
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise UserError(f"routing trace {path}: {error.strerror}", "give a path that can be written") from error

    @classmethod
    def load(cls, path: Path) -> RoutingTrace:
        """Raises UserError, naming file and line, for anything that `save` does not write."""
        try:
            with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
                lines = file.read().splitlines()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise UserError(
                f"routing trace {path} cannot be read: {error}", "give a file that moesaic wrote"
            ) from error
        number = 0
        try:
            for number, line in enumerate(lines or [""], 1):
                if number == 1:
                    trace = cls._parse_header(line, len(lines) - 1)
                else:
                    trace._parse_step(line)
        except ValueError as error:
            raise UserError(f"routing trace {path} line {number}: {error}", "record or generate it anew") from error
        return trace

    @classmethod
    def _parse_header(cls, line: str, num_steps: int) -> RoutingTrace:
        header = _fields(line, _HEADER, set())
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {header['format']!r} version {header['version']}, not {FORMAT} {VERSION}")
        if not all(type(layer) is int for layer in header["layers"]):
            raise ValueError(f"layers {header['layers']}")
        if header["num_steps"] != num_steps:
            raise ValueError(f"{header['num_steps']} steps announced, {num_steps} there")
        return cls(header["layers"], header["num_experts"], header["top_k"], header["source"])

    def _parse_step(self, line: str) -> None:
        data = _fields(line, {"tokens": int, "ids": list, "domain": str}, {"domain"})
        if len(data["ids"]) != len(self.layers) or not all(type(ids) is list for ids in data["ids"]):
            raise ValueError(f"ids are no {len(self.layers)} lists, one a layer")
        self.begin_step(data.get("domain"))
        for flat in data["ids"]:
            if not all(type(e) is int for e in flat):
                raise ValueError("an expert's id is no integer")
            self._append(self.steps[-1], flat, data["tokens"])


def _fields(line: str, types: dict[str, type], optional: set[str]) -> dict[str, Any]:
    """The JSON object of a line, with exactly these fields of these types. ValueError otherwise."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    for key in data.keys() - types.keys():
        raise ValueError(f"unknown field {key!r}")
    for key, kind in types.items():
        if key not in data and key not in optional:
            raise ValueError(f"field {key!r} is missing")
        if key in data and type(data[key]) is not kind:
            raise ValueError(f"field {key!r} is {data[key]!r}, not {kind.__name__}")
    return data


def generate(
    num_layers: int,
    num_experts: int,
    top_k: int,
    num_steps: int,
    seed: int,
    locality: float = 0.1,
    skew: float = 1.0,
    drift_every: int | None = None,
) -> RoutingTrace:
    """A synthetic trace of one sequence, one token a step, the same for the same arguments.

    Per layer, expert of rank r has weight 1 / (r + 1) ** `skew`, ranks in random order. A token keeps each expert of
    the token before with chance `locality` and draws the others from the weights, all different. With `drift_every`
    the order of ranks is drawn anew, for all layers, every so many steps; domains then read "phase0", "phase1", ...

    The defaults give, at 2 of 8 experts, an overlap with the token before of 0.41 and a hottest quarter of 0.51 of the
    routes; at 8 of 128, 0.31 and 0.70.
    """
    drift_ok = drift_every is None or drift_every > 0
    if not 0 <= locality <= 1 or skew < 0 or num_steps < 0 or num_layers < 1 or not drift_ok:
        raise UserError(
            f"routing trace: {num_layers} layers, {num_steps} steps, locality {locality}, skew {skew}, "
            f"drift every {drift_every}",
            "give locality from 0 to 1, skew >= 0, and counts that are not negative",
        )
    source = f"generated seed={seed} locality={locality} skew={skew} drift_every={drift_every}"
    trace = RoutingTrace(range(num_layers), num_experts, top_k, source)
    rng = random.Random(seed)
    weights = [(rank + 1) ** -skew for rank in range(num_experts)]
    cumulative = list(accumulate(weights))
    ranked = [list(range(num_experts)) for _ in range(num_layers)]
    before: list[list[int]] = [[] for _ in range(num_layers)]
    for step in range(num_steps):
        if step % (drift_every or num_steps) == 0:
            for experts in ranked:
                rng.shuffle(experts)
        trace.begin_step(f"phase{step // drift_every}" if drift_every else None)
        for layer, experts in enumerate(ranked):
            kept = {e for e in before[layer] if rng.random() < locality}
            before[layer] = _draw(rng, experts, weights, cumulative, [e for e in before[layer] if e in kept], top_k)
            trace.record(layer, (before[layer],))
    return trace


def _draw(
    rng: random.Random,
    ranked: Sequence[int],
    weights: Sequence[float],
    cumulative: Sequence[float],
    chosen: list[int],
    top_k: int,
) -> list[int]:
    """Fills `chosen` up to `top_k` different experts, each draw by weight among those not chosen yet."""
    while len(chosen) < top_k:
        for expert in rng.choices(ranked, cum_weights=cumulative, k=8):
            if expert not in chosen:
                break
        else:  # steep weights hit the same few again and again: draw among the others alone
            others = [(e, w) for e, w in zip(ranked, weights, strict=True) if e not in chosen]
            expert = rng.choices([e for e, _ in others], [w for _, w in others])[0]
        chosen.append(expert)
    return chosen
