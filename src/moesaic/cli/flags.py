"""Command-line flags out of dataclasses: every default and help text is written once, in the dataclass.

A field becomes a flag where its metadata has "help"; "flags" adds further spellings, "cli" renames it, "cli_default" is
the default on the command line where it is another one than in Python.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer


def flags_from(**owners: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a verb: `@flags_from(engine=EngineOptions)` gives it the class's flags, under the heading "Engine",
    and hands their values over as the keyword argument `engine`: a dict by field name."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.name not in owners]
        tables = {name: flag_table(owner) for name, owner in owners.items()}

        @functools.wraps(verb)
        def command(**values: Any) -> Any:
            groups = {
                name: {field: values.pop(flag) for flag, field in table.items()} for name, table in tables.items()
            }
            return verb(**values, **groups)

        flags = [
            _parameter(owner, field, flag, name.capitalize())
            for name, owner in owners.items()
            for flag, field in zip(tables[name], _flag_fields(owner), strict=True)
        ]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + flags
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def flag_table(owner: type) -> Mapping[str, str]:
    """Parameter name on the command line -> field name, in the class's order."""
    return {field.metadata.get("cli", field.name): field.name for field in _flag_fields(owner)}


def _flag_fields(owner: type) -> list[Field[Any]]:
    return [field for field in fields(owner) if "help" in field.metadata]


def _parameter(owner: type, field: Field[Any], name: str, heading: str) -> inspect.Parameter:
    spelled = "--" + name.replace("_", "-")
    if field.default is True:
        spelled += "/--no-" + name.replace("_", "-")
    kind = _plain_type(get_type_hints(owner)[field.name])
    spellings = (spelled, *field.metadata.get("flags", ()))
    option = typer.Option(*spellings, help=field.metadata["help"], rich_help_panel=heading)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.metadata.get("cli_default", field.default),
        annotation=Annotated[kind, option],
    )


def _plain_type(hint: Any) -> Any:
    """What a flag can hold of a field's type: a list where lists are allowed, else text, else the type itself."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    lists = [kind for kind in kinds if get_origin(kind) is list]
    kind = lists[0] if lists else str if str in kinds else kinds[0]
    return kind | None if type(None) in get_args(hint) else kind
