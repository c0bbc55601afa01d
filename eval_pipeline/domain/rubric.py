"""A Rubric: weighted criteria, each decided by a Check (a program) or a Judge (an LLM)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.ids import Slug

DEFAULT_CAP = 5
Policy = Literal["clip_cell", "raw", "minmax", "all_pass"]


class Criterion(Spec):
    """`points` may be negative: the text is then something a good answer does not do.

    per_occurrence: the verdict is a count 0..cap instead of 0/1. cap: None means 5 for such a criterion, 1 otherwise.
    """

    id: Slug
    text: str
    points: float
    check: dict[str, Any] | None = None
    judge: bool = False
    per_occurrence: bool = False
    cap: Annotated[int, Field(ge=1)] | None = None
    critical: bool = False
    group: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Criterion:
        if self.points == 0:
            raise ValueError(f"criterion {self.id!r} is worth 0 points: remove it or give it a weight")
        if (self.check is None) == (not self.judge):
            raise ValueError(f"criterion {self.id!r} needs exactly one of `check:` and `judge: true`")
        if self.cap is not None and not self.per_occurrence:
            raise ValueError(f"criterion {self.id!r} has a cap but is not per_occurrence")
        return self

    @property
    def effective_cap(self) -> int:
        return (self.cap or DEFAULT_CAP) if self.per_occurrence else 1


class Rubric(Spec):
    """pass_at: the score from which a cell passes, 1.0 when omitted.

    policy: what the rubric was written for. The experiment sets the policy, and one with another is refused; no part of any lock.
    """

    pass_at: Annotated[float, Field(le=1)] = 1.0
    policy: Annotated[Policy | None, Field(exclude=True)] = None
    criteria: tuple[Criterion, ...]

    @model_validator(mode="after")
    def _scorable(self) -> Rubric:
        ids = [criterion.id for criterion in self.criteria]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise ValueError(f"criterion ids appear twice: {', '.join(twice)}")
        if not any(criterion.points > 0 for criterion in self.criteria):
            raise ValueError("no criterion has positive points: a score would be undefined")
        return self
