"""What the verbs of a research would do, said and not done. Nothing of the holdout but how many cases it has."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from eval_pipeline.cli.experiment_dry import show_dry
from eval_pipeline.cli.output import counted
from eval_pipeline.settings import Settings

if TYPE_CHECKING:
    from eval_pipeline.domain.lock import LockedArm
    from eval_pipeline.store.records import Records
    from eval_pipeline.store.researches import NewResearch


def dry_open(
    settings: Settings, records: Records, goal: str, as_json: bool, *, fresh: bool, drives: bool, asks_nobody: bool
) -> int:
    """drives: whether it would also be worked on. asks_nobody: --yes."""
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.cli.research_open import to_confirm
    from eval_pipeline.host import login
    from eval_pipeline.research.opening import begin, notes_on
    from eval_pipeline.specs.library import Library
    from eval_pipeline.vault.delivery import Secrets

    found = begin(Library(settings.worlds_dir), goal, records, settings.user or login(), fresh=fresh)
    research = found.research
    require_isolation(settings, found.goal.backend)
    Secrets(settings, records).require(research.run.arms[0])
    asks = None if asks_nobody else to_confirm(records, research.id, found.goal.budget.cost_usd)
    data = {
        "research": research.id,
        "resumed": found.resumed,
        "drives": drives,
        **_step(records, research),
        "n_holdout": len(research.split["holdout"]),
        "budget": found.goal.budget.model_dump(),
        "must_confirm": None if asks is None else str(asks),
        "notes": list(notes_on(research)),
        "dry_run": True,
    }
    verb = "go on" if found.resumed else "be locked" + (" and worked on" if drives else "; nothing runs before `next`")
    said = ", ".join(f"{key} {value:g}" for key, value in data["budget"].items() if value is not None)
    lines = [
        f"{research.id} would {verb}, within its budget: {said}",
        _step_line(data),
        *(f"note: {one}" for one in data["notes"]),
    ]
    if asks is not None:
        lines.append(f"it would be refused without --yes: {asks}")
    show_dry(data, lines, as_json)
    return 0


def dry_submit(settings: Settings, records: Records, name: str, answer: dict[str, Any], as_json: bool) -> int:
    """Raises SpecError for what would be refused."""
    from eval_pipeline.cli.launch import require_isolation
    from eval_pipeline.domain.lock import LockedArm
    from eval_pipeline.research.driver import driver
    from eval_pipeline.research.lab import bounds_of

    row = records.researches.find(name)
    require_isolation(settings, row.run.backend)
    with driver(settings, records, row.id, _nothing, _nothing) as held:
        due, found = held.considered(answer, resumes=True)
        spent, left = records.researches.spent(row.id), bounds_of(held.goal)
    arm = LockedArm.model_validate(found.arm, strict=False)
    first = None if due.do == "propose" else due.do
    data = {
        "research": row.id,
        "submitted": due.step if first is None else None,
        "first": first,
        "config": arm.config,
        "commit": arm.commit,
        **_step(records, row, arm),
        "spent": {"cost_usd": spent.committed_usd, "cells": spent.begun_cells},
        "budget": asdict(left),
        "dry_run": True,
    }
    lines = [f"{row.id} would take this candidate", _step_line(data)]
    if first is not None:
        lines.append(f"what is under way ({first}) would be brought to its end first")
    show_dry(data, lines, as_json)
    return 0


def dry_stop(records: Records, research: str, as_json: bool) -> int:
    cancelled = at_work(records, research)
    shown = [one for one in cancelled if not one.rpartition("-")[0].endswith("-holdout")]
    data = {"research": research, "n_cancelled": len(cancelled), "cancels": shown, "dry_run": True}
    line = f"{research} would be stopped, and {counted(len(cancelled), 'experiment', 'experiments')} of it cancelled"
    show_dry(data, [line, *(f"  {one}" for one in shown)], as_json)
    return 0


def at_work(records: Records, research: str) -> list[str]:
    """Its experiments that an engine works on."""
    found = (records.ledger.find(name) for name in records.researches.runs(research))
    return [row.id for row in found if row is not None and records.leases.engines_of(row.id)]


def _step(records: Records, research: NewResearch, arm: LockedArm | None = None) -> dict[str, Any]:
    """What one candidate takes on dev, or the baseline. What it may cost is by the cases' own limits."""
    from eval_pipeline.runner.planning import costs

    dev, run = set(research.split["dev"]), research.run
    if arm is not None:
        run = run.model_copy(update={"arms": (arm,)})
    keys = [key for key in run.cell_keys() if key.case_name in dev]
    cost = costs(run, keys, records, None)
    return {"n_dev": len(dev), "n_cells_a_step": len(keys), "step_max_cost_usd": cost.max_cost_usd, "models": asdict(cost.models)}


def _step_line(data: dict[str, Any]) -> str:
    most = data["step_max_cost_usd"]
    usd = "at an unknown cost (cases without limits.cost_usd)" if most is None else f"for at most {most:.4f} USD of models"
    return f"a candidate runs {counted(data['n_cells_a_step'], 'cell', 'cells')} on dev, {usd}; the holdout is asked only about what is better there"


def _nothing(_: object) -> None:
    return None
