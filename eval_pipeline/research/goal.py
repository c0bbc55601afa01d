"""The goal file of a research: what is to get better, what may be changed, on which cases, for how much, and when to stop."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.experiment import WORKTREE, ArmSpec, BackendName, Budget, ExperimentSpec, JudgeSpec
from eval_pipeline.domain.ids import Slug
from eval_pipeline.domain.rubric import Policy

Column = Literal[
    "score", "passed", "cost_usd", "sandbox_cost_usd", "latency_s", "sandbox_s", "input_tokens", "output_tokens", "model_calls"
]
BOUNDED = ("score", "passed")
"""Columns with a known range. They are compared by difference, the others (0 or more) by the ratio of their means."""
_MAX_NAME = 24


class Constraint(Spec):
    """Of the candidate. margin: no worse than the incumbent by so much (score, passed). at_most, at_least: the column's mean."""

    column: Column
    margin: Annotated[float, Field(gt=0)] | None = None
    at_most: float | None = None
    at_least: float | None = None

    @model_validator(mode="after")
    def _one(self) -> Constraint:
        said = [name for name in ("margin", "at_most", "at_least") if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError(f"write one of margin, at_most and at_least, found {' and '.join(said) or 'none'}")
        if self.margin is not None and self.column not in BOUNDED:
            raise ValueError(
                f"a margin is in points of {' or '.join(BOUNDED)}, and {self.column} has none: write at_most or at_least"
            )
        return self


class Metric(Spec):
    """column: of the scored table. direction None: max for score and passed, min for the others."""

    column: Column = "score"
    direction: Literal["max", "min"] | None = None
    constraint: Constraint | None = None

    @property
    def upward(self) -> bool:
        return self.direction == "max" or (self.direction is None and self.column in BOUNDED)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,) if self.constraint is None else (self.column, self.constraint.column)


class Range(Spec):
    """Whole numbers when all that is written is whole. step None: 1 for whole numbers, else every number between."""

    min: int | float
    max: int | float
    step: Annotated[int | float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _rises(self) -> Range:
        if not self.min < self.max:
            raise ValueError(f"min must lie below max, found {self.min:g} and {self.max:g}")
        return self

    @property
    def whole(self) -> bool:
        return all(isinstance(value, int) for value in (self.min, self.max, self.step if self.step is not None else 1))


def _kind(value: Any) -> str:
    return "range" if isinstance(value, dict | Range) else "choices"


Field_ = Annotated[
    Annotated[Range, Tag("range")] | Annotated[tuple[JsonValue, ...], Field(min_length=1), Tag("choices")], Discriminator(_kind)
]


class RepoSpace(Spec):
    """Commits of the app's repository may be proposed: those of `branch` that descend from the baseline's."""

    branch: str


class Space(Spec):
    """config: keys of the arm's config, each a range or a list of choices. What is not named stays as in the baseline."""

    config: dict[str, Field_] = {}
    repo: RepoSpace | None = None

    @model_validator(mode="after")
    def _something(self) -> Space:
        if not self.config and self.repo is None:
            raise ValueError("nothing may be changed: name keys under config, or a branch under repo")
        return self


class BaselineSpec(Spec):
    ref: str
    config: dict[str, Any] = {}


class ProposerSpec(Spec):
    """search: `local` changes the incumbent a key at a time, `random` draws anywhere. command: asked in place of the search.

    env: names of variables that the command gets besides PATH, HOME, LANG and the like.
    """

    search: Literal["local", "random"] = "local"
    seed: int = 0
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    env: tuple[str, ...] = ()


class SplitRule(Spec):
    """holdout: worlds. Without it worlds are drawn by `seed`, until about `share` of the cases is kept apart.

    Where a goal has none, what the cases say (`split: dev | holdout`) holds, and worlds are drawn if they say nothing.
    """

    holdout: Annotated[tuple[Slug, ...], Field(min_length=1)] | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    seed: int = 0


class DecideRule(Spec):
    """alpha: of all questions to the holdout together. dev_alpha: below which p on dev a candidate is asked about."""

    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    dev_alpha: Annotated[float, Field(gt=0, lt=1)] = 0.1


class StopRule(Spec):
    """accepted: so many are enough. patience: candidates in a row without one accepted. candidates: in all. None: no such rule."""

    accepted: Annotated[int, Field(ge=1)] | None = None
    patience: Annotated[int, Field(ge=1)] | None = 10
    candidates: Annotated[int, Field(ge=1)] | None = 50


class Goal(Spec):
    """What is no part of a research's identity, and may be changed while it goes on: budget, stop, proposer, description."""

    name: Slug
    description: str | None = None
    dataset: Slug
    app: Slug
    baseline: BaselineSpec
    metric: Metric = Metric()
    space: Space
    proposer: ProposerSpec = ProposerSpec()
    split: SplitRule | None = None
    decide: DecideRule = DecideRule()
    stop: StopRule = StopRule()
    budget: Budget
    trials: Annotated[int, Field(ge=1)] = 1
    policy: Policy = "clip_cell"
    backend: BackendName = "local"
    limits: Limits | None = None
    judge: JudgeSpec | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> Goal:
        if len(self.name) > _MAX_NAME:
            raise ValueError(f"name: {self.name!r} has {len(self.name)} characters, at most {_MAX_NAME} are possible")
        if self.space.repo is not None and self.baseline.ref == WORKTREE:
            raise ValueError("space.repo: commits are proposed, so the baseline's ref must be a commit, and it is WORKTREE")
        if self.space.repo is not None and not self.space.config and self.proposer.command is None:
            raise ValueError("space: the search can't write commits: name keys under config, or a proposer.command")
        return self

    @property
    def source_digest(self) -> str:
        """Equal while the file means the same research, wherever its refs point."""
        free = {"budget", "stop", "proposer", "description"}
        return digest(self.model_dump(mode="json", exclude=free))

    def experiment(self) -> ExperimentSpec:
        """What is locked: all the cases, with the baseline as the one arm."""
        return ExperimentSpec(
            name=self.name,
            dataset=self.dataset,
            app=self.app,
            arms=(ArmSpec(name="baseline", ref=self.baseline.ref, config=self.baseline.config),),
            trials=self.trials,
            baseline="baseline",
            policy=self.policy,
            backend=self.backend,
            budget=self.budget,
            limits=self.limits,
            judge=self.judge,
            seed=self.seed,
        )
