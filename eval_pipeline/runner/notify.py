"""What is worth a notice, found in the ledger, and the notices sent: by a sensor, and by an engine at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from eval_pipeline.domain.outcome import MAX_INFRA_RATE
from eval_pipeline.runner.webhook import post
from eval_pipeline.settings import Settings
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.notices import Notices
from eval_pipeline.store.records import Records
from eval_pipeline.store.views import Tally
from eval_pipeline.vault.delivery import SecretStatus

if TYPE_CHECKING:
    from eval_pipeline.analysis.board import Leaderboard

BUDGET_SHARE = Decimal("0.8")
MIN_INFRA_FAILURES = 2
MAX_TRIES = 24
_BACKOFF_S = (15.0, 3600.0)


def tell_state(settings: Settings, records: Records) -> None:
    """Record what is so now: budgets, infrastructure, leaks. Nothing without a webhook: turned on later, it does not tell of old times."""
    if settings.webhook_url is None:
        return
    notices = Notices(records.database)
    notices.add_leaked()
    for pulse in records.views.pulses():
        spent, budget = pulse.spent_usd, pulse.budget_usd
        if budget is not None and budget > 0 and spent >= BUDGET_SHARE * budget:
            text = f"{pulse.experiment}: {spent:.2f} of {budget:.2f} USD are spent ({spent / budget:.0%} of its budget)"
            notices.add(f"budget:{pulse.experiment}:{budget.normalize():f}", text)
        failures, ended = pulse.n_infra, pulse.n_ended
        if failures >= MIN_INFRA_FAILURES and failures > MAX_INFRA_RATE * ended:
            text = f"{pulse.experiment}: {failures} of {ended} attempts failed by infrastructure ({failures / ended:.0%})"
            notices.add(f"infra:{pulse.experiment}", text)


def tell_finished(settings: Settings, records: Records, experiment: ExperimentRow, board: Leaderboard) -> None:
    """Once for each time that all its cells have come to an end."""
    tally = records.views.tallies(experiment.id)[experiment.id]
    if settings.webhook_url is not None and tally.at_rest and tally.finished_at is not None:
        key = f"finished:{experiment.id}:{tally.finished_at.isoformat()}"
        Notices(records.database).add(key, verdict_line(board, tally))


def verdict_line(board: Leaderboard, tally: Tally) -> str:
    """One line: what is valid, each arm's score with its interval, what it cost."""
    arms = "; ".join(
        f"{row.arm}{' (baseline)' if row.arm == board.baseline else ''} {_score(row.score)}"
        + ("" if row.ci_low is None else f" [{_score(row.ci_low)}, {_score(row.ci_high)}]")
        for row in board.arms
    )
    n_cells = sum(row.n_cells for row in board.arms)
    why = f" ({'; '.join(board.reasons)})" if board.reasons else ""
    leaked = f", {board.leaked_sandboxes} leaked sandboxes" if board.leaked_sandboxes else ""
    valid = f"{tally.n_done} of {n_cells} cells valid"
    return f"{board.experiment} finished: {valid}; {arms}; {board.status}{why}; {board.spent_usd:.2f} USD{leaked}"


def tell_stale_secrets(settings: Settings, records: Records, stale: Sequence[SecretStatus]) -> None:
    """Once for each time that a secret ceases to be found."""
    if settings.webhook_url is None:
        return
    for status in stale:
        declared, synced = status.declared, status.synced
        since = "never" if synced is None else synced.last_seen.isoformat()
        text = f"the secret {declared.name} ({declared.phase}) is in no source; last found: {since}"
        Notices(records.database).add(f"secret:{declared.name}:{declared.phase}:{since}", text)


def tell_stale_image(settings: Settings, records: Records, backend: str, image_commit: str | None, why: str) -> None:
    """Once for each image that is left behind its branch. image_commit None: there is no image."""
    if settings.webhook_url is not None:
        text = f"the app's image on {backend} ({(image_commit or 'none')[:12]}) is stale: {why}"
        Notices(records.database).add(f"image:{backend}:{image_commit}", text)


def send(settings: Settings, records: Records, within_s: float = 30.0) -> int:
    """Send what is due, oldest first; what fails is due again later. Returns how many were sent."""
    if settings.webhook_url is None:
        return 0
    notices, until, n_sent = Notices(records.database), time.monotonic() + within_s, 0
    while time.monotonic() < until and (notice := notices.take()) is not None:
        reply = post(settings.webhook_url, notice.text, f"{records.ledger.installation_id()}:{notice.key}")
        if reply.error is None:
            notices.sent(notice.key)
            n_sent += 1
        else:
            notices.failed(notice.key, reply.error, _again_in_s(notice.tries, reply.retry_after_s))
    return n_sent


def _again_in_s(tries: int, asked_s: float | None) -> float | None:
    first_s, most_s = _BACKOFF_S
    if tries >= MAX_TRIES:
        return None
    return min(most_s, max(asked_s or 0.0, first_s * 2 ** min(tries - 1, 16)))


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
