"""Before anything is spent: what a run of an experiment's file would do, and its rows in the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from eval_pipeline.domain.cell import CellState
from eval_pipeline.domain.experiment import WORKTREE, Budget
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import RunLock, ScoreLock
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.estimate import ModelEstimate, SandboxEstimate, estimate, estimate_models
from eval_pipeline.runner.models import not_measured
from eval_pipeline.runner.repricing import settle_unpriced
from eval_pipeline.runner.room import money_room, refuse_hopeless, refuse_unheld, reservations
from eval_pipeline.sandbox import modal_plan
from eval_pipeline.scoring.judge_votes import judge_version
from eval_pipeline.scoring.price_library import unpriced_in
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.scoring.sandbox_prices import SandboxRates
from eval_pipeline.specs import git
from eval_pipeline.specs.lock import Locked
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.vault.delivery import Secrets

MAX_CELLS = 100_000


@dataclass(frozen=True, kw_only=True)
class JudgeEstimate:
    """n_calls: at most. cost_usd: of so many, by the mean of `n_measured` earlier calls of this judge; None: it has made none."""

    n_calls: int = 0
    cost_usd: float | None = None
    n_measured: int = 0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Of open cells. max_cost_usd: what they may cost by their own limits, for models; None when one has none."""

    max_cost_usd: float | None
    models: ModelEstimate
    sandboxes: SandboxEstimate


@dataclass(frozen=True, kw_only=True)
class Plan(Costs):
    """run: the lock that would run: the file's own, or the one it resumes. moved: what its refs did since, in words.

    n_done: cells that have a valid result already. adopted: cells that would take the result of another experiment's equal cell, by key.
    open_cells: the keys of those that would run. n_judge_criteria: criteria of the chosen cases that need a judge.
    """

    run: RunLock
    resumes: ExperimentRow | None
    moved: list[str]
    n_cells: int
    n_done: int
    adopted: dict[str, str]
    open_cells: tuple[str, ...]
    n_judge_criteria: int
    judge: JudgeEstimate
    n_cases_with_judge: int
    notes: list[str]

    @property
    def n_open(self) -> int:
        return len(self.open_cells)


def plan(
    locked: Locked, records: Records, secrets: Secrets, *, fresh: bool, reuse: bool = True, rates: SandboxRates | None = None
) -> Plan:
    """reuse: results of other experiments. rates: of the sandboxes; None: they are not known. Raises SpecError for what would make the run useless."""
    for arm in locked.run.arms:
        secrets.require(arm)
    n_cells = len(locked.run.cell_keys())
    if n_cells > MAX_CELLS:
        raise SpecError(
            f"the experiment has {n_cells} cells; at most {MAX_CELLS} are possible",
            hint="fewer trials or arms, or a smaller dataset",
        )
    same = records.ledger.find(locked.run.experiment_id)
    moved_from = None if fresh or same else records.ledger.resumable(locked.run.name, locked.run.source_digest)
    resumes = same or moved_from
    run = resumes.run if resumes else locked.run
    done = set(records.views.keys(resumes.id, [CellState.DONE])) if resumes else set[str]()
    adopted = _adopted(run, records) if reuse else {}
    open_cells = [key for key in run.cell_keys() if str(key) not in done and str(key) not in adopted]
    refuse_hopeless(locked, run, open_cells)
    refuse_unheld(locked, run, open_cells, records.spending.month().monthly_cap_usd)
    cost = costs(run, open_cells, records, rates)
    judged = [case for case in locked.score.cases.values() if any(criterion.judge for criterion in case.rubric.criteria)]
    return Plan(
        run=run,
        resumes=resumes,
        moved=_moves(locked, moved_from) if moved_from else [],
        n_cells=n_cells,
        n_done=len(done),
        adopted=adopted,
        open_cells=tuple(map(str, open_cells)),
        judge=judge_estimate(locked.score, run, resumes, [key for key in run.cell_keys() if str(key) not in done], records),
        n_judge_criteria=sum(criterion.judge for case in judged for criterion in case.rubric.criteria),
        n_cases_with_judge=len(judged),
        max_cost_usd=cost.max_cost_usd,
        models=cost.models,
        sandboxes=cost.sandboxes,
        notes=[*_no_room(locked, run, resumes, open_cells, records, rates), *_notes(locked, len(judged))],
    )


