"""Many byte strings looked for at once: all places of all of them, however they overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import hyperscan
from ahocorasick_rs import BytesAhoCorasick

Places = Iterable[tuple[int, int, int]]
"""Which text, where it begins, and where it ends."""
COMPILED_MAX = 8000
_BITS = hyperscan.HS_MODE_BLOCK


def search_for(texts: Sequence[bytes]) -> Callable[[bytes], Places]:
    """A search that may be used by several threads. The texts are not empty, and differ.

    Few are looked for at 2 GB/s and more. To prepare very many for that takes seconds and hundreds of MiB, so they are searched for at a tenth of it.
    """
    return _Compiled(texts) if len(texts) <= COMPILED_MAX else searched_plainly(texts)


def searched_plainly(texts: Sequence[bytes]) -> Callable[[bytes], Places]:
    automaton = BytesAhoCorasick(texts)
    return lambda data: automaton.find_matches_as_indexes(data, overlapping=True)


class _Compiled:
    def __init__(self, texts: Sequence[bytes]) -> None:
        self._lengths = [len(text) for text in texts]
        self._database: Any = hyperscan.Database(mode=_BITS)
        # As expressions: what is taken literally must not hold a NUL
        expressions = [b"".join(b"\\x%02x" % byte for byte in text) for text in texts]
        self._database.compile(expressions=expressions, ids=list(range(len(texts))), elements=len(texts), flags=0)
        self._one = threading.Lock()  # it works in a memory of its own

    def __call__(self, data: bytes) -> Places:
        ends: list[tuple[int, int]] = []

        def note(text: int, _start: int, end: int, _flags: int, _context: object) -> None:
            ends.append((text, end))

        with self._one:
            self._database.scan(data, match_event_handler=note)
        return [(text, end - self._lengths[text], end) for text, end in cast(list[tuple[int, int]], ends)]
