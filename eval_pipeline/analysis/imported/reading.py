"""What a reader hands on of one arm, and the pieces that readers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    """names: the model, and the agent or solver ("" without one); version: what tells two of the same name apart. task None: no word of one.

    n_absent: planned cells of this arm whose case is not told; None: not known. n_unplaced: those of the source whose arm is not told
    either; every arm of a source has the same number and the same notes.
    """

    source: ImportedSource
    names: tuple[str, str]
    version: str
    task: str | None
    config: Mapping[str, Any]
    rows: Sequence[ReadRow]
    n_absent: int | None
    notes: Sequence[str]
    n_unplaced: int = 0


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Of one model, by the columns of the scored table. None: not told. input_tokens: of all classes of input together."""

    input_uncached: int | None
    output_tokens: int | None
    input_tokens: int | None
    cache_read: int | None
    cache_write_5m: int | None = None
    cache_write_1h: int | None = None
    reasoning_tokens: int | None = None


def usage_of(parts: Sequence[tuple[str, Tokens]], where: str) -> tuple[list[Usage] | None, list[str]]:
    """By model, and the columns that are not told, of which a usage holds 0; None where what went in or came out is not told of a part.

    How many calls it took is not known. Raises SpecError for counts that can't be.
    """
    counts = [(column, count) for _, tokens in parts for column, count in asdict(tokens).items()]
    if any(count is not None and not 0 <= count <= COUNT_MAX for _, count in counts):
        raise SpecError(f"a count of tokens is below 0 or above {COUNT_MAX}", where=where)
    untold = {column for column, count in counts if count is None}
    if not parts or untold & {"input_uncached", "output_tokens"}:
        return None, []
    return [_usage(model, tokens, where) for model, tokens in parts], sorted(untold)


def _usage(model: str, tokens: Tokens, where: str) -> Usage:
    try:
        return Usage(
            model=model[:MODEL_MAX_CHARS],
            input_uncached=tokens.input_uncached or 0,
            cache_read=tokens.cache_read or 0,
            cache_write_5m=tokens.cache_write_5m or 0,
            cache_write_1h=tokens.cache_write_1h or 0,
            output=tokens.output_tokens or 0,
            reasoning=tokens.reasoning_tokens or 0,
            calls=0,
        )
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
