"""Flags come from the dataclasses: every field has one, with the same default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from moesaic.cli import generate
from moesaic.cli.flags import flag_table, flags_from
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.options import EngineOptions


def command_of(verb: Any) -> click.Command:
    app = typer.Typer(add_completion=False)
    app.command()(verb)
    return typer.main.get_command(app)


@pytest.mark.parametrize("owner", [EngineOptions, SamplingParams])
def test_generate_has_a_flag_for_every_field_with_its_default(owner: type) -> None:
    flags = {p.name: p for p in command_of(generate.run).params}
    table = flag_table(owner)
    without = {f.name for f in fields(owner)} - set(table.values())
    assert without <= {"model", "logit_bias", "detokenize"}, "no field is forgotten"
    for flag, name in table.items():
        [own] = [f for f in fields(owner) if f.name == name]
        assert "--" + flag.replace("_", "-") in flags[flag].opts
        assert flags[flag].default == own.metadata.get("cli_default", own.default)


@dataclass(frozen=True)
class _Options:
    size: str | int | None = field(default=None, metadata={"help": "a size", "flags": ("--big",)})
    names: str | tuple[str, ...] | list[str] | None = field(default=None, metadata={"help": "names"})
    loud: bool = field(default=True, metadata={"help": "loud"})
    count: int = field(default=3, metadata={"help": "count", "cli": "how_many"})
    hidden: int = 1


def run(*args: str) -> tuple[int, list[Any]]:
    seen: list[Any] = []

    @flags_from(options=_Options)
    def verb(what: str, *, options: Mapping[str, Any]) -> None:
        seen.extend([what, dict(options)])

    app = typer.Typer(add_completion=False)
    app.command()(verb)
    return CliRunner().invoke(app, args).exit_code, seen


def test_values_arrive_under_the_fields_names() -> None:
    code, seen = run("x", "--size=6GiB", "--names", "a", "--names", "b", "--no-loud", "--how-many", "5")
    assert code == 0
    assert seen == ["x", {"size": "6GiB", "names": ["a", "b"], "loud": False, "count": 5}]
    assert run("x", "--big", "1")[1][1]["size"] == "1"


def test_defaults_are_the_dataclass_and_unknown_flags_are_errors() -> None:
    assert run("x") == (0, ["x", {"size": None, "names": None, "loud": True, "count": 3}])
    assert run("x", "--hidden", "2") == (2, [])
