"""RunRecord: one measured run as one JSON line, with everything that is needed to believe it and to repeat it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from moesaic.core.errors import UserError

SCHEMA = 1

Value = str | int | float | bool | None


class Quantity(NamedTuple):
    """A number and its unit: "tok/s", "s", "B", "B/s", "J", "share" (1 is all of it), "1" for a count."""

    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What ran, on what, how, and what came out.

    `commit` names the checkout's commit ("" outside one; "+changes" where files differ from it), `version` the
    package. `plan` is the effective plan: every setting that shaped the run, defaults too. `notes` say what was
    chosen and why, and what could not be measured here.
    """

    workload: str
    mode: str
    started: str  # UTC, ISO 8601
    command: tuple[str, ...]
    version: str
    commit: str
    machine: Mapping[str, Value]
    versions: Mapping[str, str]
    plan: Mapping[str, Value]
    numbers: Mapping[str, Quantity]
    notes: tuple[str, ...] = ()
    schema: int = field(default=SCHEMA)

    def to_json(self) -> str:
        """One line without its newline."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["numbers"] = {name: {"value": q.value, "unit": q.unit} for name, q in self.numbers.items()}
        return json.dumps(data, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str = "run record") -> RunRecord:
        """Inverse of to_json. UserError, beginning with `where`, names the first key that is missing, unknown or
        of a wrong type."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: no JSON: {error}", "remove the line") from error
        try:
            return _checked(data)
        except ValueError as error:
            raise UserError(
                f"{where}: {error}", "remove the line, or read it with the version that wrote it"
            ) from error


def append_record(path: Path, record: RunRecord) -> None:
    """Adds one line to `path`; never rewrites what is there. UserError where the file cannot be written."""
    _append(path, record.to_json() + "\n")


def check_appendable(path: Path) -> None:
    """UserError where append_record would fail; for a check before a long run. The file is there afterwards."""
    _append(path, "")


def read_records(path: Path) -> Iterator[RunRecord]:
    """Records of `path` in order; blank lines are skipped. UserError names file and line of a bad one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"record file {path}: {error.strerror}", "name a file that `--record` wrote") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield RunRecord.from_json(line, f"{path} line {number}")


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"record file {path}: {error.strerror}", "name a file in a folder that exists") from error


def _checked(data: Any) -> RunRecord:
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    names = {f.name for f in dataclasses.fields(RunRecord)}
    for key in sorted(data.keys() ^ names):
        raise ValueError(f"{'unknown' if key in data else 'missing'} key {key!r}")
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']!r}, this version reads {SCHEMA}")
    for key in ("workload", "mode", "started", "version", "commit"):
        _expect(isinstance(data[key], str), key, "a string")
    for key in ("command", "notes"):
        _expect(isinstance(data[key], list) and all(isinstance(x, str) for x in data[key]), key, "a list of strings")
        data[key] = tuple(data[key])
    for key in ("machine", "versions", "plan", "numbers"):
        _expect(isinstance(data[key], dict), key, "an object")
    for key in ("machine", "plan"):
        for name, value in data[key].items():
            _expect(value is None or isinstance(value, (str, int, float)), f"{key}.{name}", "a plain value")
    for name, value in data["versions"].items():
        _expect(isinstance(value, str), f"versions.{name}", "a string")
    data["numbers"] = {name: _quantity(name, value) for name, value in data["numbers"].items()}
    return RunRecord(**data)


def _quantity(name: str, data: Any) -> Quantity:
    what = f"numbers.{name}"
    _expect(isinstance(data, dict) and data.keys() == {"value", "unit"}, what, "an object with value and unit")
    value, unit = data["value"], data["unit"]
    _expect(isinstance(value, (int, float)) and not isinstance(value, bool), f"{what}.value", "a number")
    _expect(math.isfinite(value), f"{what}.value", "finite")
    _expect(isinstance(unit, str) and unit != "", f"{what}.unit", "a unit")
    return Quantity(value, unit)


def _expect(true: bool, key: str, what: str) -> None:
    if not true:
        raise ValueError(f"{key} is not {what}")
