"""Pack a world and write it into the ledger: the one way, for the asset and for the CLI."""

from __future__ import annotations

from dataclasses import dataclass

from eval_pipeline.specs.library import World
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.ledger import Ledger
from eval_pipeline.store.snapshots import pack_world


@dataclass(frozen=True, kw_only=True)
class Recorded:
    world: str
    digest: str
    n_files: int
    size_bytes: int


def record_snapshot(world: World, store: ArtifactStore, ledger: Ledger) -> Recorded:
    """Stored first, recorded after: a recorded snapshot can always be restored."""
    snapshot = pack_world(world.folder, world.spec, store)
    manifest = snapshot.manifest
    ledger.add_snapshot(world.spec.id, snapshot, world.spec.made_with)
    return Recorded(world=world.spec.id, digest=snapshot.digest, n_files=manifest.n_files, size_bytes=manifest.size_bytes)
