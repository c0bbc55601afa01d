"""The backends that experiments name, each with its layers, made when the first experiment asks for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.environment.images import PhaseMeans
from eval_pipeline.environment.layers import Layers
from eval_pipeline.environment.locks import BuildLocks, HostLocks, LeaseLocks
from eval_pipeline.environment.package_index import build_egress
from eval_pipeline.gateway.client import Gateway
from eval_pipeline.host import host_identity
from eval_pipeline.runner.doing import waits_for
from eval_pipeline.runner.models import ModelAccess
from eval_pipeline.sandbox.base import Backend, SyncedSecret
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.build_leases import BuildLeases
from eval_pipeline.store.layers import LayerRows
from eval_pipeline.store.records import Records
from eval_pipeline.store.secret_versions import Phase

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal import ModalBackend
    from eval_pipeline.vault.delivery import Secrets

log = logging.getLogger(__name__)


def place_of(settings: Settings, backend: str) -> str:
    """Where a backend's refs mean something, without making the backend."""
    if backend == "modal":
        from eval_pipeline.sandbox.modal import place_of as modal_place

        return modal_place(settings.modal)
    return host_identity(settings.state_dir).place


def build_locks(settings: Settings, records: Records, backend: str) -> BuildLocks:
    """Of a backend's place: what is built on this host is only this host's to build, what is built on Modal any host's."""
    if backend == "modal":
        return LeaseLocks(BuildLeases(records.database, place_of(settings, backend)))
    return HostLocks(settings.state_dir / "locks")


def local_backend(settings: Settings, installation: str, gateway: Gateway | None = None) -> Backend:
    """gateway None: a sandbox that asks for egress is refused."""
    from eval_pipeline.sandbox.local.backend import Egress, LocalBackend

    egress = None if gateway is None else Egress(admit=gateway.admit, release=gateway.release)
    return LocalBackend(installation, settings.state_dir, egress, unsafe=settings.unsafe_no_isolation)


def modal_backend(settings: Settings, records: Records, installation: str) -> ModalBackend:
    from eval_pipeline.sandbox.modal import ModalBackend
    from eval_pipeline.store.buckets import Bucket
    from eval_pipeline.store.layer_refs import LedgerRefs

    per_s = settings.modal.creates_per_s
    creates = Bucket(records.database, "modal creates", per_s=per_s, burst=max(1.0, per_s))
    rows = LayerRows(records.database, ModalBackend.name, place_of(settings, ModalBackend.name))

    async def take_token() -> None:
        waits_for("a token to create its sandbox")
        await creates.take()
        waits_for("Modal to create its sandbox")

    return ModalBackend(installation, settings.modal, LedgerRefs(rows), take_token)


def backend_named(name: str, settings: Settings, records: Records, gateway: Gateway | None = None) -> Backend:
    installation = records.ledger.installation_id()
    if name == "modal":
        return modal_backend(settings, records, installation)
    return local_backend(settings, installation, gateway)


@dataclass(frozen=True, kw_only=True)
class Backends:
    settings: Settings
    records: Records
    store: ArtifactStore
    gateway: Gateway
    secrets: Secrets
    _made: dict[str, tuple[Backend, Layers]] = field(default_factory=dict[str, "tuple[Backend, Layers]"])

    def named(self, name: str) -> tuple[Backend, Layers]:
        if name not in self._made:
            backend = backend_named(name, self.settings, self.records, self.gateway)
            self._made[name] = backend, self._layers(backend)
        return self._made[name]

    async def aclose(self) -> None:
        """What is under way in this loop comes to an end; sandboxes live on."""
        for backend, _ in self._made.values():
            await backend.aclose()

    def _layers(self, backend: Backend) -> Layers:
        return Layers(
            backend,
            LayerRows(self.records.database, backend.name, backend.place),
            self.store,
            self.records.ledger.installation_id(),
            build_locks(self.settings, self.records, backend.name),
            self.settings.state_dir / "tmp",
            build_means=lambda manifest: self._build_means(manifest, backend.name),
            agent_means=lambda manifest: self._agent_means(manifest, backend.name),
            redactor=self.secrets.redactor,
        )

    def models(self, backend: str) -> ModelAccess:
        return ModelAccess(settings=self.settings, gateway=self.gateway, secrets=self.secrets, backend=backend)

    def synced(self, backend: str, phase: Phase, versions: Mapping[str, str]) -> SyncedSecret | None:
        """Where the backend's platform holds secrets of just these versions under a name."""
        from eval_pipeline.runner.modal_secrets import synced_secret

        return synced_secret(self.settings, self.records, phase, versions) if backend == "modal" else None

    def _build_means(self, manifest: AppManifest, backend: str) -> PhaseMeans:
        delivered = self.secrets.for_build(manifest)
        given = delivered.values
        reach = build_egress(manifest, given)
        for note in reach.notes:
            log.warning("%s: %s", manifest.name, note)
        return PhaseMeans(
            egress=reach.endpoints,
            egress_local=reach.local,
            env=reach.env,
            files=reach.files,
            secrets=given,
            synced=self.synced(backend, "build", delivered.versions),
        )

    def _agent_means(self, manifest: AppManifest, backend: str) -> PhaseMeans:
        given = self.secrets.for_agent(manifest)
        means = self.models(backend).without(manifest, given)
        return PhaseMeans(egress=means.egress, secrets=means.secrets, synced=self.synced(backend, "agent", given.versions))
