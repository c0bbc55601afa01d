"""A Case: a prompt, its rubric, limits and tags, about one World."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from eval_pipeline.domain.base import Grown, Spec
from eval_pipeline.domain.ids import Slug, check_written
from eval_pipeline.domain.rubric import Rubric


class Limits(Grown):
    """What one attempt may use. Reached: agent_timeout (wall_s) or budget_exceeded (cost_usd, tokens, turns).

    tokens: of all classes, read, written and cached. None: no such limit.
    """

    _LATER: ClassVar[tuple[str, ...]] = ("tokens",)

    wall_s: Annotated[float, Field(gt=0)] = 900.0
    cost_usd: Annotated[float, Field(gt=0)] | None = None
    turns: Annotated[int, Field(ge=1)] | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None

    def over(self, *wider: Limits | None) -> Limits:
        """With what is not written here taken from the first of `wider` that says it. A written null is said: no limit."""
        said: dict[str, float | int | None] = {}
        for limits in (self, *wider):
            if limits is not None:
                said = {name: getattr(limits, name) for name in limits.model_fields_set} | said
        return Limits.model_validate(said)


class CaseSpec(Spec):
    """`cases/<id>.yaml`.

    reference: for humans and judges, never shown to an agent. source: where an imported case comes from.
    """

    id: Slug
    prompt: Annotated[str, Field(min_length=1)]
    rubric: Rubric
    deliverables: tuple[Annotated[str, AfterValidator(check_written)], ...] = ()
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
