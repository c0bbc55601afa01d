"""What an engine works with, put together once per process from the settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.environment.images import PhaseMeans
from eval_pipeline.environment.layers import Layers
from eval_pipeline.environment.package_index import build_egress
from eval_pipeline.errors import SpecError
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.gateway.paths import Paths
from eval_pipeline.host import HostIdentity, host_identity, reachable_root
from eval_pipeline.runner.persist import Persister
from eval_pipeline.sandbox.base import Backend
from eval_pipeline.sandbox.local.backend import Egress, LocalBackend
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import ArtifactStore, open_store
from eval_pipeline.store.layers import LayerRows
from eval_pipeline.store.leases import Leases
from eval_pipeline.store.ledger import ExperimentRow, Ledger
from eval_pipeline.store.records import Records
from eval_pipeline.store.snapshots import restore
from eval_pipeline.store.views import Views
from eval_pipeline.vault.delivery import Secrets

log = logging.getLogger(__name__)

GATEWAY_IDLE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Services:
    """The gateway's process is started by the first sandbox that needs it."""

    settings: Settings
    records: Records
    store: ArtifactStore
    backend: Backend
    layers: Layers
    persister: Persister
    gateway: Gateway
    secrets: Secrets
    installation: str
    host: HostIdentity
    world_dirs: dict[str, Path]
    manifests: dict[str, SnapshotManifest]

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
        """World name -> the directory of its restored snapshot, for the worlds of `keys`. Raises SpecError when one was never packed."""
        for name in sorted({CellKey.parse(key).world for key in keys}):
            if name not in self.world_dirs:
                self.world_dirs[name] = await asyncio.to_thread(self._restore, name, experiment.run.worlds[name])
        return self.world_dirs

    def _restore(self, world: str, digest: str) -> Path:
        packed = self.ledger.snapshots([digest])
        if digest not in packed:
            raise SpecError(
                f"the world {world!r} has changed since the experiment was locked: its snapshot {digest[:12]} was never packed",
                hint="run the experiment's file again: it makes a new experiment of the world as it is",
            )
        self.manifests[world] = packed[digest].manifest
        return restore(packed[digest], self.store, reachable_root(self.settings.state_dir) / "worlds")


def build_locks(settings: Settings) -> Path:
    return settings.state_dir / "locks"


@contextmanager
def open_services(settings: Settings, records: Records) -> Generator[Services]:
    gateway = Gateway(Paths.of(settings.state_dir), settings.state_dir, local=(), idle_s=GATEWAY_IDLE_S)
    installation = records.ledger.installation_id()
    scratch = settings.state_dir / "tmp"
    egress = Egress(admit=gateway.admit, release=gateway.release)
    backend = LocalBackend(installation, settings.state_dir, egress, unsafe=settings.unsafe_no_isolation)
    store = open_store(settings)
    world_dirs: dict[str, Path] = {}
    manifests: dict[str, SnapshotManifest] = {}
    persister = Persister(store, records.verdicts, scratch, world_dirs, manifests)
    rows = LayerRows(records.database, backend.name, backend.place)
    secrets = Secrets(settings, records)

    def build_means(manifest: AppManifest) -> PhaseMeans:
        given = secrets.for_build(manifest).values
        reach = build_egress(manifest, given)
        for note in reach.notes:
            log.warning("%s: %s", manifest.name, note)
        return PhaseMeans(
            egress=reach.endpoints,
            egress_local=reach.local,
            env=reach.env,
            files=reach.files,
            secrets=given,
        )

    def agent_means(manifest: AppManifest) -> PhaseMeans:
        return PhaseMeans(egress=manifest.egress, secrets=secrets.for_agent(manifest).values)

    try:
        yield Services(
            settings=settings,
            records=records,
            store=store,
            backend=backend,
            layers=Layers(
                backend,
                rows,
                store,
                installation,
                build_locks(settings),
                scratch,
                build_means=build_means,
                agent_means=agent_means,
            ),
            persister=persister,
            gateway=gateway,
            secrets=secrets,
            installation=installation,
            host=host_identity(settings.state_dir),
            world_dirs=world_dirs,
            manifests=manifests,
        )
    finally:
        persister.close()
