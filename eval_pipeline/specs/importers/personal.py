"""Personal details in a text, replaced by numbered marks: the same detail always by the same mark.

Found by their form: e-mail addresses, telephone numbers, IBANs, payment cards and IP addresses. A name has no form: it is
replaced when it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_CARD = re.compile(r"(?<![\d.,-])\d(?:[ -]?\d){12,18}(?![\d-])")
_IP = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)")
# With a country's code; with an area's code that begins with 0; as they are written in North America.
_PHONE = re.compile(
    r"(?<![\w.,])(?<!\d )(?:"
    r"\+[1-9](?:[ ()./-]{0,3}\d){6,14}"
    r"|00[1-9](?:[ ()/-]{0,3}\d){7,14}"
    r"|\(?0\d{2,5}\)?[ /-]{1,3}\d(?:[ /-]?\d){4,11}"
    r"|\(\d{3}\) ?\d{3}[ .-]\d{4}|\d{3}[.-]\d{3}[.-]\d{4}"
    r")(?!\w)"
)


@dataclass(frozen=True)
class Replaced:
    """kind: email, iban, card, phone, ip or name. n: how often it stood there. What it was is not told."""

    kind: str
    replacement: str
    n: int


def _is_iban(text: str) -> bool:
    letters = text.replace(" ", "")
    return int("".join(str(int(c, 36)) for c in letters[4:] + letters[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    digits = [int(c) for c in text if c.isdigit()][::-1]
    return sum(digits[::2] + [sum(divmod(2 * d, 10)) for d in digits[1::2]]) % 10 == 0


def _is_ip(text: str) -> bool:
    """Clauses and versions have four numbers, too, and small ones."""
    return max(map(int, text.split("."))) > 31


def _always(_: str) -> bool:
    return True


_FORMS: tuple[tuple[str, re.Pattern[str], Callable[[str], bool]], ...] = (
    ("email", _EMAIL, _always),
    ("iban", _IBAN, _is_iban),
    ("card", _CARD, _is_card),
    ("phone", _PHONE, _always),
    ("ip", _IP, _is_ip),
)


class Personal:
    """Replaces in one text after the other, with one numbering."""

    def __init__(self, names: Iterable[str] = (), replacements: Mapping[str, str] | None = None) -> None:
        """names: replaced by marks. replacements: name to what stands in its place. Whole words, in any case of letters."""
        given = {name: None for name in names if name.strip()} | dict(replacements or {})
        self._given = {name.strip().casefold(): other for name, other in given.items()}
        words = "|".join(re.escape(name) for name in sorted(self._given, key=len, reverse=True))
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) if words else None
        self._marks: dict[tuple[str, str], str] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def __call__(self, text: str) -> str:
        for kind, form, is_one in _FORMS:
            text = form.sub(lambda found, kind=kind, is_one=is_one: self._replace(kind, found[0], is_one), text)
        if self._names is not None:
            text = self._names.sub(lambda found: self._replace("name", found[0], _always), text)
        return text

    @property
    def replaced(self) -> list[Replaced]:
        return [Replaced(kind, mark, self._counts[kind, key]) for (kind, key), mark in self._marks.items()]

    def _replace(self, kind: str, text: str, is_one: Callable[[str], bool]) -> str:
        if not is_one(text):
            return text
        at = (kind, text.casefold() if kind in ("email", "name") else re.sub(r"[ ()./-]", "", text) if kind != "ip" else text)
        if at not in self._marks:
            number = 1 + sum(other == kind for other, _ in self._marks)
            self._marks[at] = (self._given.get(at[1]) if kind == "name" else None) or f"[{kind} {number}]"
        self._counts[at] = self._counts.get(at, 0) + 1
        return self._marks[at]
