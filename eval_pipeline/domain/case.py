"""A Case: a prompt, its rubric, limits and tags, about one World."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.ids import Slug
from eval_pipeline.domain.rubric import Rubric


class Limits(Spec):
    """What one attempt may use. Reached: agent_timeout (wall_s) or budget_exceeded (cost_usd, turns)."""

    wall_s: Annotated[float, Field(gt=0)] = 900.0
    cost_usd: Annotated[float, Field(gt=0)] | None = None
    turns: Annotated[int, Field(ge=1)] | None = None


class CaseSpec(Spec):
    """`cases/<id>.yaml`.

    reference: for humans and judges, never shown to an agent. source: where an imported case comes from.
    """

    id: Slug
    prompt: Annotated[str, Field(min_length=1)]
    rubric: Rubric
    deliverables: tuple[str, ...] = ()
    limits: Limits = Limits()
    tags: tuple[Slug, ...] = ()
    reference: str | None = None
    split: Literal["dev", "holdout"] | None = None
    source: dict[str, str] = {}


class Case(Spec):
    """A case with the world it is about. `name` is global."""

    world: Slug
    spec: CaseSpec

    @property
    def name(self) -> str:
        return f"{self.world}.{self.spec.id}"
