"""Numbers of every library are read alike, bools are none, and unknown names meet close ones."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from dataclasses import dataclass
from fractions import Fraction

import pytest

from moesaic.core.arguments import names_checked, number, shown, token_ids, whole
from moesaic.core.errors import UserError


class Array:
    """What numpy's arrays and torch's tensors have in common."""

    def __init__(self, values: object) -> None:
        self.values = values

    def tolist(self) -> object:
        return self.values


@pytest.mark.parametrize(
    ("value", "as_whole", "as_number"),
    [
        (3, 3, 3), (-1, -1, -1), (2.5, None, 2.5), (True, None, None), ("3", None, None), (None, None, None),
        (Fraction(1, 2), None, 0.5), (Fraction(10) ** 400, None, math.inf), (3j, None, None),
    ],
)  # fmt: skip
def test_only_numbers_are_numbers(value: object, as_whole: int | None, as_number: float | None) -> None:
    assert whole(value) == as_whole
    assert number(value) == as_number


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ([1, 2], [1, 2]), ((1,), [1]), (range(3), [0, 1, 2]), ([], []), (Array([4, 5]), [4, 5]),
        (Array(4), None), (Array([[4]]), None), ("12", None), (b"12", None), ({1: 2}, None), (5, None), (None, None),
        ([1, "a"], None), ([True], None), ([1.0], None),
    ],
)  # fmt: skip
def test_token_ids_are_flat_whole_numbers(value: object, ids: list[int] | None) -> None:
    assert token_ids(value) == ids


@pytest.mark.parametrize("value", [10**5000, [10**5000], "x" * 500, "a\nb", {"a": 1}], ids=type)
def test_any_value_is_shown_in_a_short_line(value: object) -> None:
    assert 0 < len(shown(value)) <= 80
    assert "\n" not in shown(value)


@names_checked("thing", {"colour": "it is called color here"})
@dataclass(frozen=True, slots=True)
class Thing:
    size: int = 1
    color: str = "red"


def test_unknown_names_name_the_way_out_and_the_class_stays_what_it_was() -> None:
    with pytest.raises(UserError, match="unknown thing 'sise': did you mean size"):
        Thing(sise=3)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="it is called color here"):
        Thing(colour="blue")  # type: ignore[call-arg]
    with pytest.raises(UserError, match="known: size, color"):
        Thing(zzz=1)  # type: ignore[call-arg]
    thing = Thing(2, color="blue")
    assert copy.copy(thing) == pickle.loads(pickle.dumps(thing)) == thing  # noqa: S301
    assert list(inspect.signature(Thing).parameters) == ["size", "color"]
