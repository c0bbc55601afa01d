"""Experiments whose every cell is known: drawn once, as a table of pandas, and turned into what the ledger would give."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from support.locks import criterion, locked_arm, locked_case, run_lock, score_lock
from support.tables import attempt, cell_view, experiment_row, verdicts_of

from eval_pipeline.analysis.tables import ScoredCell, scored_table
from eval_pipeline.domain.case import Limits
from eval_pipeline.store.ledger import ExperimentRow

Frame = Any
"""A pandas.DataFrame, whose operators no type checker follows."""

LIMIT_S = 60.0
RUBRIC = (criterion("a", 1, group="facts"), criterion("b", 3, group="reasons"))
PASS_AT = 0.7
PRICE = {
    "provider": "p", "model": "m", "effective_from": "2020-01-01", "input_uncached": "2", "cache_read": "0.5", "cache_write_5m": "3",
    "cache_write_1h": "4", "output": "10", "source": "a test",
}  # fmt: skip


def drawn(n_cases: int, trials: int, arms: dict[str, float], n_worlds: int, seed: int = 1) -> Frame:
    """arms: name -> chance of each criterion. One row a cell; a, b: 1 or 0."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for n in range(n_cases):
        ease, size = rng.normal(0, 0.1), rng.lognormal(0, 0.5)
        for arm, chance in arms.items():
            for trial in range(trials):
                met = rng.random(2) < min(max(chance + ease, 0.02), 0.98)
                tokens = rng.integers(1000, 9000, 3) * size
                row = {"case": f"c{n}", "world": f"w{n % n_worlds}", "arm": arm, "trial": trial, "outcome": "ok"}
                row |= {"a": float(met[0]), "b": float(met[1]), "latency_s": float(np.round(rng.lognormal(2, 0.6), 3))}
                row |= {"sent": int(tokens[0]), "cached": int(tokens[1]), "output": int(tokens[2])}
                rows.append(row)
    return pd.DataFrame(rows)


def told(truth: Frame, baseline: str | None = None, **more: Any) -> tuple[ExperimentRow, list[ScoredCell]]:
    """more: of the run lock. A row without verdicts (NaN) was not judged; outcome None is a cell that is still open."""
    first = truth.drop_duplicates("case")
    limits = Limits(wall_s=LIMIT_S)
    cases = [locked_case(str(case), str(world), limits=limits) for case, world in zip(first["case"], first["world"], strict=True)]
    arms = [locked_arm(arm, config={"arm": arm}) for arm in dict.fromkeys(map(str, truth["arm"]))]
    run = run_lock(cases=cases, arms=arms, trials=int(truth["trial"].max()) + 1, **more)
    score = score_lock(run, RUBRIC, pass_at=PASS_AT, prices=[PRICE])
    rows = {(row["case"], row["arm"], row["trial"]): row for row in truth.to_dict("records")}
    views, verdicts = list[Any](), dict[str, Any]()
    for n, key in enumerate(run.cell_keys()):
        row, bundle = rows[key.case, key.arm, key.trial], f"bundle-{n}"
        if row["outcome"] is None:
            views.append(cell_view(key))
            continue
        usage = {"model": "m", "input_uncached": row["sent"], "cache_read": row["cached"], "output": row["output"]}
        made = attempt(outcome=row["outcome"], bundle=bundle, latency_s=row["latency_s"], usage=[usage], cost_usd=Decimal(9))
        views.append(cell_view(key, made, state="failed" if row["outcome"] == "infra_failure" else None))
        said = {name: float(row[name]) for name in "ab" if not np.isnan(row[name])}
        verdicts |= verdicts_of(score, run, key, bundle, said)
    experiment = experiment_row(run, score, baseline)
    return experiment, scored_table(experiment, views, verdicts)
