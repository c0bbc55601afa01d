"""What all cells of one experiment share in one engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.domain.budget import SandboxTerms, sandbox_terms
from eval_pipeline.domain.case import Limits
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.environment.images import AppSource
from eval_pipeline.environment.layers import Layers
from eval_pipeline.errors import Cancelled
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.host import HostIdentity
from eval_pipeline.runner.models import ModelAccess
from eval_pipeline.runner.persist import Persister
from eval_pipeline.runner.slots import Slots
from eval_pipeline.runner.warm import Stock
from eval_pipeline.sandbox.base import Backend, SyncedSecret
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.scoring.sandbox_prices import SandboxRates
from eval_pipeline.store.ledger import ExperimentRow, Ledger
from eval_pipeline.vault.delivery import Secrets


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """world_dirs: of the restored snapshots by digest. synced: where the platform holds an agent's secrets of these versions.

    rates: None: what a sandbox costs there is not known.
    hands_over: whether somebody else is to read the output that comes now.
    """

    experiment: ExperimentRow
    ledger: Ledger
    backend: Backend
    layers: Layers
    warm: Stock
    source: AppSource
    world_dirs: dict[str, Path]
    persister: Persister
    prices: PriceBook
    rates: SandboxRates | None
    installation: str
    host: HostIdentity
    gateway: Gateway
    secrets: Secrets
    models: ModelAccess
    synced: Callable[[Mapping[str, str]], SyncedSecret | None]
    setups: Slots
    cancelled: Callable[[], bool]
    hands_over: Callable[[], bool]

    def terms(self, arm: LockedArm, limits: Limits) -> SandboxTerms:
        resources = arm.manifest.resources
        rates = self.rates
        per_s = None if rates is None else rates.usd_per_s(resources.cpu, resources.memory_mib)
        return sandbox_terms(limits, per_s, None if rates is None else rates.version)

    def stop_if_cancelled(self) -> None:
        """Raises Cancelled."""
        if self.cancelled():
            raise Cancelled("cancelled on request")
