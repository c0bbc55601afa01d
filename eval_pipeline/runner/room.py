"""Whether an experiment's budgets leave room for its next cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from eval_pipeline.domain.budget import attempt_usd
from eval_pipeline.domain.cell import CellState
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.sandbox_prices import SandboxRates
from eval_pipeline.specs.lock import Locked
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records


@dataclass(frozen=True, kw_only=True)
class NoRoom:
    """said: why no cell can begin. waits_for: the same in a few words. remedy: what to raise. in_file: it stands in the experiment's file."""

    said: str
    waits_for: str
    remedy: str
    in_file: bool = True


def refuse_hopeless(locked: Locked, run: RunLock, open_cells: Sequence[CellKey]) -> None:
    """Raises SpecError for a cell whose own limit is above the whole budget: it could never begin, nor could what follows it."""
    budget = locked.spec.budget
    if budget is None or budget.cost_usd is None:
        return
    limits = {key.case_name: run.case(key.case_name).limits.cost_usd for key in open_cells}
    above = {case: usd for case, usd in limits.items() if usd is not None and usd > budget.cost_usd}
    if not above:
        return
    case, most = max(above.items(), key=lambda item: item[1])
    which = "no cell can start" if len(above) == len(limits) else f"no cell of {', '.join(list(above)[:3])} can start"
    raise SpecError(
        f"budget: a cell of {case} reserves {most:g} USD (limits.cost_usd), the budget is {budget.cost_usd:g}: {which}",
        where=locked.budget_at,
        hint=f"raise budget.cost_usd to at least {most:g}, or give the cells a smaller limits.cost_usd",
    )


def refuse_unheld(locked: Locked, run: RunLock, open_cells: Sequence[CellKey], monthly_cap_usd: Decimal | None) -> None:
    """Raises SpecError where the month's cap would hold nothing for a cell that may call models: all of them could begin at once.

    An app that reaches nobody calls none.
    """
    if monthly_cap_usd is None:
        return
    calling = {arm.name for arm in run.arms if arm.manifest.egress or arm.manifest.models.gateway}
    cases = dict.fromkeys(key.case_name for key in open_cells if key.arm in calling)
    unheld = [case for case in cases if run.case(case).limits.cost_usd is None]
    if not unheld:
        return
    which = ", ".join(unheld[:3]) + (f" and {len(unheld) - 3} more" if len(unheld) > 3 else "")
    raise SpecError(
        f"this installation's month is capped at {usd(monthly_cap_usd)} USD, and nothing says what a cell of {which} may cost",
        where=locked.budget_at,
        hint="write `limits: {cost_usd: 0.5}` into this file for all its cases, into app.yaml for all experiments, or into each case",
    )


def no_room(records: Records, row: ExperimentRow, rates: SandboxRates | None) -> NoRoom | None:
    """Why its next open cell can't begin; None when it can, as far as budgets go, or when none is open. rates: None: not known."""
    open_keys = [CellKey.parse(key) for key in records.views.keys(row.id, [CellState.OPEN])]
    if not open_keys:
        return None
    if row.budget_cells is not None and row.begun_cells >= row.budget_cells:
        said = f"{row.begun_cells} cells were begun, and its budget is {row.budget_cells}"
        return NoRoom(said=said, waits_for="the budget (of cells)", remedy=f"raise budget.cells above {row.budget_cells}")
    if row.budget_wall_s is not None and (worked_s := records.spending.worked_s(row.id)) >= row.budget_wall_s:
        said = f"it was worked on for {worked_s:.0f} s, and its budget is {row.budget_wall_s:.0f} s"
        return NoRoom(said=said, waits_for="the budget (of time)", remedy=f"raise budget.wall_s above {worked_s:.0f}")
    each = reservations(records, row.run, row.budget_usd, open_keys, row.id, rates)
    return money_room(row.budget_usd, row.committed_usd, each) or _month_room(records, each[0])


def money_room(budget_usd: Decimal | None, committed_usd: Decimal, each: Sequence[Decimal]) -> NoRoom | None:
    """each: what the open cells will reserve, in their order."""
    if budget_usd is None or committed_usd + each[0] <= budget_usd:
        return None
    left = max(Decimal(0), budget_usd - committed_usd)
    return NoRoom(
        said=f"the next cell must reserve {usd(each[0])} USD, and {usd(left)} of {usd(budget_usd)} are left",
        waits_for=f"the budget (needs {usd(each[0])}, {usd(left)} left)",
        remedy=f"raise budget.cost_usd to {usd(committed_usd + each[0])} at least; "
        f"{usd(committed_usd + sum(each))} hold all {len(each)} open cells at their limits",
    )


def _month_room(records: Records, needed: Decimal) -> NoRoom | None:
    month = records.spending.month()
    if month.monthly_cap_usd is None or month.committed_usd + needed <= month.monthly_cap_usd:
        return None
    left = max(Decimal(0), month.monthly_cap_usd - month.committed_usd)
    of = f"{usd(left)} of {usd(month.monthly_cap_usd)} USD of this installation's month are left"
    return NoRoom(
        said=f"the next cell must reserve {usd(needed)} USD, and {of}",
        waits_for=f"the month's cap (needs {usd(needed)}, {usd(left)} left)",
        remedy=f"raise it: `evals budget --monthly-cap {usd(month.committed_usd + needed)}` or more",
        in_file=False,
    )


def reservations(
    records: Records,
    run: RunLock,
    budget_usd: Decimal | None,
    keys: Sequence[CellKey],
    experiment: str,
    rates: SandboxRates | None,
) -> list[Decimal]:
    """What each will hold; where sandboxes cost what earlier ones of its arm were charged, or else `rates`."""
    per_s: dict[str, Decimal | None] = {}
    for name in {key.arm for key in keys}:
        resources = run.arm(name).manifest.resources
        listed = None if rates is None else rates.usd_per_s(resources.cpu, resources.memory_mib)
        charged = records.views.sandbox_usd_per_s(experiment, name)
        per_s[name] = listed if charged is None else charged
    n_cells = len(run.cell_keys())
    return [attempt_usd(run.case(key.case_name).limits, budget_usd, n_cells, per_s[key.arm]) for key in keys]


def usd(amount: Decimal | int) -> str:
    return f"{Decimal(amount).normalize():f}"
