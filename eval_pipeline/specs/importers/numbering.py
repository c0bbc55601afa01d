"""The markers of an outline: 1, a, A, iv, IV, 1.2, with a dot, a bracket or nothing after them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ROMAN = re.compile(r"(?=.)(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
_DIGITS = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_LABEL = r"(?P<label>[0-9]{1,3}(?:\.[0-9]{1,3})*|[A-Za-z]|[ivxlc]{2,7}|[IVXLC]{2,7})"
_CLOSED = re.compile(rf"\(?{_LABEL}[.)]+(?:\s+(?P<rest>.*))?", re.DOTALL)
_TIGHT = re.compile(r"(?P<label>[0-9]{1,3}|[a-z])[.)]+(?P<rest>[A-Z].*)", re.DOTALL)
_BARE = re.compile(rf"{_LABEL}\s+(?P<rest>.*)", re.DOTALL)

Readings = dict[str, int]


@dataclass(frozen=True)
class Marker:
    """closed: a dot or bracket follows the label. readings: kind of list -> place in it; `i` is roman 1 and letter 9."""

    label: str
    closed: bool
    readings: Readings

    def follows(self, other: Marker) -> bool:
        return any(other.readings.get(kind) == place - 1 for kind, place in self.readings.items())

    def shares_kind(self, other: Marker) -> bool:
        return bool(self.readings.keys() & other.readings.keys())

    def first_kinds(self) -> set[str]:
        return {kind for kind, place in self.readings.items() if place == 1}

    def as_sibling_of(self, other: Marker) -> Marker:
        """The same marker without the readings that the list it stands in rules out."""
        shared = {kind: place for kind, place in self.readings.items() if kind in other.readings}
        return Marker(self.label, self.closed, shared or self.readings)


def split_marker(text: str) -> tuple[Marker, str] | None:
    """The marker at the beginning of `text` and what follows it; None when there is none."""
    for pattern, closed in ((_CLOSED, True), (_TIGHT, True), (_BARE, False)):
        match = pattern.fullmatch(text)
        readings = _readings(match["label"]) if match else {}
        if match and readings:
            return Marker(match["label"], closed, readings), (match["rest"] or "").strip()
    return None


def _readings(label: str) -> Readings:
    if label[0].isdigit():
        prefix, _, last = label.rpartition(".")
        return {f"number {prefix}": int(last)}
    readings: Readings = {}
    case = "lower" if label.islower() else "upper"
    if len(label) == 1:
        readings[f"{case} letter"] = ord(label.lower()) - ord("a") + 1
    if _ROMAN.fullmatch(label.lower()):
        readings[f"{case} roman"] = _roman(label.lower())
    return readings


def _roman(label: str) -> int:
    values = [_DIGITS[letter] for letter in label]
    return sum(-value if value < following else value for value, following in zip(values, [*values[1:], 0], strict=True))
