"""A judge's reply: its form, and whether what it quotes stands in the work. What doesn't hold is refused, never read as "not met"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from eval_pipeline.domain.canonical import digest
from eval_pipeline.scoring.check_base import fold, shown
from eval_pipeline.scoring.judge_prompt import Asked

REASON_MAX_CHARS = 2000
_QUOTES_MAX = 100
_LEFT_OUT = re.compile(r"\[\s*(?:\.\.\.|…)\s*\]|\.\.\.|…")
_ALIKE = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "„": '"', "–": "-", "—": "-", "‑": "-", "−": "-"})


class _Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    criterion_id: str


class OnceReply(_Reply):
    evidence: str
    reasoning: str
    verdict: Literal["met", "not_met", "cannot_assess"]


class EachReply(_Reply):
    occurrences: list[str]
    reasoning: str
    verdict: Literal["counted", "cannot_assess"]


@cache
def schema(per_occurrence: bool) -> dict[str, Any]:
    """Nobody may change it."""
    return (EachReply if per_occurrence else OnceReply).model_json_schema()


SCHEMA_DIGEST = digest([schema(False), schema(True)])


class Refused(Exception):
    """The reply can't count; `str()` says why, in words that the judge may be told."""


@dataclass(frozen=True, kw_only=True)
class Vote:
    """verdict: 0, 1 or how many; None: the judge abstained. quotes: what it quoted of the work, to the letter but for blanks."""

    verdict: float | None
    reason: str
    quotes: tuple[str, ...] = ()


class Work:
    """What was shown of it, for quotations to be found in; it is read over when the first is looked for, not again with each reply."""

    def __init__(self, shown: Sequence[str]) -> None:
        self._shown = shown

    @cached_property
    def _texts(self) -> list[str]:
        return [_flat(text) for text in self._shown]

    def holds(self, flat: str) -> bool:
        return any(_stands_in(flat, text) for text in self._texts)


def read_reply(arguments: str, asked: Asked, work: Work) -> Vote:
    """arguments: JSON. Raises Refused."""
    form = EachReply if asked.per_occurrence else OnceReply
    try:
        reply = form.model_validate_json(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Refused(f"it has not the form asked for: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    if reply.criterion_id != asked.criterion:
        raise Refused(f"it is about the criterion {shown(reply.criterion_id)}, not {asked.criterion}")
    reason = reply.reasoning.strip()[:REASON_MAX_CHARS]
    if reply.verdict == "cannot_assess":
        return Vote(verdict=None, reason=reason)
    quotes = _quotes(reply.occurrences if isinstance(reply, EachReply) else [reply.evidence], work)
    if isinstance(reply, EachReply):
        return Vote(verdict=float(len(quotes)), reason=reason, quotes=quotes)
    return Vote(verdict=float(reply.verdict == "met"), reason=reason, quotes=quotes)


def _quotes(given: Sequence[str], work: Work) -> tuple[str, ...]:
    """Each once, without the empty ones. Raises Refused for one that stands nowhere in the work."""
    found: dict[str, str] = {}
    for quote in given:
        flat = _flat(quote)
        if not flat:
            continue
        if not work.holds(flat):
            raise Refused(f"{shown(quote)} is no quotation: it does not stand in the work as it was shown")
        found.setdefault(flat, quote.strip()[:REASON_MAX_CHARS])
    if len(found) > _QUOTES_MAX:
        raise Refused(f"it quotes {len(found)} places; at most {_QUOTES_MAX} are read")
    return tuple(found.values())


def _stands_in(quote: str, text: str) -> bool:
    """Whether its pieces stand in the text one after the other."""
    if quote in text:
        return True
    start = 0
    for piece in filter(None, (piece.strip() for piece in _LEFT_OUT.split(quote))):
        at = text.find(piece, start)
        if at < 0:
            return False
        start = at + len(piece)
    return start > 0


def _flat(text: str) -> str:
    return fold(text.strip().strip("\"'“”„‘’").translate(_ALIKE)).strip()
