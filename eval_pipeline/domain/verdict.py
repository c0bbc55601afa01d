"""An answer to a criterion, as it is kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VerdictRow:
    """status: ok, failed, or of a judge also abstained. quotes: of a judge, what it quoted of the work."""

    request_digest: str
    judge_version: str
    vote: int
    bundle: str
    criterion: str
    verdict: float | None
    status: str
    reason: str | None
    quotes: tuple[str, ...] = ()
