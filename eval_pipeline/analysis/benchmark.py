"""A benchmark: arms that were measured over months, on the same cases and judged the same way, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from eval_pipeline.analysis.board import ArmRow, Comparison
from eval_pipeline.analysis.leaderboard import Ground, stand
from eval_pipeline.analysis.measures import case_means, score, span_of, worlds_of
from eval_pipeline.analysis.origin import judged_by
from eval_pipeline.analysis.stats import paired_difference
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.canonical import canonical_json, digest
from eval_pipeline.domain.lock import LockedArm, ScoreLock
from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.benchmarks import BenchmarkEntry
from eval_pipeline.store.ledger import ExperimentRow

_HINT = "judge the stored results of both the same way, no agent is run: evals score {one} --rubric latest, evals score {other} --rubric latest"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """label: the arm's name, with its commit where several entries have that name. commit None: a working tree."""

    label: str
    arm: str
    experiment: str
    commit: str | None
    tree: str
    config: dict[str, Any]
    entered_at: datetime


@dataclass(frozen=True, kw_only=True)
class Point:
    """One commit of a line. since_last: against the point before, paired by case; None for the first."""

    label: str
    commit: str | None
    entered_at: datetime
    score: float | None
    ci_low: float | None
    ci_high: float | None
    cost_usd_mean: float | None
    since_last: float | None
    since_last_low: float | None
    since_last_high: float | None
    p: float | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one config became over commits, in the order in which they entered."""

    config: dict[str, Any]
    points: list[Point]


@dataclass(frozen=True, kw_only=True)
class BenchmarkBoard:
    """version: digest of what all entries share: snapshots, prompts, limits, trials, rubrics, references, policy, judge.

    prices: every cost is at these, the newest entry's. comparisons: with `baseline`. notes: what entries do not share and does not
    forbid a table.
    """

    benchmark: str
    version: str
    judge_version: str | None
    prices: str
    policy: str
    trials: int
    n_cases: int
    n_common_cases: int
    baseline: str
    status: str
    reasons: list[str]
    unranked: list[str]
    notes: list[str]
    entries: list[Entry]
    arms: list[ArmRow]
    comparisons: list[Comparison]
    lines: list[Line]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def arm_identity(experiment: ExperimentRow, arm: LockedArm) -> str:
    """Equal for arms that are the same program with the same config, whatever their names and commits."""
    run = experiment.run
    parts = {"app": run.app, "tree": arm.tree, "manifest": arm.manifest.model_dump(mode="json"), "config": arm.config}
    return digest({**parts, "identity_version": run.identity_version})


def version_parts(experiment: ExperimentRow) -> dict[str, dict[str, Any]]:
    """What the entries of a benchmark must have in common: part -> name -> value, in words that an error can say."""
    run, scoring = experiment.run, experiment.score
    judge = None if judged_by(scoring) is None or scoring.judge is None else f"{scoring.judge.model}, {scoring.judge.votes} votes"
    return {
        "app": {"": run.app},
        "trials": {"": run.trials},
        "snapshot of world": dict(run.worlds),
        "prompt, deliverables or limits of case": {
            case.name: digest([case.prompt, list(case.deliverables), case.limits.model_dump(mode="json")]) for case in run.cases
        },
        "rubric or reference of case": {
            name: digest([case.rubric.model_dump(mode="json"), case.reference]) for name, case in scoring.cases.items()
        },
        "policy": {"": scoring.policy},
        "scoring version": {"": scoring.scoring_version},
        "judge": {"": None if judge is None else f"{judge} ({judged_by(scoring)})"},
    }


def require_same(one: ExperimentRow, other: ExperimentRow, benchmark: str) -> None:
    """Raises SpecError that says all that differs."""
    mine, theirs = version_parts(one), version_parts(other)
    differ = [said for part in mine if (said := _difference(part, mine[part], theirs[part])) is not None]
    if differ:
        raise SpecError(
            f"benchmark {benchmark} mixes no versions: {one.id} and {other.id} differ in {'; '.join(differ)}",
            hint=_HINT.format(one=one.id, other=other.id)
            + "; other cases, worlds or trials are another benchmark: add it under another name",
        )


def _difference(part: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    names = [name for name in [*mine, *(name for name in theirs if name not in mine)] if mine.get(name) != theirs.get(name)]
    if not names:
        return None
    if names == [""]:
        return f"{part}: {_shown(mine[''])} and {_shown(theirs[''])}"
    lacking = [name for name in names if (name in mine) != (name in theirs)]
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{part} {listed}" + (f" ({len(lacking)} of them are in one only)" if lacking else "")


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def shared_prices(experiments: Sequence[ExperimentRow]) -> list[dict[str, Any]]:
    """The newest experiment's, and of models that it does not price the newest that another has. experiments: oldest first."""
    rows: list[dict[str, Any]] = []
    for experiment in reversed(experiments):
        known = {row["model"] for row in rows}
        rows += [row for row in experiment.score.prices if row["model"] not in known]
    return rows


