"""name -> thing. An unknown name's error lists the known ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from moesaic.core.errors import UserError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only table under a `kind` that error messages name, such as "assignment policy"."""

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UserError(f"unknown {self.kind} {name!r}", f"known: {', '.join(sorted(self._entries))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries
