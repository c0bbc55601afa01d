"""What an engine works with, put together once per process from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.environment.layers import Layers
from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.gateway.paths import Paths
from eval_pipeline.host import HostIdentity, host_identity, reachable_root
from eval_pipeline.runner.backends import Backends
from eval_pipeline.runner.persist import Persister
from eval_pipeline.sandbox.base import Backend
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import ArtifactStore, open_quarantine, open_store
from eval_pipeline.store.leases import Leases
from eval_pipeline.store.ledger import ExperimentRow, Ledger
from eval_pipeline.store.records import Records
from eval_pipeline.store.snapshots import restore
from eval_pipeline.store.views import Views
from eval_pipeline.vault.delivery import Secrets

GATEWAY_IDLE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Services:
    """The gateway's process is started by the first sandbox that needs it.

    at: the backend that is meant where none is named: this machine's, unless somebody asked for another (`on`).
    """

    settings: Settings
    records: Records
    store: ArtifactStore
    backends: Backends
    persister: Persister
    gateway: Gateway
    secrets: Secrets
    installation: str
    host: HostIdentity
    world_dirs: dict[str, Path]
    manifests: dict[str, SnapshotManifest]
    at: str = "local"

    def on(self, backend: str) -> Services:
        return replace(self, at=backend)

    @property
    def backend(self) -> Backend:
        return self.backends.named(self.at)[0]

    @property
    def layers(self) -> Layers:
        return self.backends.named(self.at)[1]

    @property
    def ledger(self) -> Ledger:
        return self.records.ledger

    @property
    def leases(self) -> Leases:
        return self.records.leases

    @property
    def views(self) -> Views:
        return self.records.views

    def prices_of(self, experiment: ExperimentRow) -> PriceBook:
        return PriceBook.from_rows(experiment.score.prices, f"{experiment.id}: prices")

    async def restore_worlds(self, experiment: ExperimentRow, keys: Sequence[str]) -> dict[str, Path]:
        """A snapshot's digest -> the directory where it is restored, for the worlds of `keys`. Raises SpecError when one was never packed."""
        for name in sorted({CellKey.parse(key).world for key in keys}):
            digest = experiment.run.worlds[name]
            if digest not in self.world_dirs:
                self.world_dirs[digest] = await asyncio.to_thread(self._restore, name, digest)
        return self.world_dirs

    def _restore(self, world: str, digest: str) -> Path:
        packed = self.ledger.snapshots([digest])
        if digest not in packed:
            raise SpecError(
                f"the world {world!r} has changed since the experiment was locked: its snapshot {digest[:12]} was never packed",
                hint="run the experiment's file again: it makes a new experiment of the world as it is",
            )
        self.manifests[digest] = packed[digest].manifest
        return restore(packed[digest], self.store, reachable_root(self.settings.state_dir) / "worlds")


@contextmanager
def open_services(settings: Settings, records: Records, backend: str = "local") -> Generator[Services]:
    gateway = Gateway(Paths.of(settings.state_dir), settings.state_dir, local=(), idle_s=GATEWAY_IDLE_S)
    installation = records.ledger.installation_id()
    store = open_store(settings)
    world_dirs: dict[str, Path] = {}
    manifests: dict[str, SnapshotManifest] = {}
    secrets = Secrets(settings, records)
    persister = Persister(
        store,
        records.verdicts,
        settings.state_dir,
        world_dirs,
        manifests,
        settings.persist_memory_mib,
        redactor_of=secrets.redactor,
        quarantine=open_quarantine(settings),
    )
    try:
        yield Services(
            settings=settings,
            records=records,
            store=store,
            backends=Backends(settings=settings, records=records, store=store, gateway=gateway, secrets=secrets),
            persister=persister,
            gateway=gateway,
            secrets=secrets,
            installation=installation,
            host=host_identity(settings.state_dir),
            world_dirs=world_dirs,
            manifests=manifests,
            at=backend,
        )
    finally:
        persister.close()