def repriced(experiment: ExperimentRow, prices: list[dict[str, Any]]) -> ExperimentRow:
    """Made anew: a copy would keep the digest of the old prices."""
    fields = {name: getattr(experiment.score, name) for name in ScoreLock.model_fields}
    return replace(experiment, score=ScoreLock(**{**fields, "prices": prices}))


@dataclass(frozen=True, kw_only=True)
class Member:
    entry: BenchmarkEntry
    experiment: ExperimentRow
    cells: Sequence[ScoredCell]

    @property
    def locked(self) -> LockedArm:
        return self.experiment.run.arm(self.entry.arm)


def benchmark_board(name: str, members: Sequence[Member], baseline: str | None, resamples: int) -> BenchmarkBoard:
    """members: oldest first, at least one, all of one version; their cells priced alike. baseline: a label; None: the first entry."""
    first = members[0].experiment
    entries = _entries(members)
    labels = [entry.label for entry in entries]
    if baseline is not None and baseline not in labels:
        raise SpecError(f"{baseline!r} is no arm of benchmark {name}", hint=f"one of: {', '.join(labels)}")
    cells = {entry.label: member.cells for entry, member in zip(entries, members, strict=True)}
    ground = Ground(
        worlds=worlds_of(first), span=span_of(first), trials=first.run.trials, baseline=baseline or labels[0], resamples=resamples
    )
    found = stand(cells, {entry.label: entry.config.get("model") for entry in entries}, ground)
    return BenchmarkBoard(
        benchmark=name,
        version=digest(version_parts(first)),
        judge_version=judged_by(first.score),
        prices=PriceBook.from_rows(first.score.prices, f"{name}: prices").version,
        policy=first.score.policy,
        trials=first.run.trials,
        n_cases=found.n_cases,
        n_common_cases=found.n_common,
        baseline=ground.baseline or labels[0],
        status="provisional" if found.reasons else "final",
        reasons=found.reasons,
        unranked=found.unranked,
        notes=_notes(members),
        entries=entries,
        arms=found.arms,
        comparisons=found.comparisons,
        lines=_lines(entries, {row.arm: row for row in found.arms}, cells, ground),
    )


def _entries(members: Sequence[Member]) -> list[Entry]:
    names = [member.entry.arm for member in members]
    dated = [f"{member.entry.arm}@{(member.locked.commit or member.locked.tree)[:7]}" for member in members]
    labels = [
        name if names.count(name) == 1 else at if dated.count(at) == 1 else f"{at}-{member.entry.identity[:6]}"
        for name, at, member in zip(names, dated, members, strict=True)
    ]
    return [
        Entry(
            label=label,
            arm=member.entry.arm,
            experiment=member.experiment.id,
            commit=member.locked.commit,
            tree=member.locked.tree,
            config=member.locked.config,
            entered_at=member.entry.entered_at,
        )
        for label, member in zip(labels, members, strict=True)
    ]


def _notes(members: Sequence[Member]) -> list[str]:
    notes: list[str] = []
    backends = sorted({member.experiment.run.backend for member in members})
    if len(backends) > 1:
        notes.append(f"entries ran on {' and '.join(backends)}: latencies compare the machines too")
    sources = {cell.usage_source for member in members for cell in member.cells if cell.usage_source is not None}
    if len(sources) > 1:
        notes.append("the usage of some is measured, that of others self-reported: their costs are not of one kind")
    return notes


def _lines(
    entries: Sequence[Entry], rows: Mapping[str, ArmRow], cells: Mapping[str, Sequence[ScoredCell]], ground: Ground
) -> list[Line]:
    by_config: dict[str, list[Entry]] = {}
    for entry in entries:
        by_config.setdefault(canonical_json(entry.config), []).append(entry)
    lines: list[Line] = []
    for found in by_config.values():
        points = [
            _point(entry, rows[entry.label], None if n == 0 else cells[found[n - 1].label], cells[entry.label], ground)
            for n, entry in enumerate(found)
        ]
        lines.append(Line(config=found[0].config, points=points))
    return lines


def _point(entry: Entry, row: ArmRow, before: Sequence[ScoredCell] | None, now: Sequence[ScoredCell], ground: Ground) -> Point:
    change = None
    if before is not None:
        change = paired_difference(case_means(before, score), case_means(now, score), ground.worlds, score_range=ground.span)
    return Point(
        label=entry.label,
        commit=entry.commit,
        entered_at=entry.entered_at,
        score=row.score,
        ci_low=row.ci_low,
        ci_high=row.ci_high,
        cost_usd_mean=row.cost_usd_mean,
        since_last=change.diff if change else None,
        since_last_low=change.ci_lower if change else None,
        since_last_high=change.ci_upper if change else None,
        p=change.p if change else None,
    )
