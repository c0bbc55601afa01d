"""Whether a head may pass: non-inferior to its base by a margin that was declared before the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from eval_pipeline.analysis.compare import Comparison
from eval_pipeline.analysis.stats import non_inferiority

Decision = Literal["non_inferior", "not_shown", "undecided", "identical"]
_MOST_WORLDS = 2000


@dataclass(frozen=True, kw_only=True)
class Revision:
    """commit: None for the working tree."""

    ref: str
    commit: str | None
    tree: str


@dataclass(frozen=True, kw_only=True)
class Gate:
    """decision: non_inferior; not_shown: the test was made, and does not show it; undecided: no test of it counts; identical: the same
    application and configuration at both, so nothing was run. why: of a decision that does not pass.

    experiment and comparison: None where nothing was run.
    """

    base: Revision
    head: Revision
    margin: float
    alpha: float
    decision: Decision
    why: list[str] = field(default_factory=list[str])
    experiment: str | None = None
    comparison: Comparison | None = None

    @property
    def passed(self) -> bool:
        return self.decision in ("non_inferior", "identical")

    def as_data(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def decide(found: Comparison) -> tuple[Decision, list[str]]:
    """A provisional table, and a verdict that can't be had, pass nothing."""
    if found.non_inferiority.non_inferior is False:
        lower = found.non_inferiority.lower
        limit = "" if lower is None else f": head - base may be as low as {lower:+.3f}"
        return "not_shown", [f"that head is worse by less than {found.margin:g} is not shown{limit}", *found.reasons]
    if found.provisional_verdict:
        return "undecided", ["what is missing decides it, were it counted against head", *found.reasons]
    if found.non_inferior is None:
        flags = ", ".join(found.non_inferiority.flags)
        return "undecided", [f"no test could be made{f' ({flags})' if flags else ''}", *found.reasons]
    return ("undecided", found.reasons) if found.reasons else ("non_inferior", [])


def worlds_to_pass(margin: float, alpha: float, span: tuple[float, float]) -> int | None:
    """How many worlds (or cases, each of a world of its own) show the margin where no case differs; None: more than 2000."""
    return next(
        (n for n in range(2, _MOST_WORLDS + 1) if _passes([f"{one}" for one in range(n)], None, margin, alpha, span)), None
    )


def passes_unchanged(world: Mapping[str, str], margin: float, alpha: float, span: tuple[float, float]) -> bool | None:
    """Whether a head that differs in no case would pass; None: no test could be made of these cases. world: of each case."""
    return _passes(list(world), world, margin, alpha, span)


def _passes(
    cases: Sequence[str], world: Mapping[str, str] | None, margin: float, alpha: float, span: tuple[float, float]
) -> bool | None:
    same = dict.fromkeys(cases, 0.0)
    return non_inferiority(same, same, margin, world, alpha, span).non_inferior
