"""An attempt whose agent has ended, as whoever brings it to its end must know it: not where it ran, only what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from eval_pipeline.domain.base import Spec
from eval_pipeline.domain.outcome import ServiceEnd, Stop
from eval_pipeline.domain.usage import Usage


class Measured(Spec):
    """What the model gateway saw. usages: one sum a model. unmeasured: calls of which it doesn't know all that they used.

    retried: tries that were cured or not. faults: what was not, in words, the first few. stop: the limit that refused a call.
    last_fault: of the call that ended last; None: that one was answered, or was the agent's own mistake.
    """

    usages: Sequence[Usage]
    calls: int
    unmeasured: int
    retried: int
    n_faults: int
    faults: Sequence[str]
    stop: Stop | None
    last_fault: str | None = None


class Handover(Spec):
    """exit_code, elapsed_s: of the agent; None when there is no record of it. faults: of the platform. limits: those hit, in words.

    bundle: the digest of its output in the store, with `facts` of its collection; None: it still lies in the sandbox.
    state_before: the artifact to compare the state with; None: none is. day: whose prices hold. evidence: for the attempt's record.
    measured: None where no model gateway stood between.
    """

    exit_code: int | None
    elapsed_s: float | None
    stop: Stop | None
    faults: Sequence[str]
    limits: Sequence[str]
    service: ServiceEnd | None
    state_before: str | None
    day: date
    evidence: dict[str, Any]
    bundle: str | None = None
    facts: dict[str, Any] = {}
    measured: Measured | None = None
