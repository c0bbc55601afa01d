"""Layers on Modal: what they hold is seen from inside sandboxes, what there is from the server's side and the ledger's."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from environment.workshop import RESTORE, TOKEN, Workshop
from support.modal_loopback import LoopbackModal

from eval_pipeline.environment.collecting import Collector
from eval_pipeline.environment.layers import Layers
from eval_pipeline.environment.locks import LeaseLocks
from eval_pipeline.errors import SpecError
from eval_pipeline.sandbox.modal import ModalBackend, place_of
from eval_pipeline.settings import ModalSettings
from eval_pipeline.store.build_leases import BuildLeases
from eval_pipeline.store.layer_refs import LedgerRefs
from eval_pipeline.store.layers import LayerRows

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class CloudShop(Workshop):
    """The same app, its layers on Modal. Each of `layers` is another host's."""

    settings: ModalSettings

    def use(self, app: str) -> None:
        self.settings = ModalSettings(app=app, max_sandboxes=50, ecr_secret="aws")
        self.rows = LayerRows(self.database, "modal", place_of(self.settings))
        self.backend = self.host()  # pyright: ignore[reportAttributeAccessIssue]

    def host(self) -> ModalBackend:
        return ModalBackend("shop", self.settings, LedgerRefs(self.rows))

    @property
    def locks(self) -> LeaseLocks:
        return LeaseLocks(BuildLeases(self.database, self.rows.place))

    def layers(self) -> Layers:
        return Layers(self.host(), self.rows, self.store, "shop", self.locks, self.state_dir / "tmp")

    def of_kind(self, kind: str) -> list[Any]:
        return [row for row in self.rows.all() if row.kind == kind]


@pytest.fixture
def shop(modal_server: LoopbackModal, state_dir: Path, database_url: str) -> Generator[CloudShop]:
    made = CloudShop(state_dir, state_dir, database_url)
    made.use(f"t-{secrets.token_hex(6)}")
    yield made
    made.database.close()


BUILD = f"{TOKEN} > token"


async def test_layers_are_snapshots_that_all_hosts_share_until_they_expire(shop: CloudShop, modal_server: LoopbackModal) -> None:
    first = shop.commit(
        {"bin/build": BUILD, "bin/restore": RESTORE, "f": "1"}, build=["bin/build"], reset=["true"], restore=["bin/restore"]
    )
    second = shop.commit({"f": "2"})
    source, world = shop.source(first, second), shop.world("north")
    here, there = shop.layers(), shop.layers()
    both = await asyncio.gather(*(host.prepared(source, shop.arm(second), *world) for host in (here, there)))
    assert both[0].layers == both[1].layers, "two hosts built it once"
    assert (await shop.sh(both[0], "cat f token /srv/matter")).startswith("2")
    image, runtime, prepared = (shop.of_kind(kind) for kind in ("image", "runtime", "prepared"))
    assert [len(image), len(runtime), len(prepared)] == [1, 1, 1]
    for row in (*image, *runtime, *prepared):
        assert timedelta(days=28) < row.expires_at - datetime.now(UTC) < timedelta(days=30)
        assert row.ref in modal_server.state()["images"]
    (base,) = shop.of_kind("base")
    assert (base.ref, base.expires_at) == (both[0].layers[0], None)
    token, restored = (await shop.sh(both[0], "cat token; echo; cat /srv/token")).split()

    # the platform says that it has gone: known only once somebody stands on it
    modal_server.expire(prepared[0].ref)
    again = await here.prepared(source, shop.arm(second), *world)
    assert again.layers == both[0].layers
    with pytest.raises(Exception, match="can't stand on"):
        await shop.sh(again, "true")
    assert shop.of_kind("prepared") == []
    fresh = await here.prepared(source, shop.arm(second), *world)
    assert fresh.layers != again.layers
    same, other = (await shop.sh(fresh, "cat token; echo; cat /srv/token")).split()
    assert same == token and other != restored, "the image stayed; the world was restored anew"

    # by the ledger's clock, and below what is built: the runtime's snapshot has gone while its row says it is there
    modal_server.expire(runtime[0].ref)
    late = sa.text("update evals.layers set expires_at = now() - interval '1 minute' where kind = 'prepared'")
    shop.database.run(lambda c: c.execute(late))
    last = await there.prepared(source, shop.arm(second), *world)
    assert last.layers != fresh.layers and await shop.sh(last, "cat f") == "2"
    assert shop.of_kind("runtime")[0].ref != runtime[0].ref


