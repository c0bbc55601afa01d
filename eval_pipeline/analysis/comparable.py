"""Whether two arms can be compared at all: the same cases about the same worlds, judged the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval_pipeline.analysis.imported.table import ImportedTable
from eval_pipeline.analysis.measures import worlds_of
from eval_pipeline.analysis.stats import score_range
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.lock import RunLock, ScoreLock
from eval_pipeline.errors import SpecError
from eval_pipeline.store.ledger import ExperimentRow


@dataclass(frozen=True, kw_only=True)
class Side:
    """One arm of an experiment or of an import, with its planned cells.

    table: the experiment's id, or the import's name. cases: in their order. worlds: what a case is drawn with; one that is not named is
    a draw of its own. span: lowest and highest score of these cases. walls: time limits; None: not known. experiment None: imported.
    system: that wrote an import's files. questions: digests of what was asked, made in that system's way, as far as an import knows them.
    """

    table: str
    arm: str
    cells: Sequence[ScoredCell]
    cases: Sequence[str]
    worlds: Mapping[str, str]
    span: Callable[[Sequence[str]], tuple[float, float]]
    walls: Mapping[str, float] | None
    commit: str | None
    config: dict[str, Any]
    experiment: ExperimentRow | None = None
    system: str | None = None
    questions: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        return f"{self.table}:{self.arm}"


def side(experiment: ExperimentRow, table: Sequence[ScoredCell], arm: str) -> Side:
    """table: the experiment's scored table."""
    run, score = experiment.run, experiment.score
    what = run.arm(arm)
    return Side(
        table=experiment.id,
        arm=arm,
        cells=[cell for cell in table if cell.key.arm == arm],
        cases=[case.name for case in run.cases],
        worlds=worlds_of(experiment),
        span=lambda names: score_range(score.policy, [score.cases[name].rubric for name in names]),
        walls={case.name: case.limits.wall_s for case in run.cases},
        commit=what.commit,
        config=what.config,
        experiment=experiment,
    )


def imported_side(table: ImportedTable, arm: str) -> Side:
    """Raises NotFound when it has no such arm."""
    what = table.arm(arm)
    return Side(
        table=table.name,
        arm=arm,
        cells=[cell for cell in table.cells if cell.key.arm == arm],
        cases=list(dict.fromkeys(row.case for row in what.rows)),
        worlds={},
        span=lambda _: (table.low, table.high),
        walls=None,
        commit=None,
        config=what.config,
        system=table.system,
        questions={row.case: row.question for row in what.rows if row.question is not None},
    )


def shared_cases(a: Side, b: Side) -> list[str]:
    """In the order of a. Raises SpecError where a comparison would mean nothing: no shared case, a case that asks something else or
    is about another state of its world, or another way of judging."""
    if (a.table, a.arm) == (b.table, b.arm):
        raise SpecError(f"{a.name} can't be compared with itself", hint="name two arms: evals compare EXPERIMENT A B")
    theirs = set(b.cases)
    shared = [name for name in a.cases if name in theirs]
    if not shared:
        raise SpecError(f"{a.table} and {b.table} share no case", hint="compare experiments about the same cases")
    if a.table != b.table:
        if a.experiment is not None and b.experiment is not None:
            _refuse_other_questions(a.experiment.run, b.experiment.run, shared, f"{a.table} and {b.table}")
            _refuse_other_scoring(a.experiment.score, b.experiment.score, shared, a.table, b.table)
        else:
            _refuse_other_ground(a, b, shared)
    return shared


def _refuse_other_ground(a: Side, b: Side, shared: Sequence[str]) -> None:
    """All that an import tells."""
    known = [name for name in shared if name in a.questions and name in b.questions]
    asked = [name for name in known if a.questions[name] != b.questions[name]]
    if a.system == b.system and asked:
        raise SpecError(
            f"{a.table} and {b.table} ask different things in {_some(asked, 'case')}", hint="compare what was asked the same"
        )
    if a.span(shared) != b.span(shared):
        ranges = " and ".join(f"from {low:g} to {high:g}" for low, high in (a.span(shared), b.span(shared)))
        hint = "import it again, with the range that its scores have: --range LOW HIGH --replace"
        raise SpecError(f"scores of {a.table} and {b.table} have different ranges: {ranges}", hint=hint)


