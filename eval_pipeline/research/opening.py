"""From a goal file to a research in the ledger: everything is locked once, and the cases are split by whole worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_pipeline.analysis.stats import score_range, split_holdout
from eval_pipeline.domain.canonical import canonical_json, digest
from eval_pipeline.domain.case import Case
from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.research.goal import Goal, Range, SplitRule
from eval_pipeline.research.loop import Ground
from eval_pipeline.research.space import complaint
from eval_pipeline.scoring.price_library import names_in
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import Locked, lock_spec
from eval_pipeline.specs.yaml_file import YamlFile, parse_model
from eval_pipeline.store.records import Records
from eval_pipeline.store.researches import NewResearch, ResearchRow

_FEW_CASES = 100


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What a goal file stands for. resumed: it is in the ledger; else nothing of it is written yet."""

    goal: Goal
    research: NewResearch
    resumed: bool


@dataclass(frozen=True, kw_only=True)
class Opened:
    """resumed: it was there. notes: what the holdout can't show, in words."""

    row: ResearchRow
    goal: Goal
    resumed: bool
    notes: tuple[str, ...]


def read_goal(library: Library, argument: str) -> tuple[YamlFile, Goal]:
    """A path, or the name of a file under `research/`. Raises SpecError with file:line, NotFound."""
    folder = library.root / "research"
    for path in (Path(argument), folder / argument, folder / f"{argument}.yaml"):
        if path.is_file():
            file = library.file(path)
            return file, parse_model(file, Goal)
    known = (
        ", ".join(sorted(path.stem for path in folder.glob("*.yaml"))) or "none; write research/NAME.yaml in the worlds' folder"
    )
    raise NotFound(f"there is no goal file {argument!r}", hint=f"known goals: {known}")


def open_research(library: Library, argument: str, records: Records, by: str | None, *, fresh: bool = False) -> Opened:
    """Lock the goal, or find the research that was begun with the same file. fresh: lock it anew if the app has moved since."""
    return record(begin(library, argument, records, by, fresh=fresh), records)


def record(found: Begun, records: Records) -> Opened:
    """Write it down, if it is not there."""
    goal, new = found.goal, found.research
    if not found.resumed:
        arm, n_dev = new.run.arms[0].model_dump(mode="json"), len(new.split["dev"])
        records.researches.create(new, {"arm": arm, "metric": goal.metric.model_dump(mode="json"), "n_dev": n_dev})
    row = records.researches.find(new.id)
    records.researches.set_goal(row.id, goal.model_dump(mode="json"))
    return Opened(row=row, goal=goal, resumed=found.resumed, notes=notes_on(row))


def begin(library: Library, argument: str, records: Records, by: str | None, *, fresh: bool = False) -> Begun:
    """What `open_research` would go on with or write down; nothing is written."""
    file, goal = read_goal(library, argument)
    row = None if fresh else records.researches.of_source(goal.name, goal.source_digest)
    if row is not None:
        return Begun(goal=goal, research=row, resumed=True)
    locked, split = _locked(library, file, goal)
    identity = {"goal": goal.source_digest, "run": locked.run.digest, "score": locked.score.digest, "split": split}
    new = NewResearch(
        id=f"{goal.name}-{digest(identity)[:12]}",
        name=goal.name,
        source_digest=goal.source_digest,
        goal=goal.model_dump(mode="json"),
        run=locked.run,
        score=locked.score,
        split=split,
        repo=str(locked.repo),
        created_by=by,
    )
    return Begun(goal=goal, research=new, resumed=False)


def goal_of(row: ResearchRow) -> Goal:
    """As it was read last."""
    return Goal.model_validate_json(canonical_json(row.goal))


def ground_of(row: ResearchRow) -> Ground:
    goal = goal_of(row)
    span = score_range(row.score.policy, [case.rubric for case in row.score.cases.values()])
    world = {case.name: case.world for case in row.run.cases}
    return Ground(metric=goal.metric, rule=goal.decide, world=world, span={"score": span, "passed": (0.0, 1.0)})


