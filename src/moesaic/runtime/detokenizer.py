"""Token ids to text as they come: never half a character, never the beginning of a stop text.

A token's text depends on its neighbours (leading spaces, characters over several tokens), so the tokens since the last
clean border are decoded together with those of the border before it, and what is new is given out. Text that ends in
U+FFFD may be half a character: it waits. What still waits when the request ends was cut and is left out, so the whole
text equals the tokenizer's decoding of all ids but for replacement characters at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

REPLACEMENT = "\ufffd"
LONGEST_CHAR_TOKENS = 4  # of UTF-8, one byte each
LONGEST_RUN = 64  # tokens decoded together at most: bounds the work where bytes never become text
Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """One sequence's ids to growing text. `decode` turns ids to text, special tokens included; ids in `skipped` give
    none and take no part in decoding."""

    def __init__(self, decode: Decode, skipped: Collection[int] = ()) -> None:
        self._decode = decode
        self._skipped = skipped
        self._before: list[int] = []  # the tokens up to the last clean border
        self._pending: list[int] = []  # the tokens since
        self._given = 0  # characters of decode(before + pending) that were given out

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain: may be empty, may include earlier tokens' held text."""
        if token_id in self._skipped:
            return ""
        self._pending.append(token_id)
        text = self._decode(self._before + self._pending)
        clean = not text.endswith(REPLACEMENT)
        if clean:
            certain = len(text)
        elif len(self._pending) > 2 * LONGEST_CHAR_TOKENS:
            certain = len(text) - 1  # too long for one character: bytes that are none, but for the last one
        else:
            certain = len(text.rstrip(REPLACEMENT))
        delta = text[self._given : certain]
        self._given = max(self._given, certain)
        if clean:
            self._advance()
        elif len(self._pending) > LONGEST_RUN:
            # no clean border in sight: go on from a few tokens back, which hold whatever may still become a character
            self._before, self._pending = self._pending[-LONGEST_CHAR_TOKENS:], []
            self._given = len(self._decode(self._before)) - 1
        return delta

    def _advance(self) -> None:
        """A clean border: the pending tokens become the context of the next ones."""
        length = len(self._decode(self._pending))
        if length:
            self._before = self._pending
        else:
            # tokens without text of their own (a leading space alone) are no context: the next one's space would go
            self._before = (self._before + self._pending)[-LONGEST_RUN:]
            length = len(self._decode(self._before))
        self._pending = []
        self._given = length


class StopMatch(NamedTuple):
    """Which stop text ended the output."""

    stop: str


class StopChecker:
    """Holds text back while it may be the beginning of a stop text; cuts at the stop text that is complete first
    (the longest one, where several are at the same character). The outcome does not depend on how text is cut into
    pieces."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._include = include
        self._held = ""  # received, not given out
        self._tail = ""  # given out, may still begin a stop text (include only)

    def push(self, text: str, armed: bool = True) -> tuple[str, StopMatch | None]:
        """(text to give out, the match that ends the output). While not `armed`, stop texts are ignored and what was
        received cannot begin one later."""
        if not self._stops:
            return text, None
        if not armed:
            given, self._held, self._tail = self._held + text, "", ""
            return given, None
        known = len(self._tail)
        window = self._tail + self._held + text
        match = self._first(window)
        if match is not None:
            end, stop = match
            kept = end if self._include else end - len(stop)
            self._held = self._tail = ""
            return window[known:kept], StopMatch(stop)
        beginning = self._beginning(window)
        if self._include:
            self._tail = window[len(window) - beginning :]
            return window[known:], None
        self._held = window[len(window) - beginning :]
        return window[: len(window) - beginning], None

    def flush(self) -> str:
        """What is still held, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """(end, stop) of the match that is complete first."""
        best: tuple[int, str] | None = None
        for stop in self._stops:  # longest first, so it wins at equal ends
            start = text.find(stop)
            if start >= 0 and (best is None or start + len(stop) < best[0]):
                best = (start + len(stop), stop)
        return best

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop text."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for size in range(longest, 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
