"""Where bytes lie and where work runs: places, their memory tiers, the links between, the measured machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, cast, get_args

from moesaic.core.errors import UserError


class Space(Enum):
    DISK = "disk"
    HOST = "host"
    DEVICE = "dev"


class Place(NamedTuple):
    """A memory tier, and the processor that sits on it (a disk has none)."""

    space: Space
    ordinal: int = 0

    def __str__(self) -> str:
        return f"{self.space.value}{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Inverse of str: "dev0" -> Place(Space.DEVICE, 0). ValueError where it is none."""
        for space in Space:
            digits = text.removeprefix(space.value)
            if digits != text and digits.isdecimal():
                return cls(space, int(digits))
        raise ValueError(f"{text!r} is no place: expected disk<n>, host<n> or dev<n>")


DISK = Place(Space.DISK)
HOST = Place(Space.HOST)
DEVICE = Place(Space.DEVICE)

Queue = Literal["compute", "load", "store", "net"]


class Lane(NamedTuple):
    """An in-order queue of one place: a CUDA stream, a CPU pool, a disk reader."""

    place: Place
    queue: Queue

    def __str__(self) -> str:
        return f"{self.place}.{self.queue}"

    @classmethod
    def parse(cls, text: str) -> Lane:
        place, dot, queue = text.partition(".")
        if not dot or queue not in get_args(Queue):
            raise ValueError(f"{text!r} is no lane: expected <place>.<{'|'.join(get_args(Queue))}>")
        return cls(Place.parse(place), cast(Queue, queue))


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One place's memory and processor. `shared_bandwidth_bytes_s` is the most that the place's own
    processor and its links read together: both draw on the same memory (0: not measured, no limit known)."""

    capacity_bytes: int
    bandwidth_bytes_s: float
    peak_flops_s: float = 0.0
    shared_bandwidth_bytes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One direction of a link between two places."""

    bandwidth_bytes_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """A machine: tiers by place, links by (source, destination). `source` says where the numbers come from."""

    name: str
    tiers: Mapping[Place, TierSpec]
    links: Mapping[tuple[Place, Place], LinkSpec] = field(default_factory=dict)
    source: str = "measured"

    def to_toml(self) -> str:
        lines = [f"name = {_quoted(self.name)}", f"source = {_quoted(self.source)}"]
        for place, tier in self.tiers.items():
            lines += ["", f"[tiers.{place}]"]
            lines += [f"{key} = {getattr(tier, key)!r}" for key in TierSpec.__dataclass_fields__]
        for (src, dst), link in self.links.items():
            lines += ["", f"[links.{src}-{dst}]"]
            lines += [f"{key} = {getattr(link, key)!r}" for key in LinkSpec.__dataclass_fields__]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> HardwareProfile:
        """Raises UserError for broken TOML, an unknown or missing key, no place or no number where one is due."""
        try:
            data = tomllib.loads(text)
            unknown = data.keys() - {"name", "source", "tiers", "links"}
            if unknown:
                raise ValueError(f"unknown key {sorted(unknown)[0]!r}")
            for key in ("name", "tiers"):
                if key not in data:
                    raise ValueError(f"key {key!r} is missing")
            tiers = {Place.parse(key): TierSpec(**_numbers(key, value)) for key, value in data["tiers"].items()}
            links = {}
            for key, value in data.get("links", {}).items():
                src, _, dst = key.partition("-")
                links[Place.parse(src), Place.parse(dst)] = LinkSpec(**_numbers(key, value))
            return cls(data["name"], tiers, links, data.get("source", "measured"))
        except (tomllib.TOMLDecodeError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"hardware profile: {error}", "write it anew with `moesaic bench machine`") from error


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's, and DEL must be escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _numbers(key: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in table.items():
        if type(value) not in (int, float):
            raise ValueError(f"{key}.{name} is {value!r}, not a number")
    return table
