"""Many byte strings looked for at once: all places of all of them, however they overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import hyperscan
from ahocorasick_rs import BytesAhoCorasick

Places = Iterable[tuple[int, int, int]]
"""Which text, where it begins, and where it ends."""
COMPILED_MAX = 8000


def search_for(texts: Sequence[bytes]) -> Callable[[bytes], Places]:
    """A search that may be used by several threads. The texts are not empty, and differ.

    Few are looked for at 2 GB/s and more. To prepare very many for that takes seconds and hundreds of MiB, so they are searched for at a tenth of it.
    """
    return _Compiled(texts) if len(texts) <= COMPILED_MAX else searched_plainly(texts)


def searched_plainly(texts: Sequence[bytes]) -> Callable[[bytes], Places]:
    automaton = BytesAhoCorasick(texts)
    return lambda data: automaton.find_matches_as_indexes(data, overlapping=True)


class Expressions:
    """Regular expressions of bytes, without groups that refer back. once: those of which one place is enough, whichever it is.

    Several threads may search with it.
    """

    def __init__(self, expressions: Sequence[bytes], once: Collection[int] = ()) -> None:
        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=list(expressions),
            ids=list(range(len(expressions))),
            elements=len(expressions),
            flags=[hyperscan.HS_FLAG_SINGLEMATCH if n in once else 0 for n in range(len(expressions))],
        )
        self._one = threading.Lock()  # it works in a memory of its own

    def ends(self, data: bytes) -> list[tuple[int, int]]:
        """Which expression, and where a match of it ends, of all that there are."""
        found: list[tuple[int, int]] = []

        def note(expression: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((expression, end))

        with self._one:
            self._database.scan(data, match_event_handler=note)
        return found


class _Compiled:
    def __init__(self, texts: Sequence[bytes]) -> None:
        self._lengths = [len(text) for text in texts]
        # As expressions: what is taken literally must not hold a NUL
        self._search = Expressions([b"".join(b"\\x%02x" % byte for byte in text) for text in texts])

    def __call__(self, data: bytes) -> Places:
        return [(text, end - self._lengths[text], end) for text, end in self._search.ends(data)]
