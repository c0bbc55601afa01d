"""Sandboxes that nobody owns: found by their tags, ended when they are ours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from eval_pipeline.environment.locks import BuildLocks
from eval_pipeline.runner.backends import backend_named, build_locks
from eval_pipeline.runner.workbench import kept
from eval_pipeline.sandbox.base import Backend, SandboxInfo
from eval_pipeline.settings import Settings
from eval_pipeline.store.records import Records
from eval_pipeline.store.warm import WarmRows


@dataclass(frozen=True, kw_only=True)
class Found:
    """owner: attempt (an open attempt owns it), build (its layer is being built), person (one keeps it open), warm (it stands ready for a cell),
    nobody, or another installation's id.
    """

    info: SandboxInfo
    owner: str


async def survey(settings: Settings, records: Records, backend: str = "local") -> list[Found]:
    return await _survey(settings, records, backend_named(backend, settings, records))


async def _survey(settings: Settings, records: Records, backend: Backend) -> list[Found]:
    installation = records.ledger.installation_id()
    infos = await backend.list()
    # Read in this order: one that is taken in between is in both
    ready = {row.name for row in WarmRows(records.database, backend.name, backend.place).free() if row.left_s > 0}
    owned = records.views.open_sandboxes()
    locks = build_locks(settings, records, backend.name)
    now = records.database.now()
    return [Found(info=info, owner=_owner(info, installation, owned, ready, locks, now)) for info in infos]


def _owner(info: SandboxInfo, installation: str, owned: set[str], ready: set[str], locks: BuildLocks, now: datetime) -> str:
    if info.installation != installation:
        return info.installation
    if info.name in owned:
        return "attempt"
    if info.name in ready:
        return "warm"
    if kept(info, now):
        return "person"
    layer = info.tags.get("layer")
    return "build" if layer is not None and locks.held(layer) else "nobody"


async def reap(settings: Settings, records: Records, backend: str = "local") -> list[str]:
    """End what nobody owns; returns the names. Listed first, asked second: a sandbox's attempt is written before it is made."""
    asked = backend_named(backend, settings, records)
    ended: list[str] = []
    for found in await _survey(settings, records, asked):
        sandbox = await asked.find(found.info.name) if found.owner == "nobody" else None
        if sandbox is not None:
            await sandbox.terminate()
            ended.append(found.info.name)
    return ended