def costs(run: RunLock, open_cells: list[CellKey], records: Records, rates: SandboxRates | None) -> Costs:
    """rates: of the sandboxes; None: they are not known."""
    return Costs(
        max_cost_usd=_max_cost(run, open_cells),
        models=_models(run, open_cells, records),
        sandboxes=estimate(run, open_cells, rates, records.views.mean_sandbox_s(run.app, run.backend)),
    )


def _no_room(
    locked: Locked,
    run: RunLock,
    resumes: ExperimentRow | None,
    open_cells: list[CellKey],
    records: Records,
    rates: SandboxRates | None,
) -> list[str]:
    budget = locked.spec.budget
    if budget is None or budget.cost_usd is None or not open_cells:
        return []
    budget_usd, committed = Decimal(str(budget.cost_usd)), resumes.committed_usd if resumes else Decimal(0)
    found = money_room(budget_usd, committed, reservations(records, run, budget_usd, open_cells, run.experiment_id, rates))
    return [] if found is None else [f"NO CELL CAN BEGIN: {found.said}; {found.remedy} ({locked.budget_at})"]


def _adopted(run: RunLock, records: Records) -> dict[str, str]:
    return records.reuse.planned(run.experiment_id, {str(key): run.cell_digest(key) for key in run.cell_keys()})


def judge_estimate(
    score: ScoreLock, run: RunLock, resumes: ExperimentRow | None, unjudged: Iterable[CellKey], records: Records
) -> JudgeEstimate:
    """unjudged: cells of which nothing is known yet, open or adopted: each criterion is a call. Of those done, what they lack."""
    judge = score.judge
    if judge is None:
        return JudgeEstimate()
    counts = {name: sum(one.judge for one in case.rubric.criteria) for name, case in score.cases.items()}
    n_calls = sum(counts[key.case_name] for key in unjudged) * judge.votes
    if resumes is not None:
        from eval_pipeline.runner.judges import open_cells  # with the client of judges: most plans need none

        n_calls += sum(cell.n_calls for cell in open_cells(records, replace(resumes, score=score), again=False))
    mean = records.judge_calls.mean_cost_usd(judge_version(judge))
    if mean is None or not n_calls:
        return JudgeEstimate(n_calls=n_calls)
    return JudgeEstimate(n_calls=n_calls, cost_usd=float(mean[0] * n_calls), n_measured=mean[1])


def _models(run: RunLock, open_cells: list[CellKey], records: Records) -> ModelEstimate:
    means = records.views.mean_cost_usd
    return estimate_models(run, open_cells, {arm.name: means(run.app, arm.tree, arm.config) for arm in run.arms}, means(run.app))


def most_usd(planned: Plan, budget: Budget | None) -> Decimal | None:
    """What a run of the plan may spend at most, as far as that is bounded: by the cases' limits or by what is left of the budget.

    Where neither bounds it, what is expected; None: nothing is known.
    """
    spent = planned.resumes.committed_usd if planned.resumes else Decimal(0)
    sandboxes = planned.sandboxes.cost_usd or Decimal(0)
    bounds = [] if planned.max_cost_usd is None else [Decimal(str(planned.max_cost_usd)) + sandboxes]
    if budget is not None and budget.cost_usd is not None:
        bounds.append(max(Decimal(0), Decimal(str(budget.cost_usd)) - spent))
    return min(bounds, default=planned.models.cost_usd)


def to_confirm(records: Records, locked: Locked, planned: Plan) -> SpecError | None:
    """What a run needs somebody's word for, as an error for where nobody can be asked; None: it may start."""
    above, most = records.spending.month().confirm_above_usd, most_usd(planned, locked.spec.budget)
    if above is None or most is None or most <= above or not planned.n_open:
        return None
    return SpecError(
        f"{planned.n_open} cells of {planned.run.experiment_id} may cost {most:.2f} USD, and a run above {above:f} USD must be confirmed",
        hint="say so with --yes, give it a smaller budget.cost_usd, or change the threshold: `evals budget --confirm-above USD`",
    )


