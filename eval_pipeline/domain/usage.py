"""What a model call used, in disjoint token classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add, attrgetter
from typing import Annotated, Any

from pydantic import Field, model_validator

from eval_pipeline.domain.base import Spec

Count = Annotated[int, Field(ge=0)]


class Usage(Spec):
    """Tokens of one or more calls to one model; no token is in two classes.

    output includes reasoning; `reasoning` is a sub-count of it, kept for information. calls 0: how many is not known.
    """

    model: str
    input_uncached: Count = 0
    cache_read: Count = 0
    cache_write_5m: Count = 0
    cache_write_1h: Count = 0
    output: Count = 0
    reasoning: Count = 0
    calls: Count = 1

    @model_validator(mode="after")
    def _sub_count(self) -> Usage:
        if self.reasoning > self.output:
            raise ValueError(f"reasoning ({self.reasoning}) is a part of output ({self.output}) and can't exceed it")
        return self

    @property
    def tokens(self) -> int:
        return self.input_uncached + self.cache_read + self.cache_write_5m + self.cache_write_1h + self.output

    def plus(self, other: Usage) -> Usage:
        """Raise ValueError when the models differ."""
        if other.model != self.model:
            raise ValueError(f"usage of {self.model!r} and {other.model!r} can't be added")
        mine, theirs = self.model_dump(exclude={"model"}), other.model_dump(exclude={"model"})
        return Usage(model=self.model, **{name: mine[name] + theirs[name] for name in mine})


class Total:
    """Usages of one model, added up: one at a time, of very many."""

    def __init__(self) -> None:
        self._counts = [0] * len(COUNTS)

    def add(self, counts: Sequence[int]) -> None:
        """As `counts_from_event` gives them."""
        self._counts = list(map(add, self._counts, counts))

    def usage(self, model: str) -> Usage:
        return Usage(model=model, **dict(zip(COUNTS, self._counts, strict=True)))


COUNTS: dict[str, int] = {name: field.default for name, field in Usage.model_fields.items() if name != "model"}
"""Each with what it is where nothing is said."""
_counts: Callable[[Usage], tuple[int, ...]] = attrgetter(*COUNTS)
_FIELDS = frozenset(Usage.model_fields)
MODEL_MAX_CHARS = 200
COUNT_MAX = 10**9


def usage_from_event(event: dict[str, Any]) -> Usage:
    """Read a transcript's `usage` event. Unknown keys are ignored; raises ValueError on a bad or missing count or name.

    The bounds are far above any model's: what an agent claims must still fit where it is stored and added up.
    """
    usage = Usage.model_validate({key: value for key, value in event.items() if key in _FIELDS})
    if len(usage.model) > MODEL_MAX_CHARS or not usage.model.isprintable():
        raise ValueError(f"{usage.model[:MODEL_MAX_CHARS]!r} is not the name of a model")
    if max(_counts(usage)) > COUNT_MAX:
        raise ValueError(f"no event says more than {COUNT_MAX} in one count")
    return usage


def counts_from_event(event: dict[str, Any]) -> tuple[str, Sequence[int]]:
    """What `usage_from_event` reads and raises, as the model's name and what `Total` adds up."""
    usage = usage_from_event(event)
    return usage.model, _counts(usage)


def total_by_model(usages: list[Usage]) -> list[Usage]:
    """One sum a model, in order of first use."""
    totals: dict[str, Usage] = {}
    for usage in usages:
        seen = totals.get(usage.model)
        totals[usage.model] = seen.plus(usage) if seen else usage
    return list(totals.values())
