"""Usage events that are as they should be, which all but a few are: read and checked at once, from JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, core_schema

from eval_pipeline.domain.usage import COUNT_MAX, COUNTS, MODEL_MAX_CHARS

_MAX_BYTES = 1 << 14  # the parser ends its process when memory runs out, and takes a hundred times as much
_counts: Callable[[dict[str, Any]], tuple[int, ...]] = itemgetter(*COUNTS)


def counts_from_line(line: bytes) -> tuple[str, Sequence[int]] | None:
    """What `counts_from_event` gives, in a quarter of the time of `json.loads` and it. None: another event, or one to be read with care."""
    if len(line) > _MAX_BYTES:
        return None
    try:
        event: dict[str, Any] = _EVENT.validate_json(line)
    except ValidationError:
        return None
    model = event["model"]
    return (model, _counts(event)) if model.isprintable() and event["reasoning"] <= event["output"] else None


def _event() -> SchemaValidator:
    count = core_schema.int_schema(strict=True, ge=0, le=COUNT_MAX)
    fields: dict[str, core_schema.CoreSchema] = {
        "type": core_schema.literal_schema(["usage"]),
        "model": core_schema.str_schema(strict=True, max_length=MODEL_MAX_CHARS),
        **{name: core_schema.with_default_schema(count, default=default) for name, default in COUNTS.items()},
    }
    return SchemaValidator(
        core_schema.typed_dict_schema({name: core_schema.typed_dict_field(one) for name, one in fields.items()})
    )


_EVENT = _event()
