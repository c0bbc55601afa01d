"""What a reader hands on of one arm, and the pieces that readers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from eval_pipeline.analysis.imported.table import ImportedRow, ImportedSource
from eval_pipeline.domain.usage import COUNT_MAX, MODEL_MAX_CHARS, Usage
from eval_pipeline.errors import SpecError

_LONGEST = 100
Scalar = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class ReadRow:
    """row: without its score. scores: all that the file has for it, by name."""

    row: ImportedRow
    scores: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True)
class ReadArm:
    """names: the model, and the agent or solver ("" without one); version: what tells two of the same name apart. task None: no word of one."""

    source: ImportedSource
    names: tuple[str, str]
    version: str
    task: str | None
    config: Mapping[str, Any]
    rows: Sequence[ReadRow]
    n_absent: int
    notes: Sequence[str]


def usage_of(where: str, *, model: str, **counts: int) -> Usage:
    """How many calls it took is not known. Raises SpecError for counts that can't be."""
    if any(not 0 <= count <= COUNT_MAX for count in counts.values()):
        raise SpecError(f"a count of tokens is below 0 or above {COUNT_MAX}", where=where)
    try:
        return Usage(model=model[:MODEL_MAX_CHARS], calls=0, **counts)
    except ValidationError:
        raise SpecError("its usage can't be read", where=where) from None


def cost_of(parts: Sequence[float | None], where: str) -> float | None:
    """The sum; None when one is not known, or there are none. Raises SpecError for what is no amount."""
    known = [part for part in parts if part is not None]
    if any(not math.isfinite(part) or part < 0 for part in known):
        raise SpecError("its cost is below 0 or no number", where=where)
    return math.fsum(known) if known and len(known) == len(parts) else None


def number(value: Scalar) -> float | None:
    """As Inspect's `value_to_float` has it; None for text that stands for no number, and for what is not finite: it was not scored."""
    if isinstance(value, str):
        known = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}.get(value)
        known = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}.get(value.lower()) if known is None else known
        if known is not None:
            return known
        try:
            value = float(value) if len(value) <= _LONGEST else None
        except ValueError:
            return None
    try:
        found = None if value is None else float(value)
    except OverflowError:
        return None
    return found if found is not None and math.isfinite(found) else None
