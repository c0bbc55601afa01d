"""Locks made by hand, for tests that need no files and no repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval_pipeline.domain.app import AppManifest, ImageSpec
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import Policy
from eval_pipeline.domain.lock import LockedArm, LockedCase, RunLock, ScoredCase, ScoreLock
from eval_pipeline.domain.rubric import Criterion, Rubric

MANIFEST = AppManifest(name="tiny", image=ImageSpec(base="host"), agent=("bin/agent",))
WORLD_DIGEST = "a" * 64
TREE = "b" * 40


def locked_case(case: str = "c", world: str = "w", **more: Any) -> LockedCase:
    fields: dict[str, Any] = {"world": world, "case": case, "prompt": f"Answer {case}.", "deliverables": (), "limits": Limits()}
    fields |= more
    return LockedCase(**fields)


def locked_arm(name: str = "a", **more: Any) -> LockedArm:
    fields: dict[str, Any] = {"name": name, "ref": "main", "commit": "c" * 40, "tree": TREE, "manifest": MANIFEST, "config": {}}
    fields |= more
    return LockedArm(**fields)


def run_lock(
    name: str = "x",
    cases: Sequence[LockedCase] = (locked_case(),),
    arms: Sequence[LockedArm] = (locked_arm(),),
    trials: int = 1,
    **more: Any,
) -> RunLock:
    fields: dict[str, Any] = {"app": "tiny", "app_path": ".", "backend": "local", "seed": 0}
    fields |= {"worlds": {case.world: WORLD_DIGEST for case in cases}, "cases": tuple(cases), "arms": tuple(arms)}
    fields |= {"name": name, "trials": trials, **more}
    return RunLock(**fields)


def criterion(id: str = "yes", points: float = 1.0, **more: Any) -> Criterion:
    fields: dict[str, Any] = {"id": id, "text": f"Says {id}", "points": points, "check": {"contains": id}}
    fields |= {"check": None} if more.get("judge") else {}
    fields |= more
    return Criterion(**fields)


def score_lock(
    run: RunLock,
    criteria: Sequence[Criterion] = (criterion(),),
    policy: Policy = "clip_cell",
    prices: Sequence[dict[str, Any]] = (),
    **rubric: Any,
) -> ScoreLock:
    scored = ScoredCase(rubric=Rubric(criteria=tuple(criteria), **rubric))
    return ScoreLock(policy=policy, judge=None, cases={case.name: scored for case in run.cases}, prices=list(prices))
