"""What the sandboxes of an experiment will take, before any of them is there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.scoring.sandbox_prices import SandboxRates


@dataclass(frozen=True, kw_only=True)
class SandboxEstimate:
    """Of all open cells, one attempt each. cost_usd None: no rate is known; rate and source then too.

    seconds_from: where the seconds come from, in words. at_most: they are an upper bound of the agents' time, no expectation.
    """

    seconds: float
    seconds_from: str
    at_most: bool
    cost_usd: Decimal | None
    rate: str | None
    source: str | None


@dataclass(frozen=True, kw_only=True)
class ModelEstimate:
    """Of all open cells, one attempt each. cost_usd None: nothing is known, source then too. at_most: an upper bound, no expectation."""

    cost_usd: Decimal | None
    source: str | None
    at_most: bool = False


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """From the first sandbox to the last, when so many run at a time. at_most: by the time limits, no expectation."""

    seconds: float
    concurrency: int
    at_most: bool


def estimate_time(sandboxes: SandboxEstimate, n_open: int, concurrency: int) -> TimeEstimate:
    rounds = math.ceil(n_open / concurrency)
    seconds = rounds * sandboxes.seconds / n_open if n_open else 0.0
    return TimeEstimate(seconds=seconds, concurrency=concurrency, at_most=sandboxes.at_most)


Seen = tuple[Decimal, int] | None


def estimate_models(run: RunLock, open_cells: Sequence[CellKey], of_arm: Mapping[str, Seen], of_app: Seen) -> ModelEstimate:
    """of_arm, of_app: the mean cost of earlier cells, and their number. For an arm without any, the app's; without these, the limits."""
    total, sources, at_most = Decimal(0), dict[str, None](), False
    for key in open_cells:
        limit = run.case(key.case_name).limits.cost_usd
        if (seen := of_arm.get(key.arm)) is not None:
            sources[f"the mean of {_earlier(seen[1])} of the arm {key.arm} as it is"] = None
        elif (seen := of_app) is not None:
            sources[f"the mean of {_earlier(seen[1])} of {run.app} in other arms"] = None
        elif limit is not None:
            seen, at_most = (Decimal(str(limit)), 1), True
            sources["the cases' limits.cost_usd"] = None
        else:
            return ModelEstimate(cost_usd=None, source=None)
        total += seen[0]
    return ModelEstimate(
        cost_usd=total.quantize(Decimal("1e-6")), source="; ".join(sources) or "no cell is open", at_most=at_most
    )


def estimate(
    run: RunLock, open_cells: Sequence[CellKey], rates: SandboxRates | None, seen: tuple[float, int] | None
) -> SandboxEstimate:
    """seen: the mean seconds of earlier sandboxes of this app there, and their number; None: there was none."""
    seconds = {key: seen[0] if seen else run.case(key.case_name).limits.wall_s for key in open_cells}
    cost = None
    if rates is not None:
        asked = {arm.name: arm.manifest.resources for arm in run.arms}
        per_s = {name: rates.usd_per_s(one.cpu, one.memory_mib) for name, one in asked.items()}
        cost = sum((per_s[key.arm] * Decimal(str(one_s)) for key, one_s in seconds.items()), Decimal(0))
    return SandboxEstimate(
        seconds=sum(seconds.values()),
        seconds_from=f"the mean of {_earlier(seen[1])} of {run.app} on {run.backend}" if seen else "the cases' limits.wall_s",
        at_most=seen is None,
        cost_usd=None if cost is None else cost.quantize(Decimal("1e-6")),
        rate=None if rates is None else rates.version,
        source=None if rates is None else rates.source,
    )


def _earlier(n: int) -> str:
    return "1 earlier cell" if n == 1 else f"{n} earlier cells"
