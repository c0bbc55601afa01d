"""The reaper on both backends, with real sandboxes: what nobody owns ends after a grace, and is counted until then."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from eval_pipeline.runner.backends import backend_named
from eval_pipeline.runner.reaper import reap
from eval_pipeline.sandbox.base import SandboxSpec
from eval_pipeline.settings import ModalSettings, Settings
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.store.schema import strays

pytestmark = pytest.mark.slow
LONG_S = 120.0


@pytest.fixture
def records(settings: Settings) -> Generator[Records]:
    with open_records(settings) as opened:
        yield opened


@pytest.fixture(params=["local", "modal"])
def place(request: pytest.FixtureRequest, settings: Settings) -> tuple[Settings, str]:
    if request.param == "modal":
        request.getfixturevalue("modal_server")
    return replace(settings, modal=ModalSettings(app=f"t-{secrets.token_hex(6)}")), request.param


def make(settings: Settings, records: Records, backend: str, installation: str) -> str:
    name = f"e-{secrets.token_hex(12)}"

    async def work() -> None:
        made = backend_named(backend, settings, records)
        if installation != records.ledger.installation_id():
            made._installation = installation  # pyright: ignore
        spec = SandboxSpec(name=name, installation=installation, tags={"cell": "x-1/w.c/a/0"})
        await made.get_or_create(spec)
        await made.aclose()

    asyncio.run(work())
    return name


def there(settings: Settings, records: Records, backend: str) -> set[str]:
    async def work() -> set[str]:
        asked = backend_named(backend, settings, records)
        return {info.name for info in await asked.list()}

    return asyncio.run(work())


def later(records: Records, seconds: float) -> None:
    """As if what was seen had been seen so much earlier."""
    moved = strays.c.first_seen_at - sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    records.database.run(lambda c: c.execute(sa.update(strays).values(first_seen_at=moved)))


def test_nobodys_end_after_the_grace_and_foreign_ones_never(place: tuple[Settings, str], records: Records) -> None:
    settings, backend = place
    assert records.views.leaked() is None, "nobody has looked"
    ours = make(settings, records, backend, records.ledger.installation_id())
    foreign = make(settings, records, backend, "somebody-else")
    try:
        first = asyncio.run(reap(settings, records, backend, grace_s=LONG_S))
        assert (first.ended, first.waiting, first.foreign, records.views.leaked()) == ([], [ours], [foreign], 0)
        later(records, LONG_S + 1)
        assert records.views.leaked() == 1
        assert there(settings, records, backend) == {ours, foreign}
        second = asyncio.run(reap(settings, records, backend, grace_s=LONG_S))
        assert (second.ended, second.waiting, second.foreign, records.views.leaked()) == ([ours], [], [foreign], 0)
        assert there(settings, records, backend) == {foreign}
    finally:
        end(settings, records, backend, foreign)


def end(settings: Settings, records: Records, backend: str, *names: str) -> None:
    async def work() -> None:
        asked = backend_named(backend, settings, records)
        for name in names:
            sandbox = await asked.find(name)
            assert sandbox is not None and await sandbox.alive()
            await sandbox.terminate()

    asyncio.run(work())


def test_one_that_is_gone_in_between_begins_its_grace_anew(settings: Settings, records: Records) -> None:
    name = make(settings, records, "local", records.ledger.installation_id())
    asyncio.run(reap(settings, records, grace_s=LONG_S))
    later(records, LONG_S + 1)
    end(settings, records, "local", name)
    assert asyncio.run(reap(settings, records, grace_s=LONG_S)).waiting == []
    assert records.views.leaked() == 0
