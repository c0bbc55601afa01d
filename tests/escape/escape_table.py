"""What was tried, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

PLATFORM = "the platform's own"


class Verdict(StrEnum):
    """NOT_SHOWN: what held it is none of ours, or nothing shows that it could have succeeded; it counts for nothing."""

    REFUSED = "refused"
    OUT = "OUT"
    NOT_SHOWN = "not shown here"


@dataclass(frozen=True)
class Row:
    """ended: in the words of who tried. evidence: what was seen from outside, and how the same went where nothing held it."""

    what: str
    backend: str
    verdict: Verdict
    ended: str
    evidence: str = ""


def table(rows: Iterable[Row]) -> str:
    lines = ["| attempt | backend | how it ended | evidence |", "|---|---|---|---|"]
    for row in rows:
        ended = row.ended if row.verdict is Verdict.REFUSED else f"{row.verdict}: {row.ended}"
        lines.append("| " + " | ".join(_cell(text) for text in (row.what, row.backend, ended, row.evidence)) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown.replace("|", "\\|")[:160]


def last_line(rows: Iterable[Row], backends: Iterable[str]) -> str:
    verdicts = [row.verdict for row in rows]
    out = verdicts.count(Verdict.OUT)
    return f"escape tried={verdicts.count(Verdict.REFUSED) + out} out={out} backends={','.join(backends)}"
