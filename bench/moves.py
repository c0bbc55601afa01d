"""Ratios of one run held against those of an earlier one. Pure: ratios are of two measures of the same run, so machines compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["within", "worse", "better", "missing", "new"]
FAILING: frozenset[Verdict] = frozenset({"worse", "missing"})


@dataclass(frozen=True, kw_only=True)
class Move:
    """before, now: the ratio; None where there was none. by: now / before."""

    name: str
    before: float | None
    now: float | None
    by: float | None
    verdict: Verdict


def moves(before: Mapping[str, float], now: Mapping[str, float], factor: float) -> list[Move]:
    """factor: more than so many times as much is `worse`, less than its inverse `better`. Raises ValueError unless it is above 1 and
    every ratio above 0."""
    if factor <= 1:
        raise ValueError(f"the factor is {factor}; it has to be above 1")
    if bad := [name for ratios in (before, now) for name, value in ratios.items() if not value > 0]:
        raise ValueError(f"not above 0: {', '.join(sorted(bad))}")
    return [_move(name, before.get(name), now.get(name), factor) for name in dict.fromkeys([*before, *now])]


def _move(name: str, before: float | None, now: float | None, factor: float) -> Move:
    if before is None or now is None:
        return Move(name=name, before=before, now=now, by=None, verdict="new" if before is None else "missing")
    by = now / before
    return Move(
        name=name, before=before, now=now, by=by, verdict="worse" if by > factor else "better" if by * factor < 1 else "within"
    )


def table(found: Sequence[Move]) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = [("ratio", "before", "now", "moved by", "")]
    rows += [
        (one.name, shown(one.before), shown(one.now), "-" if one.by is None else f"{(one.by - 1) * 100:+.0f} %", one.verdict)
        for one in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)