async def test_what_nobody_needs_goes_from_the_ledger_and_from_modal(shop: CloudShop, modal_server: LoopbackModal) -> None:
    first = shop.commit({"bin/restore": RESTORE, "f": "1"}, build=["true"], reset=["true"], restore=["bin/restore"])
    prepared = await shop.layers().prepared(shop.source(first), shop.arm(first), *shop.world("north"))
    other = await shop.layers().prepared(shop.source(first), shop.arm(first), *shop.world("south"))
    refs = {row.key: row.ref for row in shop.rows.all()}
    base = {row.key for row in shop.of_kind("base")}
    shop.database.run(lambda c: c.execute(sa.text("update evals.layers set used_at = now() - interval '2 hours'")))

    async def spare() -> set[str]:
        return base | {key for key, ref in refs.items() if ref in prepared.layers}

    async with shop.locks.hold(other.key):
        assert await Collector(shop.host(), shop.rows, shop.locks, spare).collect(3600) == [], "another host holds it"
    (gone,) = await Collector(shop.host(), shop.rows, shop.locks, spare).collect(3600)
    assert gone.key == other.key and shop.rows.find(other.key) is None
    there = modal_server.state()["images"]
    assert refs[other.key] not in there and {refs[key] for key in await spare()} <= set(there)
    assert await shop.sh(prepared, "cat /srv/matter") == "north"


async def test_a_dockerfile_copies_from_the_commit_and_only_what_it_copies_makes_it_another(shop: CloudShop) -> None:
    dockerfile = (
        "FROM debian:12\nCOPY conf/ /opt/conf/\nCOPY lock.txt /opt/lock.txt\nRUN cat /opt/conf/a /opt/lock.txt >/opt/made\n"
    )
    files = {"Dockerfile": dockerfile, "conf/a": "a1", "lock.txt": "l1", "f": "1"}
    first = shop.commit(files, image={"dockerfile": "Dockerfile"})
    second, third = shop.commit({"f": "2"}), shop.commit({"conf/a": "a2"})
    layers, world = shop.layers(), shop.world("w")
    made = [await layers.prepared(shop.source(one), shop.arm(one), *world) for one in (first, second, third)]
    assert [one.layers[0] for one in made].count(made[0].layers[0]) == 2
    assert [await shop.sh(one, "cat /opt/made f") for one in made] == ["a1l11", "a1l12", "a2l12"]


async def test_an_image_of_a_registry_and_one_of_ecr(shop: CloudShop, modal_server: LoopbackModal) -> None:
    import modal

    plain = shop.commit({"f": "1"}, image={"registry": "debian:12-slim"})
    private = shop.commit({"f": "2"}, image={"ecr": "registry.invalid/team/app:7"})
    layers, world = shop.layers(), shop.world("w")
    assert await shop.sh(await layers.prepared(shop.source(plain), shop.arm(plain), *world), "cat f") == "1"
    with pytest.raises(Exception, match="aws"):
        await layers.prepared(shop.source(private), shop.arm(private), *world)
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "z"}
    await modal.Secret.objects.create.aio("aws", keys)
    try:
        assert await shop.sh(await layers.prepared(shop.source(private), shop.arm(private), *world), "cat f") == "2"
    finally:
        await modal.Secret.objects.delete.aio("aws")
    pulled = {one["from"]: one["secret_id"] for one in modal_server.state()["pulled"]}
    assert pulled["debian:12-slim"] == "" and pulled["registry.invalid/team/app:7"].startswith("st-")
    shop.settings = ModalSettings(app=f"{shop.settings.app}-other")
    shop.rows = LayerRows(shop.database, "modal", place_of(shop.settings))
    with pytest.raises(SpecError, match="needs AWS credentials"):
        await shop.layers().images.base(shop.source(private), shop.arm(private).tree, shop.arm(private).manifest)
