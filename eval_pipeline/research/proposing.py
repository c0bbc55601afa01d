"""Proposals: what the search, a command or an outside agent says, locked like an arm or refused in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_pipeline.domain.experiment import ArmSpec
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.errors import IsolationUnavailable, SpecError
from eval_pipeline.research.goal import Goal
from eval_pipeline.research.journal import Row, State, public
from eval_pipeline.research.lab import arm_name
from eval_pipeline.research.loop import Proposal
from eval_pipeline.research.proposer import ask
from eval_pipeline.research.space import complaint, search
from eval_pipeline.research.walls import command_within, hidden
from eval_pipeline.sandbox.local import preflight
from eval_pipeline.settings import Settings
from eval_pipeline.specs import git
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import canonical_config, lock_arm
from eval_pipeline.store.records import Records
from eval_pipeline.store.researches import ResearchRow
from eval_pipeline.vault.delivery import Secrets

KEYS = {"config", "commit", "note", "cost_usd", "stop"}
_NOTE_MAX = 2000


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where proposals arrive."""

    settings: Settings
    records: Records
    row: ResearchRow
    goal: Goal

    def propose(self, state: State, step: int) -> Proposal:
        """By the goal's own proposer."""
        rule = self.goal.proposer
        if rule.command is not None:
            answer = ask(self._within(rule.command), rule, self.view(state, step))
            return Proposal(why=answer) if isinstance(answer, str) else self.lock(state, step, answer)
        tried = [one.arm["config"] for one in state.steps if one.refused is None]
        config = search(rule.search, self.goal.space, state.incumbent.arm["config"], tried, rule.seed, step)
        return Proposal() if config is None else self.lock(state, step, {"config": config})

    def _within(self, command: Sequence[str]) -> Sequence[str]:
        """Raises IsolationUnavailable where nothing can be hidden from it and that is not permitted."""
        if (why := preflight.why_not()) is None:
            worlds = {name.partition(".")[0] for name in self.row.split["holdout"]}
            return command_within(command, self.settings, hidden(self.settings, self.records.database.url, worlds))
        if self.settings.unsafe_no_isolation:
            return command
        raise IsolationUnavailable(
            f"a proposer's command can't be kept from the holdout here: {why}",
            hint="use the built-in search, let an outside agent `submit`, or permit it with EVALS_UNSAFE_NO_ISOLATION=1",
        )

    def view(self, state: State, step: int) -> dict[str, Any]:
        """What whoever proposes is told: nothing of the holdout but accepted or rejected."""
        rows = [
            Row(ordinal=r.ordinal, kind=r.kind, step=r.step, data=r.data) for r in self.records.researches.journal(self.row.id)
        ]
        incumbent = state.incumbent
        return {
            "research": self.row.id,
            "step": step,
            "metric": self.goal.metric.model_dump(mode="json"),
            "space": self.goal.space.model_dump(mode="json"),
            "dev_cases": self.row.split["dev"],
            "repo": self.row.repo if self.goal.space.repo is not None else None,
            "incumbent": {"step": incumbent.number, **{key: incumbent.arm[key] for key in ("config", "commit", "ref")}},
            "journal": public(rows),
        }

    def lock(self, state: State, step: int, answer: Mapping[str, Any]) -> Proposal:
        """Like an arm of an experiment, before anything is spent; what is no candidate comes back with the reason."""
        note, cost = _said(answer)
        if isinstance(answer.get("stop"), str):
            return Proposal(note=answer["stop"][:_NOTE_MAX], cost_usd=cost)
        try:
            arm = self._arm(state, step, answer)
        except SpecError as error:
            return Proposal(why=str(error)[:_NOTE_MAX], note=note, cost_usd=cost)
        return Proposal(arm=arm.model_dump(mode="json"), note=note, cost_usd=cost)

    def _arm(self, state: State, step: int, answer: Mapping[str, Any]) -> LockedArm:
        if unknown := sorted(set(map(str, answer)) - KEYS):
            raise SpecError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(KEYS))}")
        if "config" not in answer and "commit" not in answer:
            raise SpecError("neither config nor commit is named")
        config = answer.get("config", state.incumbent.arm["config"])
        if not isinstance(config, dict):
            raise SpecError(f"config must hold keys and values, found {type(config).__name__}")
        config = canonical_config(config)
        if (wrong := complaint(self.goal.space, state.steps[0].arm["config"], config)) is not None:
            raise SpecError(wrong)
        ref = (
            self._commit(state, answer["commit"])
            if "commit" in answer
            else state.incumbent.arm["commit"] or state.incumbent.arm["ref"]
        )
        if (
            "commit" not in answer and state.incumbent.arm["commit"] is None
        ):  # a working tree as it was locked, whatever it is by now
            arm = LockedArm.model_validate({**state.incumbent.arm, "config": config, "name": arm_name(step)}, strict=False)
        else:
            worlds = [Library(self.settings.worlds_dir).world(name).spec for name in self.row.run.worlds]
            spec = ArmSpec(name=arm_name(step), ref=ref, config=config)
            arm = lock_arm(Path(self.row.repo), self.row.run.app_path, spec, self.row.run.backend, worlds)
        Secrets(self.settings, self.records).require(arm)
        self._new(state, arm)
        return arm

    def _commit(self, state: State, commit: Any) -> str:
        rule, repo = self.goal.space.repo, Path(self.row.repo)
        if rule is None:
            raise SpecError("commit: the goal's space names no repo, so only configs may be proposed")
        if not isinstance(commit, str):
            raise SpecError(f"commit must be a git revision, found {type(commit).__name__}")
        found, base = git.resolve(repo, commit), state.steps[0].arm["commit"]
        if git.distance(repo, base, found) is None:
            raise SpecError(f"commit: {found[:12]} does not descend from the baseline's {base[:12]}")
        if git.distance(repo, found, git.resolve(repo, rule.branch)) is None:
            raise SpecError(f"commit: {found[:12]} is not on the branch {rule.branch!r}")
        return found

    def _new(self, state: State, arm: LockedArm) -> None:
        for step in state.steps:
            if step.refused is None and (step.arm["tree"], step.arm["config"]) == (arm.tree, arm.config):
                raise SpecError(f"this is what step {step.number} was already")


def _said(answer: Mapping[str, Any]) -> tuple[str | None, float | None]:
    note, cost = answer.get("note"), answer.get("cost_usd")
    priced = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < float("inf")
    return (note[:_NOTE_MAX] if isinstance(note, str) else None), (float(cost) if priced and cost is not None else None)
