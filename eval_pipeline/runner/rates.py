"""What a sandbox costs now: asked of who bills it, else of the price rows that come with the program."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime

from eval_pipeline.errors import EvalsError
from eval_pipeline.scoring.sandbox_prices import SandboxRates, billed, listed
from eval_pipeline.settings import Settings

log = logging.getLogger(__name__)


async def current_rates(settings: Settings, backend: str) -> SandboxRates | None:
    """None: not known for that backend. An account that can't be asked costs nobody a run: the row stands in, and says so."""
    if backend != "modal":
        return listed(backend)
    row = listed(backend, settings.modal.region)
    if row is None:
        return None
    from eval_pipeline.sandbox.modal_client import Cloud

    try:
        rates = await Cloud(settings.modal).billing_rates()
    except EvalsError as error:
        log.warning("Modal's billing rates could not be had: %s", error)
        return replace(row, source=f"{row.source}; the account could not be asked")
    found = billed(row, rates, datetime.now(UTC).date().isoformat())
    return found or replace(row, source=f"{row.source}; the account's rates name no sandboxes")
