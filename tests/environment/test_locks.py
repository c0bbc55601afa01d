"""One builder at a time, over several hosts: what another ledger connection sees."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
import sqlalchemy as sa

from eval_pipeline.environment import locks
from eval_pipeline.environment.building import Builder
from eval_pipeline.environment.locks import LeaseLocks
from eval_pipeline.errors import InfrastructureError
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.store.build_leases import BuildLeases
from eval_pipeline.store.database import Database

pytestmark = pytest.mark.anyio
EXPIRE = sa.text("update evals.build_leases set lease_until = now() - interval '1 second'")


@pytest.fixture
def databases(database_url: str) -> Generator[tuple[Database, Database]]:
    """Two hosts have one connection each."""
    pair = Database(database_url), Database(database_url)
    pair[0].migrate()
    yield pair
    for one in pair:
        one.close()


async def test_who_waits_goes_on_when_the_other_is_done(databases: tuple[Database, Database], tmp_path: Path) -> None:
    here, there = (LeaseLocks(BuildLeases(database, "env/app")) for database in databases)
    builders = [Builder(LocalBackend("i", tmp_path), "i", one) for one in (here, there)]
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        assert here.held("k") and there.held("k") and not there.held("other")
        async with there.hold_if_free("k") as free:
            assert not free
        await asyncio.sleep(0.1)
        inside -= 1

    await asyncio.gather(*(builder.alone("k", work) for builder in builders))
    assert most == 1 and not here.held("k")
    async with there.hold_if_free("k") as free:
        assert free and here.held("k")
    elsewhere = LeaseLocks(BuildLeases(databases[0], "env/another"))
    async with here.hold("k"):
        assert not elsewhere.held("k"), "another place's layers are others"


async def test_a_dead_builders_lease_is_taken_over_and_what_still_lives_of_it_is_stopped(
    databases: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RENEW_S", 0.05)
    here, there = (LeaseLocks(BuildLeases(database, "env/app")) for database in databases)
    done: list[str] = []

    async def expiring() -> None:
        """Again and again: a builder that still lives may renew its lease before somebody takes it."""
        while True:
            databases[0].run(lambda c: c.execute(EXPIRE))
            await asyncio.sleep(0.01)

    async def stalled() -> None:
        async with here.hold("k"):
            done.append("began")
            async with there.hold("k"):
                await asyncio.sleep(30)
                done.append("went on")

    dying = asyncio.create_task(expiring())
    with pytest.raises(InfrastructureError, match="the lease on k was lost"):
        await stalled()
    dying.cancel()
    assert done == ["began"] and not here.held("k")


async def test_a_cancel_stays_a_cancel_and_frees_the_key(databases: tuple[Database, Database]) -> None:
    here, there = (LeaseLocks(BuildLeases(database, "env/app")) for database in databases)
    entered = asyncio.Event()

    async def work() -> None:
        async with here.hold("k"):
            entered.set()
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await entered.wait()
    assert there.held("k")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not there.held("k")
