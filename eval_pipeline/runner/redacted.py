"""What is written of an attempt, without the secrets that its sandbox or its services may have printed."""

from __future__ import annotations

from dataclasses import replace

from eval_pipeline.domain.cell import AttemptResult
from eval_pipeline.domain.handover import Handover
from eval_pipeline.vault.redaction import Redactor


def redacted(result: AttemptResult, redactor: Redactor) -> AttemptResult:
    return replace(
        result,
        error=None if result.error is None else redactor.text(result.error),
        usage=redactor.any(result.usage),
        evidence=redactor.any(result.evidence),
    )


def redacted_end(end: Handover, redactor: Redactor) -> Handover:
    return Handover.model_validate(redactor.any(end.model_dump(mode="json")), strict=False) if redactor else end