def notes_on(row: NewResearch) -> tuple[str, ...]:
    worlds = {half: {name.partition(".")[0] for name in names} for half, names in row.split.items()}
    found: list[str] = []
    if len(worlds["holdout"]) < 2:
        found.append(
            "the holdout is one world, and one world says nothing of others: no candidate can be accepted. Add worlds, or see what dev says"
        )
    elif len(row.split["holdout"]) < _FEW_CASES:
        found.append(
            f"the holdout has {len(row.split['holdout'])} cases of {len(worlds['holdout'])} worlds; below {_FEW_CASES} only large gains are confirmed"
        )
    if len(worlds["dev"]) < 2:
        found.append("dev is one world: its cases stand for themselves there, and what is selected may suit this world alone")
    return tuple(found)


def _locked(library: Library, file: YamlFile, goal: Goal) -> tuple[Locked, dict[str, list[str]]]:
    models = {
        name
        for key, allowed in goal.space.config.items()
        if not isinstance(allowed, Range)
        for name in names_in({key: list(allowed)})
    }
    locked = lock_spec(library, file, goal.experiment(), [("baseline",)], models)
    arm = locked.run.arms[0]
    if (wrong := complaint(goal.space, arm.config, arm.config)) is not None:
        raise SpecError(f"the baseline is no part of the space: {wrong}", where=file.where(("baseline", "config")))
    if goal.space.repo is not None:
        _check_branch(locked.repo, goal.space.repo.branch, arm.commit, file.where(("space", "repo", "branch")))
    judged = [name for name, case in locked.score.cases.items() if any(one.judge for one in case.rubric.criteria)]
    if judged and goal.judge is None:
        raise SpecError(
            f"{len(judged)} cases have criteria that need a judge, and the goal names none: their scores could never be had",
            where=file.where(("dataset",)),
            hint="write `judge: {model: ...}`, or choose cases that checks alone decide",
        )
    return locked, split_cases(library, file, goal.split, library.dataset_cases(goal.dataset))


def _check_branch(repo: Path, branch: str, commit: str | None, where: str) -> None:
    try:
        head = git.resolve(repo, branch)
    except SpecError as error:
        raise SpecError(str(error), where=where, hint=error.hint) from None
    if commit is None or git.distance(repo, commit, head) is None:
        raise SpecError(f"the baseline's commit is no ancestor of the branch {branch!r}", where=where)


def split_cases(library: Library, file: YamlFile, rule: SplitRule | None, cases: Sequence[Case]) -> dict[str, list[str]]:
    """By whole worlds: as the goal says, else as the cases do. Raises SpecError where a side would be empty."""
    kept = _kept_apart(library, file, rule, cases)
    split = {half: [case.name for case in cases if (case.world in kept) == (half == "holdout")] for half in ("dev", "holdout")}
    if empty := [half for half, names in split.items() if not names]:
        raise SpecError(
            f"no case is left for {empty[0]}: the dataset has {len({case.world for case in cases})} world(s), and none is divided",
            where=file.where(("split",)),
            hint="a research needs two worlds at least, one to work on and one kept apart",
        )
    return split


def _kept_apart(library: Library, file: YamlFile, rule: SplitRule | None, cases: Sequence[Case]) -> set[str]:
    """The worlds of the holdout."""
    world = {case.name: case.world for case in cases}
    if rule is not None and rule.holdout is not None:
        if unknown := sorted(set(rule.holdout) - set(world.values())):
            raise SpecError(
                f"holdout: the dataset has no case of the world {unknown[0]!r}", where=file.where(("split", "holdout"))
            )
        return set(rule.holdout)
    said = {} if rule is not None else _said(library, cases)
    if silent := sorted(set(world.values()) - set(said)) if said else []:
        raise SpecError(
            f"some cases say dev or holdout, and none of the world {silent[0]!r} does",
            where=file.where(("dataset",)),
            hint="write `split: dev` or `split: holdout` into one of its cases, or `split: {holdout: [...]}` into the goal file",
        )
    if said:
        return {name for name, half in said.items() if half == "holdout"}
    drawn = rule or SplitRule()
    return {world[name] for name in split_holdout(list(world), world, share=drawn.share, seed=drawn.seed).holdout}


def _said(library: Library, cases: Sequence[Case]) -> dict[str, Any]:
    """World -> the half that its cases name; nothing where none does."""
    found: dict[str, Any] = {}
    for case in cases:
        half = case.spec.split
        if half is None:
            continue
        if found.setdefault(case.world, half) != half:
            raise SpecError(
                f"{case.name} is for {half}, and another case of its world for {found[case.world]}: a world is never divided",
                where=library.where(case, ("split",)),
                hint="let the goal file say which worlds are kept apart: `split: {holdout: [...]}`",
            )
    return found