def commit(locked: Locked, planned: Plan, records: Records, by: str | None = None) -> ExperimentRow:
    """Write the plan into the ledger; idempotent. Cells take the results that the plan found. by: who creates it."""
    budget = locked.spec.budget or Budget.model_construct()
    records.ledger.create_experiment(
        planned.run,
        locked.score,
        repo=str(locked.repo),
        baseline=locked.spec.baseline,
        budget_usd=None if budget.cost_usd is None else Decimal(str(budget.cost_usd)),
        budget_cells=budget.cells,
        budget_wall_s=budget.wall_s,
        created_by=by,
    )
    if planned.adopted:
        records.reuse.adopt(planned.run.experiment_id)
    settle_unpriced(records.database, records.ledger.experiment(planned.run.experiment_id))
    return records.ledger.experiment(planned.run.experiment_id)


def _moves(locked: Locked, old: ExperimentRow) -> list[str]:
    """What its refs did since, in words, one for each arm that would be another one now."""
    lines: list[str] = []
    for arm, before in zip(locked.run.arms, old.run.arms, strict=True):
        if arm.tree == before.tree and arm.manifest == before.manifest:
            continue
        count = git.commits_between(locked.repo, before.commit, arm.commit) if before.commit and arm.commit else None
        step = f"{count} commit{'s' if count != 1 else ''}" if count else "to another tree"
        lines.append(f"{arm.ref} (arm {arm.name!r}) moved {step}")
    return lines


def moved_text(planned: Plan, file: str) -> str | None:
    """That a run resumes what was locked, though the app has changed since; None when it has not."""
    if not planned.moved or planned.resumes is None:
        return None
    then = planned.resumes.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    changed = "your working tree has changed" if all(line.startswith(WORKTREE) for line in planned.moved) else "refs have moved"
    what = "; ".join(planned.moved)
    return f"these run the tree of {then}; {changed} since ({what}): `evals experiment run {file} --fresh` runs it as it is now"


def _max_cost(run: RunLock, open_cells: list[CellKey]) -> float | None:
    limits = [run.case(key.case_name).limits.cost_usd for key in open_cells]
    known = [limit for limit in limits if limit is not None]
    return math.fsum(known) if len(known) == len(limits) else None


def _notes(locked: Locked, n_cases_with_judge: int) -> list[str]:
    notes: list[str] = []
    judge = locked.score.judge
    if n_cases_with_judge and judge is None:
        notes.append(
            f'{n_cases_with_judge} case{" has" if n_cases_with_judge == 1 else "s have"} criteria that need a judge, and the experiment names none: these stay "not judged"'
            " and their scores null"
        )
    book, today = PriceBook.from_rows(locked.score.prices, "prices"), datetime.now(UTC).date()
    for arm in locked.run.arms:
        if unpriced := unpriced_in(arm.config, book, today):
            notes.append(
                f"arm {arm.name!r}: no price for {', '.join(unpriced)}: what its cells cost will be null until prices.yaml has one"
            )
    if n_cases_with_judge and judge is not None and book.row(judge.model_name, today) is None:
        notes.append(f"the judge's model {judge.model_name} has no price: what it costs is unknown and no part of the budget")
    if locked.run.backend == "modal":
        notes.append(
            f"not held on modal: {', '.join(modal_plan.MISSING)}; `evals doctor --backend modal` says what that means for each"
        )
        if weak := next(filter(None, (modal_plan.open_egress("modal", arm.manifest.egress) for arm in locked.run.arms)), None):
            notes.append(f"egress on modal: {weak}")
        if weak := next(filter(None, (not_measured("modal", arm.manifest) for arm in locked.run.arms)), None):
            notes.append(f"models on modal: {weak}")
    if any(arm.config.get("model") == "stand-in" for arm in locked.run.arms):
        notes.append("the stand-in model is no real model: its scores show that the pipeline works, nothing more")
    return notes
