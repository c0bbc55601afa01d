"""Scored tables made by hand: what each cell said, cost and took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row, verdicts_of

from eval_pipeline.analysis.tables import ScoredCell, scored_table
from eval_pipeline.domain.case import Limits
from eval_pipeline.store.ledger import ExperimentRow

RUBRIC = (criterion("a", 1), criterion("b", 3))
"""Scores: 0, 0.25, 0.75 and 1."""


@dataclass(frozen=True, kw_only=True)
class Did:
    """a, b: whether these criteria were met; None: no verdict could be had."""

    a: float | None = None
    b: float | None = None
    outcome: str = "ok"
    cost_usd: float | None = None
    latency_s: float | None = None
    error_class: str | None = None


def tabled(
    did: Mapping[str, Did],
    worlds: Mapping[str, str] | None = None,
    name: str = "x",
    case: Mapping[str, Any] | None = None,
    **more: Any,
) -> tuple[ExperimentRow, list[ScoredCell]]:
    """did: `case/arm/trial` -> what became of it; other cells stay open. worlds: of the cases, else w. more: of the score lock."""
    keys = [key.split("/") for key in did]
    limits = {"limits": Limits(wall_s=60.0)} | dict(case or {})
    cases = [locked_case(one, (worlds or {}).get(one, "w"), **limits) for one in dict.fromkeys(key[0] for key in keys)]
    arms = [locked_arm(one, config={"arm": one}) for one in dict.fromkeys(key[1] for key in keys)]
    run = run_lock(name, cases=cases, arms=arms, trials=1 + max(int(key[2]) for key in keys))
    score = score_lock(run, more.pop("criteria", RUBRIC), **more)
    views, verdicts = list[Any](), dict[str, Any]()
    for number, key in enumerate(run.cell_keys()):
        one = did.get(f"{key.case}/{key.arm}/{key.trial}")
        if one is None:
            views.append(cell_view(key))
            continue
        cost = None if one.cost_usd is None else Decimal(str(one.cost_usd))
        made = attempt(outcome=one.outcome, cost_usd=cost, latency_s=one.latency_s, error_class=one.error_class)
        made = replace(made, id=number + 1, bundle=f"bundle-{name}-{number}" if one.outcome == "ok" else None)
        views.append(cell_view(key, made, state="failed" if one.outcome == "infra_failure" else None))
        if made.bundle is not None:
            verdicts |= verdicts_of(score, run, key, made.bundle, {"a": one.a, "b": one.b})
    experiment = experiment_row(run, score)
    return experiment, scored_table(experiment, views, verdicts)


def one_a_world(names: Sequence[str]) -> dict[str, str]:
    return {name: f"w-{name}" for name in names}
