"""Secrets found by their values in whatever was written, and replaced by their names.

Found are a value as it is, and as it looks escaped for URLs, JSON (nested, too), XML and shells, in base64 at each of its three
alignments and in hex, both broken into lines or not, and in UTF-16. Not found: what was compressed, encrypted, reversed or cut into pieces.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from eval_pipeline.vault.encodings import forms_of
from eval_pipeline.vault.searching import Places, search_for

MIN_BYTES = 8
"""What is shorter stands in texts by chance: it is not looked for."""


@dataclass(frozen=True)
class _Match:
    start: int
    end: int
    name: str


class Redactor:
    """values: by name, one or several. too_short: names of those that can't be looked for. step_bytes: of a stream, looked through at once.

    Thread-safe; a secret stands in no representation of it.
    """

    def __init__(self, values: Mapping[str, str | Collection[str]], step_bytes: int = 1 << 18) -> None:
        self._values = dict(values)
        self._step_bytes = step_bytes
        every = {(name, one) for name, value in values.items() for one in ([value] if isinstance(value, str) else value)}
        self.too_short = sorted({name for name, value in every if value and _size(value) < MIN_BYTES})
        looked_for = sorted((name, value) for name, value in every if _size(value) >= MIN_BYTES)
        self._forms = [(name, form) for name, value in looked_for for form in forms_of(value)]
        self._patterns: dict[int, re.Pattern[bytes]] = {}
        anchors = [(text, i, before) for i, (_, form) in enumerate(self._forms) for text, before in form.anchors]
        self._by_text: dict[bytes, list[tuple[int, int]]] = {}
        for text, form, before in anchors:
            self._by_text.setdefault(text, []).append((form, before))
        self._texts = list(self._by_text)
        self.reach = max((form.longest for _, form in self._forms), default=0)
        """No match is longer."""

    def __reduce__(self) -> tuple[Callable[..., Redactor], tuple[Any, ...]]:
        values = {name: value if isinstance(value, str) else tuple(value) for name, value in self._values.items()}
        return _again, (tuple(values.items()), self._step_bytes)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def text(self, text: str) -> str:
        try:
            data, errors = text.encode(), "strict"
        except UnicodeEncodeError:
            data, errors = text.encode("utf-8", "surrogatepass"), "surrogatepass"
        redacted = self.bytes(data)
        if redacted == data:
            return text
        try:
            return redacted.decode("utf-8", errors)
        except UnicodeDecodeError:  # of a value that is no text itself
            return redacted.decode("utf-8", "replace")

    def bytes(self, data: bytes) -> bytes:
        return b"".join(self.stream([data]))

    def stream(self, chunks: Iterable[bytes], found: Counter[str] | None = None) -> Iterator[bytes]:
        """The same bytes however they are cut into chunks. found: counts what was replaced, by name.

        In memory stand a chunk, a step, and twice the longest match.
        """
        if not self:
            yield from chunks
            return
        for data, matches, decided in self._steps(chunks, found):
            pieces: list[bytes] = []
            at = 0
            for match in matches:
                pieces += [data[at : match.start], f"[secret {match.name}]".encode()]
                at = match.end
            pieces.append(data[at:decided])
            yield b"".join(pieces) if matches else pieces[0]

    def count(self, chunks: Iterable[bytes]) -> Counter[str]:
        """How often each secret stands in it, by name."""
        found = Counter[str]()
        for _ in self._steps(chunks, found) if self else ():
            pass
        return found

    def any(self, value: Any) -> Any:
        """JSON, with all its texts redacted: keys and values."""
        if not self:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.any(key): self.any(one) for key, one in cast(Mapping[Any, Any], value).items()}
        return [self.any(one) for one in cast(Iterable[Any], value)] if isinstance(value, list | tuple) else value

    def _steps(self, chunks: Iterable[bytes], found: Counter[str] | None) -> Iterator[tuple[bytes, list[_Match], int]]:
        """Some data, what is replaced in it, and how far it is decided: the rest comes again."""
        held: list[bytes] = []
        size = 0
        for chunk in chunks:
            held.append(chunk)
            size += len(chunk)
            if size >= self._step_bytes + 2 * self.reach:
                data = b"".join(held)
                matches, decided = self._replaced(data, size - 2 * self.reach, found)
                yield data, matches, decided
                held = [data[decided:]]
                size -= decided
        data = b"".join(held)
        yield data, *self._replaced(data, size, found)

    def _replaced(self, data: bytes, decided: int, found: Counter[str] | None) -> tuple[list[_Match], int]:
        """A match that begins before `decided` ends inside of `data`, with all that may compete with it."""
        chosen: list[_Match] = []
        at = 0
        for match in self._matches(data):
            if match.start >= decided:
                break
            if match.start >= at:
                chosen.append(match)
                at = match.end
                if found is not None:
                    found[match.name] += 1
        return chosen, max(at, decided)

    def _matches(self, data: bytes) -> list[_Match]:
        """Every one, from left to right, the longest of each place first: they may overlap."""
        found = set[_Match]()
        for text, start, end in self._search(data):
            for form, before in self._by_text[self._texts[text]]:
                name, shape = self._forms[form]
                found.update(_around(data, self._pattern(form), start - before, start, end, shape.longest, name))
        return sorted(found, key=lambda match: (match.start, -match.end, match.name))

    @functools.cached_property
    def _search(self) -> Callable[[bytes], Places]:
        """Prepared when it is needed: who only hands it to another process needs none."""
        return search_for(self._texts)

    def _pattern(self, form: int) -> re.Pattern[bytes]:
        """Few are ever needed, and they take their time."""
        if form not in self._patterns:
            self._patterns[form] = re.compile(self._forms[form][1].pattern)
        return self._patterns[form]


def _around(
    data: bytes, pattern: re.Pattern[bytes], first: int, start: int, end: int, longest: int, name: str
) -> Iterator[_Match]:
    """The matches that begin from `first` to `start` and hold all of what stands between `start` and `end`."""
    at, limit = max(first, 0), start + longest
    while (match := pattern.search(data, at, limit)) is not None and match.start() <= start:
        if match.end() >= end:
            yield _Match(match.start(), match.end(), name)
        at = match.start() + 1


@functools.lru_cache(maxsize=4)
def _again(values: tuple[tuple[str, str | tuple[str, ...]], ...], step_bytes: int) -> Redactor:
    """In another process, where the same ones come by again and again."""
    return Redactor(dict(values), step_bytes)


def _size(value: str) -> int:
    return len(value.encode("utf-8", "surrogateescape"))
