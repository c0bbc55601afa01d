"""Secrets on Modal: one a phase of an app, `evals-APP-PHASE`, written again whenever its content changes.

Two keys mark each: whose it is, and which version. So a look-up that requires them finds our own, of the version that a cell was given, or
nothing; and what another installation wrote under the name is never replaced.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_pipeline.domain.canonical import digest
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.backends import build_locks, place_of
from eval_pipeline.sandbox.base import SyncedSecret
from eval_pipeline.settings import Settings
from eval_pipeline.store.modal_secrets import ModalSecretRow, ModalSecretRows
from eval_pipeline.store.records import Records
from eval_pipeline.store.secret_versions import Phase
from eval_pipeline.vault.declared import Declared, declared_now
from eval_pipeline.vault.delivery import Delivered, Secrets

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal_client import Cloud

PHASES: tuple[Phase, ...] = ("build", "agent")
_NAME_MAX = 63


@dataclass(frozen=True, kw_only=True)
class Written:
    """done: written, kept (it was there) or removed."""

    name: str
    phase: Phase
    version: str | None
    done: str


def owner_key(installation: str) -> str:
    return f"EVALS_OWNER_{hashlib.sha256(installation.encode()).hexdigest()[:16].upper()}"


def version_key(version: str) -> str:
    return f"EVALS_VERSION_{version[:32].upper()}"


def secret_name(modal_app: str, app: str, phase: Phase) -> str:
    name = f"{modal_app}-{app}-{phase}"
    return name if len(name) <= _NAME_MAX else f"{name[:40]}-{digest([app])[:12]}-{phase}"


def synced_secret(settings: Settings, records: Records, phase: Phase, versions: Mapping[str, str]) -> SyncedSecret | None:
    """The Secret that holds exactly these versions, if one was written."""
    if not versions:
        return None
    row = ModalSecretRows(records.database, place_of(settings, "modal")).holding(phase, versions)
    if row is None:
        return None
    marks = (owner_key(records.ledger.installation_id()), version_key(row.version))
    return SyncedSecret(row.name, row.version, (*sorted(versions), *marks))


def apps_on_modal(secrets: Secrets, records: Records) -> set[str]:
    """Whose Secrets are kept there: those that app.yaml builds for Modal, and those of experiments at work there."""
    app = secrets.library.the_app()
    found: set[str] = {app.name} if app is not None and "modal" in app.backends else set()
    working = [name for name, tally in records.views.tallies().items() if tally.working]
    return found | {run.app for run in (records.ledger.experiment(name).run for name in working) if run.backend == "modal"}


async def sync_to_modal(settings: Settings, records: Records, secrets: Secrets, *, app: str | None = None) -> list[Written]:
    """Write what changed, remove what nobody declares any more. app: one that is about to run there. Raises SpecError."""
    declared = await asyncio.to_thread(declared_now, secrets.library, records)
    apps: set[str] = await asyncio.to_thread(apps_on_modal, secrets, records)
    if app is not None:
        apps.add(app)
    rows = ModalSecretRows(records.database, place_of(settings, "modal"))
    known = {row.name: row for row in await asyncio.to_thread(rows.all)}
    names: dict[str, tuple[str, Phase]] = {
        secret_name(settings.modal.app, one, phase): (one, phase)
        for one in apps
        for phase in PHASES
        if _names(declared, one, phase)
    }
    if not names and not known:
        return []
    from eval_pipeline.sandbox.modal_client import Cloud

    writer = _Writer(Cloud(settings.modal), rows, owner_key(records.ledger.installation_id()))
    locks = build_locks(settings, records, "modal")
    done: list[Written] = []
    for name in sorted(names.keys() | known.keys()):
        async with locks.hold(f"secret-{name}"):
            if name not in names:
                done.append(await writer.remove(known[name]))
                continue
            one, phase = names[name]
            given = await asyncio.to_thread(secrets.values, _names(declared, one, phase), phase)
            done.append(await writer.write(name, one, phase, given))
    return done


def _names(declared: list[Declared], app: str, phase: Phase) -> list[str]:
    return sorted(one.name for one in declared if one.phase == phase and app in one.apps)


class _Writer:
    def __init__(self, cloud: Cloud, rows: ModalSecretRows, owner: str) -> None:
        self._cloud = cloud
        self._rows = rows
        self._owner = owner

    async def write(self, name: str, app: str, phase: Phase, given: Delivered) -> Written:
        """Deleted and made anew: an update takes no key away, and a running sandbox keeps what it has."""
        row = ModalSecretRow(name=name, app=app, phase=phase, version=digest(dict(given.versions)), versions=dict(given.versions))
        if not given.values:
            return await self.remove(row)
        await self._require_ours(name)
        mark = version_key(row.version)
        there = await self._cloud.has_secret(name, [*given.values, self._owner, mark])
        if not there:
            await self._cloud.replace_secret(name, {**given.values, self._owner: "1", mark: "1"})
        await asyncio.to_thread(self._rows.put, row)
        return Written(name=name, phase=phase, version=row.version, done="kept" if there else "written")

    async def remove(self, row: ModalSecretRow) -> Written:
        await self._require_ours(row.name)
        await self._cloud.delete_secret(row.name)
        await asyncio.to_thread(self._rows.remove, row.name)
        return Written(name=row.name, phase=row.phase, version=None, done="removed")

    async def _require_ours(self, name: str) -> None:
        if await self._cloud.has_secret(name, []) and not await self._cloud.has_secret(name, [self._owner]):
            raise SpecError(
                f"the Secret {name} on Modal was not written by this installation, so it is left as it is",
                hint="give each installation a Modal app or environment of its own (EVALS_MODAL_APP, EVALS_MODAL_ENVIRONMENT), "
                f"or remove the other's: `modal secret delete {name}`",
            )
