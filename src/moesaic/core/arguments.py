"""What callers pass, read strictly: whole numbers, numbers and token ids of any library, and names that are known.

A bool is no number here, and numpy's scalars are numbers like Python's own.
"""

from __future__ import annotations

import difflib
import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from moesaic.core.errors import UserError

T = TypeVar("T")
_LONGEST_SHOWN = 80
_MOST_DIGITS = 20


def whole(value: object) -> int | None:
    """`value` as an int, None where it is no whole number."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None


def number(value: object) -> int | float | None:
    """`value` as an int or a float, None where it is no number."""
    if isinstance(value, numbers.Integral) or not isinstance(value, numbers.Real):
        return whole(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf  # beyond every range, whatever its sign


def token_ids(value: object) -> list[int] | None:
    """`value` as a list of ids: a list, a tuple, a range, a 1-D array or tensor of whole numbers; None where it is
    something else. Whether a vocabulary has them is the caller's question."""
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return None
    listed = as_list(value)
    if listed is None:
        return None
    ids = [whole(item) for item in listed]
    return None if any(i is None for i in ids) else [i for i in ids if i is not None]


def as_list(value: object) -> list[Any] | None:
    """The items of an iterable, an array or a tensor; None where it has none."""
    if hasattr(value, "tolist"):
        value = value.tolist()  # arrays and tensors: plain numbers, read at once
    return list(value) if isinstance(value, Iterable) else None


def shown(value: object) -> str:
    """`value` for one line of a message, however long it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**_MOST_DIGITS:
        return f"a number of more than {_MOST_DIGITS} digits"  # Python refuses to print very long ones
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a number of that kind inside
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def names_checked(what: str, elsewhere: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Class decorator: an unknown keyword is a UserError "unknown <what> ..." that names close ones. `elsewhere` holds
    names that scripts written for other engines pass, and what says the same here."""

    def decorate(cls: type[T]) -> type[T]:
        own = cls.__init__
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]

        @functools.wraps(own)
        def checked(self: T, *args: Any, **values: Any) -> None:
            for name in values:
                if name not in known:
                    raise UserError(f"unknown {what} {name!r}", elsewhere.get(name) or _did_you_mean(name, known))
            own(self, *args, **values)

        cls.__init__ = checked  # type: ignore[assignment]
        return cls

    return decorate


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
