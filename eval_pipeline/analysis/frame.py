"""The scored table as plain rows and as a DataFrame of fixed types: one row a cell, null where nothing could be had.

COLUMNS is the contract: names, their order and types are the same whatever the cells are, also for none. pandas is loaded when a
frame is made, not before.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.usage import Usage
from eval_pipeline.scoring.label_file import no_formula
from eval_pipeline.store.cell_views import AttemptView

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["string", "Int64", "Float64", "boolean", "datetime64[us, UTC]"]
Format = Literal["parquet", "csv", "json"]

COLUMNS: dict[str, Kind] = {
    # what it is
    "cell": "string", "experiment": "string", "world": "string", "case": "string", "arm": "string", "trial": "Int64",
    "app": "string", "backend": "string", "commit": "string", "tree": "string", "config": "string", "snapshot": "string",
    "cell_digest": "string", "run_lock": "string", "score_lock": "string", "judge_version": "string", "price_version": "string",
    "scoring_version": "Int64",
    # how it ended
    "state": "string", "outcome": "string", "failure": "string", "error_class": "string", "error": "string", "attempts": "Int64",
    "n_secrets_replaced": "Int64", "n_quarantined": "Int64",
    "n_discarded": "Int64", "adopted_from": "string", "started_at": "datetime64[us, UTC]", "ended_at": "datetime64[us, UTC]",
    # what it is worth
    "score": "Float64", "score_lower": "Float64", "score_upper": "Float64", "passed": "boolean", "all_passed": "boolean",
    "n_criteria": "Int64", "n_satisfied": "Int64", "n_unsatisfied": "Int64", "n_not_judged": "Int64", "n_judge_failed": "Int64",
    "n_by_hand": "Int64",
    # what it took
    "input_tokens": "Int64", "input_uncached": "Int64", "cache_read": "Int64", "cache_write_5m": "Int64", "cache_write_1h": "Int64",
    "output_tokens": "Int64", "reasoning_tokens": "Int64", "model_calls": "Int64", "usage_source": "string", "cost_usd": "Float64",
    "cold_cost_usd": "Float64", "cost_over_usd": "Float64", "overhead_usd": "Float64", "n_overhead_unknown": "Int64",
    "judge_cost_usd": "Float64", "sandbox_cost_usd": "Float64", "sandbox_s": "Float64", "sandbox_spent_usd": "Float64",
    "sandbox_spent_s": "Float64", "n_sandbox_unknown": "Int64", "latency_s": "Float64", "latency_censored": "boolean",
    # where its evidence is
    "bundle": "string",
}  # fmt: skip
"""Money in US dollars. usage and cost: of the attempt that counts; overhead: of the others. started_at, ended_at: of its agent and attempt."""

_OURS = (
    "attempts", "n_secrets_replaced", "n_quarantined", "n_discarded", "n_criteria", "n_satisfied", "n_unsatisfied", "n_not_judged",
    "n_judge_failed", "n_by_hand", "overhead_usd", "n_overhead_unknown", "sandbox_spent_usd", "sandbox_spent_s", "n_sandbox_unknown",
    "state",
)  # fmt: skip

_AT_ONCE = 1000

_TYPES = {"string": "string", "Int64": "int", "Float64": "float", "boolean": "bool", "datetime64[us, UTC]": "datetime"}


def column_types() -> dict[str, str]:
    """As Dagster names them."""
    return {name: _TYPES[kind] for name, kind in COLUMNS.items()}


def scored_frame(cells: Iterable[ScoredCell]) -> pd.DataFrame:
    return frame_of(flat_row(cell) for cell in cells)


def frame_of(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """rows: values by column, as `flat_row` gives them; a column that a row lacks is null there. Raises ValueError for other columns."""
    import pandas as pd

    values: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for row in rows:
        if unknown := sorted(row.keys() - COLUMNS.keys()):
            raise ValueError(f"not columns of the scored table: {', '.join(unknown)}")
        for name, column in values.items():
            column.append(row.get(name))
    return pd.DataFrame({name: pd.array(values.pop(name), dtype=kind) for name, kind in COLUMNS.items()})


def flat_row(cell: ScoredCell) -> dict[str, Any]:
    """The row as plain values: every column. Of an imported cell what only we can know is None, and what its files do not tell."""
    row = _flat_row(cell)
    return row | dict.fromkeys([*_OURS, *cell.untold]) if cell.key.imported else row


def _flat_row(cell: ScoredCell) -> dict[str, Any]:
    key, origin, counted = cell.key, cell.origin, cell.counted
    return {
        "cell": str(key),
        "experiment": key.experiment,
        "world": key.world or None,
        "case": key.case_name,
        "arm": key.arm,
        "trial": key.trial,
        "app": origin.app,
        "backend": origin.backend,
        "commit": origin.commit,
        "tree": origin.tree,
        "config": origin.config,
        "snapshot": origin.snapshot,
        "cell_digest": cell.view.cell_digest,
        "run_lock": origin.run_lock,
        "score_lock": origin.score_lock,
        "judge_version": origin.judge_version,
        "price_version": origin.price_version,
        "scoring_version": origin.scoring_version,
        **_ending(cell, counted),
        **_worth(cell),
        **_tokens(cell.usages if cell.usages or cell.usage_source == "measured" else None),
        **_money(cell),
        "latency_s": cell.latency_s,
        "latency_censored": cell.censored,
        "bundle": counted.bundle if counted else None,
    }


def _ending(cell: ScoredCell, counted: AttemptView | None) -> dict[str, Any]:
    return {
        "state": cell.state,
        "outcome": cell.view.outcome,
        "failure": cell.failure,
        "error_class": cell.error_class,
        "error": cell.error,
        "attempts": len(cell.view.attempts),
        "n_secrets_replaced": cell.view.n_secrets_replaced,
        "n_quarantined": cell.view.n_quarantined,
        "n_discarded": sum(attempt.discarded is not None for attempt in cell.view.attempts),
        "adopted_from": cell.view.adopted_from,
        "started_at": counted.agent_started_at if counted else None,
        "ended_at": counted.ended_at if counted else None,
    }


def _worth(cell: ScoredCell) -> dict[str, Any]:
    return {
        "score": cell.score,
        "score_lower": cell.lower,
        "score_upper": cell.upper,
        "passed": cell.passed,
        "all_passed": cell.all_passed,
        "n_criteria": cell.n_criteria,
        "n_satisfied": cell.n_satisfied,
        "n_unsatisfied": cell.n_unsatisfied,
        "n_not_judged": cell.n_not_judged,
        "n_judge_failed": cell.n_judge_failed,
        "n_by_hand": cell.n_by_hand,
    }


def _tokens(usages: Sequence[Usage] | None) -> dict[str, Any]:
    """None: nobody told."""
    if usages is None:
        return {}
    classes = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h")
    sums = {name: sum(getattr(usage, name) for usage in usages) for name in classes}
    return {
        **sums,
        "input_tokens": sum(sums.values()),
        "output_tokens": sum(usage.output for usage in usages),
        "reasoning_tokens": sum(usage.reasoning for usage in usages),
        "model_calls": sum(usage.calls for usage in usages) if all(usage.calls for usage in usages) else None,
    }


def _money(cell: ScoredCell) -> dict[str, Any]:
    return {
        "usage_source": cell.usage_source,
        "cost_usd": _float(cell.cost_usd),
        "cold_cost_usd": _float(cell.cold_cost_usd),
        "cost_over_usd": _float(cell.cost_over_usd),
        "overhead_usd": float(cell.overhead_usd),
        "n_overhead_unknown": cell.n_overhead_unknown,
        "judge_cost_usd": _float(cell.judge_cost_usd),
        "sandbox_cost_usd": _float(cell.sandbox_cost_usd),
        "sandbox_s": cell.sandbox_s,
        "sandbox_spent_usd": float(cell.sandbox_spent_usd),
        "sandbox_spent_s": cell.sandbox_spent_s,
        "n_sandbox_unknown": cell.n_sandbox_unknown,
    }


def _float(money: Decimal | None) -> float | None:
    return None if money is None else float(money)


def encoded(frame: pd.DataFrame, form: Format) -> bytes:
    """The table in a file's bytes. parquet: with Arrow's own types; csv: null is empty, and text that strangers may have written is no formula; json: a list of objects, times in ISO 8601."""
    if form == "parquet":
        target = io.BytesIO()
        frame.to_parquet(target, engine="pyarrow", index=False)
        return target.getvalue()
    if form == "csv":
        return b"".join(
            _csv(frame.iloc[start : start + _AT_ONCE], header=start == 0) for start in range(0, len(frame) or 1, _AT_ONCE)
        )
    text = frame.to_json(orient="records", date_format="iso", date_unit="us", force_ascii=False, double_precision=15)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def _csv(frame: pd.DataFrame, *, header: bool) -> bytes:
    texts = frame.select_dtypes("string")
    safe = frame.assign(**{str(name): texts[name].map(no_formula, na_action="ignore") for name in texts})
    return safe.to_csv(index=False, header=header).encode("utf-8", "backslashreplace")