def _refuse_other_questions(a: RunLock, b: RunLock, shared: Sequence[str], both: str) -> None:
    worlds = sorted({a.case(name).world for name in shared})
    moved = [world for world in worlds if a.worlds[world] != b.worlds[world]]
    if moved:
        raise SpecError(
            f"{both} are about different snapshots of {_some(moved)}: {moved[0]} is {a.worlds[moved[0]][:12]} and {b.worlds[moved[0]][:12]}",
            hint="run one of them again with the world as the other had it: results about different worlds are not paired",
        )
    asked = [name for name in shared if _question(a, name) != _question(b, name)]
    if asked:
        raise SpecError(
            f"{both} ask different things in {_some(asked)}: the prompt or the deliverables differ",
            hint="run one of them again with the cases as the other had them, or give the changed case a name of its own",
        )


def _question(run: RunLock, name: str) -> tuple[str, tuple[str, ...]]:
    case = run.case(name)
    return case.prompt, case.deliverables


def _refuse_other_scoring(a: ScoreLock, b: ScoreLock, shared: Sequence[str], left: str, right: str) -> None:
    hint = f"judge the stored results of both the same way, no agent is run: evals score {left} --rubric latest, evals score {right} --rubric latest"
    if a.scoring_version != b.scoring_version:
        said = f"scoring version {a.scoring_version} and {b.scoring_version}"
        raise SpecError(f"{left} and {right} are scored by different rules: {said}", hint=hint)
    if a.policy != b.policy:
        hint = "write the same `policy` into both files and run them again: what is stored is scored anew, no agent is run"
        raise SpecError(f"{left} and {right} have different scoring policies: {a.policy} and {b.policy}", hint=hint)
    differ = [
        name
        for name in shared
        if (a.cases[name].rubric, a.cases[name].reference) != (b.cases[name].rubric, b.cases[name].reference)
    ]
    if differ:
        raise SpecError(f"{left} and {right} judge {_some(differ)} by different rubrics or references", hint=hint)
    judged = any(criterion.judge for name in shared for criterion in a.cases[name].rubric.criteria)
    if judged and a.judge != b.judge:
        judges = " and ".join("no judge" if one is None else f"{one.model} ({one.votes} votes)" for one in (a.judge, b.judge))
        hint = "judge the stored results of one as the other's, no agent is run: evals score EXPERIMENT --judge PROVIDER:MODEL"
        raise SpecError(f"{left} and {right} have different judges: {judges}", hint=hint)


def _some(names: Sequence[str], what: str | None = None) -> str:
    what = what or ("case" if "." in names[0] else "world")
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({', '.join(names[:3])}{', ...' if names[3:] else ''})"


def unequal_ground(a: Side, b: Side, shared: Sequence[str]) -> list[str]:
    """What both sides do not have in common and does not forbid a comparison, in words."""
    notes: list[str] = []
    if a.table == b.table:
        return [] if a.experiment is not None else _of_imports(a, b)
    only = [len(one.cases) - len(shared) for one in (a, b)]
    if any(only):
        notes.append(f"cases of one experiment only are left out: {only[0]} of {a.table}, {only[1]} of {b.table}")
    if a.experiment is None or b.experiment is None:
        return [*notes, *_of_imports(a, b)]
    left, right = a.experiment.run, b.experiment.run
    limits = [name for name in shared if left.case(name).limits != right.case(name).limits]
    if limits:
        notes.append(f"the limits differ in {_some(limits)}: an agent that is given less ends earlier")
    if left.backend != right.backend:
        notes.append(f"one ran on {left.backend}, the other on {right.backend}: the latency ratio compares the machines too")
    if _prices_differ(a.experiment.score.prices, b.experiment.score.prices):
        notes.append("the experiments have different prices for the same model: the cost ratio compares the prices too")
    return notes


def _of_imports(a: Side, b: Side) -> list[str]:
    """What is imported says little of itself."""
    names = " and ".join(dict.fromkeys(one.table for one in (a, b) if one.experiment is None))
    return [f"{names}: imported; that both sides were judged, priced and timed alike is not known here, nor what the limits were"]


def _prices_differ(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> bool:
    return any(_rows(a, name) != _rows(b, name) for name in {row["model"] for row in a} & {row["model"] for row in b})


def _rows(prices: Sequence[Mapping[str, Any]], model: str) -> list[Mapping[str, Any]]:
    return [row for row in prices if row["model"] == model]
