"""Layers that go: what is on disk afterwards, and that who stands on one, or is about to, never notices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator

import pytest
import sqlalchemy as sa
from environment.workshop import RESTORE, Workshop

from eval_pipeline.environment.collecting import Collector, Removed, with_chains
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.environment.locks import HostLocks
from eval_pipeline.sandbox.base import Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.places import prepare

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def shop(workshop: Workshop) -> Generator[Workshop]:
    yield workshop
    for key in on_disk(workshop):
        asyncio.run(workshop.backend.remove_layer(key))


def on_disk(shop: Workshop) -> set[str]:
    names = {path.name for path in prepare(shop.state_dir).layers.iterdir() if not path.name.startswith(("host-", "."))}
    return {name for name in names if not name.endswith(".json")}


def collector(shop: Workshop) -> Collector:
    async def spare() -> set[str]:
        stood_on = {info.tags["stands_on"] for info in await shop.backend.list() if "stands_on" in info.tags}
        return with_chains(stood_on, shop.rows.all())

    return Collector(shop.backend, shop.rows, HostLocks(shop.state_dir / "locks"), spare)


async def living(shop: Workshop, prepared: Prepared) -> Sandbox:
    name, tags = f"cell-{os.urandom(6).hex()}", {"stands_on": prepared.key}
    spec = SandboxSpec(name=name, installation="shop", tags=tags, layers=prepared.layers, world=prepared.world_dir)
    return await shop.backend.get_or_create(spec)


async def say(sandbox: Sandbox, script: str, command_id: str) -> str:
    await sandbox.start(command_id, ["/bin/sh", "-c", script], env={}, workdir="/app")
    while (await sandbox.state(command_id)).phase is Phase.RUNNING:
        await asyncio.sleep(0.01)
    return b"".join(await sandbox.logs(command_id)).decode()


def keys(removed: list[Removed]) -> set[str]:
    return {one.key for one in removed}


async def test_a_living_sandbox_keeps_what_it_stands_on_and_the_rest_goes(shop: Workshop) -> None:
    first = shop.commit({"bin/restore": RESTORE, "f": "1"}, build=["true"], reset=["true"], restore=["bin/restore"])
    second = shop.commit({"f": "2"})
    layers, source = shop.layers(), shop.source(first, second)
    kept = await layers.prepared(source, shop.arm(first), *shop.world("north"))
    other = await layers.prepared(source, shop.arm(second), *shop.world("north"))
    delta = shop.rows.of_keys([other.key])[other.key].parents[-1]
    sandbox = await living(shop, kept)
    half = prepare(shop.state_dir).layers / "half-a-layer"
    (half / "deep").mkdir(parents=True)
    assert await collector(shop).collect(3600) == [], "used within the hour"
    planned = keys(await collector(shop).collect(0, dry_run=True))
    before = on_disk(shop)
    assert planned == {other.key, delta, "half-a-layer"} and half.exists()
    assert keys(await collector(shop).collect(0)) == planned
    assert on_disk(shop) == before - planned
    assert await say(sandbox, "cat f /srv/matter; git status --short; cat /srv/token; find / -xdev -type f | wc -l", "look")
    assert (await say(sandbox, "cat f /srv/matter; rm f; echo new > f; cat f", "again")).split() == ["1northnew"]
    await sandbox.terminate()
    await collector(shop).collect(0)
    assert on_disk(shop) == set() and shop.rows.all() == []
    assert await shop.sh(await layers.prepared(source, shop.arm(first), *shop.world("north")), "cat f /srv/matter") == "1north"


async def test_what_is_built_now_is_no_leftover(shop: Workshop) -> None:
    commit = shop.commit({"bin/build": "sleep 2; echo made > made"}, build=["bin/build"])
    task = asyncio.create_task(shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w")))
    while not task.done():
        assert await collector(shop).collect(0.5) == []
        await asyncio.sleep(0.1)
    assert await shop.sh(await task, "cat made") == "made"


async def test_cells_that_come_while_old_layers_go_find_them_or_build_them(shop: Workshop) -> None:
    commits = [shop.commit({"bin/restore": RESTORE}, build=["true"], reset=["true"], restore=["bin/restore"])]
    commits += [shop.commit({"f": str(n)}) for n in range(2)]
    source = shop.source(*commits)
    old = sa.text("update evals.layers set used_at = now() - interval '1 hour'")

    async def cell(commit: str, world: str) -> str:
        return await shop.sh(await shop.layers().prepared(source, shop.arm(commit), *shop.world(world)), "cat /srv/matter")

    for _ in range(3):
        shop.database.run(lambda c: c.execute(old))
        asked = [cell(commit, world) for commit in commits for world in ("a", "b")]
        *seen, _, _ = await asyncio.gather(*asked, collector(shop).collect(600), collector(shop).collect(600))
        assert seen == ["a", "b"] * 3
    assert await shop.backend.list() == []
