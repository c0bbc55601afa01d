"""Sandboxes that nobody owns: found by their tags, ended when they are ours and nobody has owned them for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from eval_pipeline.environment.locks import BuildLocks
from eval_pipeline.runner.backends import backend_named, build_locks
from eval_pipeline.runner.workbench import kept
from eval_pipeline.sandbox.base import Backend, SandboxInfo
from eval_pipeline.settings import Settings
from eval_pipeline.store.notices import Notices
from eval_pipeline.store.records import Records
from eval_pipeline.store.steps import sandboxes_ended
from eval_pipeline.store.strays import Strays
from eval_pipeline.store.warm import WarmRows

NOBODY = "nobody"
_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Found:
    """owner: attempt (an open attempt owns it), build (its layer is being built), person (one keeps it open), warm (it stands ready for a cell),
    nobody, or another installation's id.
    """

    info: SandboxInfo
    owner: str


@dataclass(frozen=True, kw_only=True)
class Reaped:
    """ended: names. waiting: unowned ones whose grace is not over. foreign: of other installations; they are never touched."""

    ended: list[str]
    waiting: list[str]
    foreign: list[str]


async def survey(settings: Settings, records: Records, backend: str = "local") -> list[Found]:
    return await _survey(settings, records, backend_named(backend, settings, records))


async def _survey(settings: Settings, records: Records, backend: Backend) -> list[Found]:
    """Listed first, asked second: whoever makes a sandbox is on record before it is there."""
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
    return "build" if layer is not None and locks.held(layer) else NOBODY


async def unowned(settings: Settings, records: Records, backend: str = "local") -> Reaped:
    """What `reap` would end once the grace of all is over. Nothing is ended, and no survey is written down."""
    asked = backend_named(backend, settings, records)
    try:
        found = await _survey(settings, records, asked)
    finally:
        await asked.aclose()
    return Reaped(ended=sorted(_unowned(found)), waiting=[], foreign=_foreign(records, found))


async def reap(
    settings: Settings, records: Records, backend: str = "local", *, grace_s: float = 0.0, wait: bool = False, at_most: int = 1000
) -> Reaped:
    """End what nobody has owned for `grace_s` seconds, as this and earlier surveys found it.

    wait: until the grace of what is found now is over, too. What can't be ended stays on record, and is tried again by the next call.
    """
    asked = backend_named(backend, settings, records)
    strays = Strays(records.database, asked.name, asked.place)
    try:
        found = await _survey(settings, records, asked)
        ages = strays.seen(_unowned(found))
        if wait and ages and (left_s := grace_s - min(ages.values())) > 0:
            await asyncio.sleep(left_s)
            found = await _survey(settings, records, asked)
            ages = strays.seen(_unowned(found))
        if settings.webhook_url is not None:
            Notices(records.database).add_leaked()  # before they are ended, and no more on record
        due = sorted(name for name, age_s in ages.items() if age_s >= grace_s)[:at_most]
        ended = await _end(settings, records, asked, due)
        strays.ended(ended)
        sandboxes_ended(records.database, ended)
    finally:
        await asked.aclose()
    return Reaped(ended=ended, waiting=sorted(set(ages) - set(ended)), foreign=_foreign(records, found))


def _foreign(records: Records, found: Sequence[Found]) -> list[str]:
    installation = records.ledger.installation_id()
    return [one.info.name for one in found if one.info.installation != installation]


def _unowned(found: Sequence[Found]) -> dict[str, str | None]:
    return {one.info.name: one.info.tags.get("cell") for one in found if one.owner == NOBODY}


async def _end(settings: Settings, records: Records, backend: Backend, due: list[str]) -> list[str]:
    """Asked once more: a name may have been taken again since. Returns those that are gone."""
    if not due:
        return []
    unowned = _unowned(await _survey(settings, records, backend))
    turns = asyncio.Semaphore(_AT_ONCE)

    async def end(name: str) -> None:
        async with turns:
            if (sandbox := await backend.find(name)) is not None:
                await sandbox.terminate()

    names = [name for name in due if name in unowned]
    outcomes = await asyncio.gather(*map(end, names), return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures and len(failures) == len(names):
        raise failures[0]
    return [name for name, outcome in zip(names, outcomes, strict=True) if outcome is None]
