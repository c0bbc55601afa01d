"""An Experiment: cases x arms x trials, and what it may cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.ids import Slug
from eval_pipeline.domain.rubric import Policy

BackendName = Literal["local", "modal"]
WORKTREE = "WORKTREE"


class DatasetSpec(Spec):
    """`cases` are global case names with globs (`harbour.*`), or `tag:<tag>`."""

    name: Slug
    description: str | None = None
    cases: Annotated[tuple[str, ...], Field(min_length=1)]


class WarmSpec(Spec):
    """Sandboxes that stand ready on the branch's head: `count` for each world that one of the globs names, for `ttl_s`.

    max_cost_usd_per_hour: what all of them may cost; None: no cap.
    """

    count: Annotated[int, Field(ge=0, le=1000)]
    ttl_s: Annotated[float, Field(ge=60, le=86400)] = 3900.0
    worlds: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    max_cost_usd_per_hour: Annotated[float, Field(ge=0)] | None = None


class SecretRules(Spec):
    """max_age_days: by name, how old a secret's value may become before its rotation is due; `*`: of all others. None is bound without."""

    max_age_days: dict[str, Annotated[float, Field(gt=0)]] = {}

    def max_age_of(self, name: str) -> float | None:
        return self.max_age_days.get(name, self.max_age_days.get("*"))


class AppSpec(Spec):
    """`app.yaml`. repo: a git repository, relative to the folder that holds `worlds_src`; path: the app's folder in it.

    warm: None: every cell makes its own sandbox. backends: where images are built ahead and sandboxes stand ready, by the hour.
    limits: of every cell, where neither its case nor the experiment says otherwise. secrets: no part of what identifies a run.
    """

    name: Slug
    repo: str = "."
    path: str = "."
    branch: str = "main"
    backends: Annotated[tuple[BackendName, ...], Field(min_length=1)] = ("local",)
    warm: WarmSpec | None = None
    limits: Limits | None = None
    secrets: SecretRules = SecretRules()


class ArmSpec(Spec):
    """ref: any git revision, or WORKTREE for the uncommitted tree. config: passed to the agent as it stands."""

    name: Slug
    ref: str
    config: dict[str, Any] = {}


class Budget(Spec):
    """cost_usd: of everything the experiment pays for. cells: that may be begun. wall_s: during which it may be worked on."""

    cost_usd: Annotated[float, Field(gt=0)] | None = None
    cells: Annotated[int, Field(ge=1)] | None = None
    wall_s: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Budget:
        if self.cost_usd is None and self.cells is None and self.wall_s is None:
            raise ValueError("write cost_usd, cells or wall_s")
        return self


class JudgeSpec(Spec):
    """model: `anthropic:NAME` or `openai:NAME`. votes: calls a criterion; an even split of them is settled by one more.

    base_url: of a server that speaks as the provider does; None: the provider's own.
    """

    model: str
    votes: Annotated[int, Field(ge=1)] = 1
    base_url: str | None = None
    temperature: Annotated[float, Field(ge=0)] = 0.0

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]

    @property
    def model_name(self) -> str:
        return self.model.partition(":")[2]


class ScheduleSpec(Spec):
    """cron: minute, hour, day of the month, month, day of the week. timezone: UTC, or a name of the time zone database."""

    cron: str
    timezone: str = "UTC"


class ExperimentSpec(Spec):
    """`experiments/<name>.yaml`. budget: None means unlimited. limits: of every cell, where its case does not say otherwise.

    schedule: when Dagster starts it, on its refs as they are then; no part of any lock. Cron's five fields alone are in UTC.
    """

    name: Slug
    description: str | None = None
    dataset: Slug
    app: Slug
    arms: Annotated[tuple[ArmSpec, ...], Field(min_length=1)]
    trials: Annotated[int, Field(ge=1)] = 1
    baseline: Slug | None = None
    policy: Policy = "clip_cell"
    backend: BackendName = "local"
    budget: Budget | None = None
    limits: Limits | None = None
    judge: JudgeSpec | None = None
    seed: int = 0
    schedule: ScheduleSpec | None = None

    @field_validator("schedule", mode="before")
    @classmethod
    def _cron_alone(cls, schedule: object) -> object:
        return {"cron": schedule} if isinstance(schedule, str) else schedule

    @field_validator("arms")
    @classmethod
    def _named_apart(cls, arms: tuple[ArmSpec, ...]) -> tuple[ArmSpec, ...]:
        names = [arm.name for arm in arms]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"arm names appear twice: {', '.join(twice)}")
        return arms

    @field_validator("baseline")
    @classmethod
    def _an_arm(cls, baseline: str | None, info: ValidationInfo) -> str | None:
        names = [arm.name for arm in info.data.get("arms", ())]
        if names and baseline is not None and baseline not in names:
            raise ValueError(f"{baseline!r} is not one of the arms: {', '.join(names)}")
        return baseline
