"""The two locks. The run lock identifies what runs; the score lock says how it is judged. See `identity` for what counts."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import JudgeSpec, Policy
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.rubric import Rubric

IDENTITY_VERSION = 1
SCORING_VERSION = 1


class LockedCase(Spec):
    world: str
    case: str
    prompt: str
    deliverables: tuple[str, ...]
    limits: Limits

    @property
    def name(self) -> str:
        return f"{self.world}.{self.case}"


class LockedArm(Spec):
    """tree: the git tree of the app's folder, which is what runs. commit is where it was found; None for WORKTREE."""

    name: str
    ref: str
    commit: str | None
    tree: str
    manifest: AppManifest
    config: dict[str, Any]


class RunLock(Spec):
    """Everything that decides what the cells do. worlds: name -> snapshot digest."""

    identity_version: int = IDENTITY_VERSION
    name: str
    app: str
    app_path: str
    backend: str
    seed: int
    trials: int
    worlds: dict[str, str]
    cases: tuple[LockedCase, ...]
    arms: tuple[LockedArm, ...]

    def identity(self) -> dict[str, Any]:
        """What is hashed: no display setting, and the tree instead of the commit, so a commit elsewhere changes nothing."""
        data = self.model_dump(mode="json")
        for arm in data["arms"]:
            del arm["ref"], arm["commit"]
        return data

    @cached_property
    def digest(self) -> str:
        return digest(self.identity())

    @property
    def experiment_id(self) -> str:
        return f"{self.name}-{self.digest[:12]}"

    @property
    def source_digest(self) -> str:
        """Equal for the same file while its refs move: trees and manifests are replaced by the refs as written."""
        data = self.identity()
        for arm, locked in zip(data["arms"], self.arms, strict=True):
            del arm["tree"], arm["manifest"]
            arm["ref"] = locked.ref
        return digest(data)

    def cell_keys(self) -> list[CellKey]:
        """Cells in tensor order: cases, then arms, then trials."""
        return [
            CellKey(self.experiment_id, case.world, case.case, arm.name, trial)
            for case in self.cases
            for arm in self.arms
            for trial in range(self.trials)
        ]

    def case(self, name: str) -> LockedCase:
        return self._cases_by_name[name]

    def arm(self, name: str) -> LockedArm:
        return self._arms_by_name[name]

    @cached_property
    def _cases_by_name(self) -> dict[str, LockedCase]:
        return {case.name: case for case in self.cases}

    @cached_property
    def _arms_by_name(self) -> dict[str, LockedArm]:
        return {arm.name: arm for arm in self.arms}

    def cell_digest(self, key: CellKey) -> str:
        """Equal digests are the same run, whatever the experiment or the arm is called."""
        arm, case = self.arm(key.arm), self.case(key.case_name)
        return digest(
            {
                "identity_version": self.identity_version,
                "world": self.worlds[key.world],
                "prompt": case.prompt,
                "deliverables": list(case.deliverables),
                "limits": case.limits.model_dump(mode="json"),
                "manifest": arm.manifest.model_dump(mode="json"),
                "tree": arm.tree,
                "config": arm.config,
                "backend": self.backend,
                "seed": self.cell_seed(key),
                "trial": key.trial,
            }
        )

    def cell_seed(self, key: CellKey) -> int:
        """31 bits from (seed, case, trial): arms of one trial share it, so that they are paired."""
        text = f"{self.seed}\0{key.case_name}\0{key.trial}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


class ScoredCase(Spec):
    rubric: Rubric
    reference: str | None = None
    tags: tuple[str, ...] = ()


class ScoreLock(Spec):
    """How results are judged. cases: global case name -> its rubric. prices: price rows as written. A change re-scores, never re-runs."""

    scoring_version: int = SCORING_VERSION
    policy: Policy
    judge: JudgeSpec | None
    cases: dict[str, ScoredCase]
    prices: list[dict[str, Any]]

    @cached_property
    def digest(self) -> str:
        return digest(self.model_dump(mode="json"))
