"""Layers: what is built, how often, on what, and what is never seen."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from backports.zstd import tarfile
from environment.workshop import RESTORE, TOKEN, Workshop

from eval_pipeline.errors import BuildError
from eval_pipeline.store.layers import IMAGE, PREPARED, RUNTIME

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def shop(workshop: Workshop) -> Workshop:
    return workshop


async def test_one_restore_for_each_commit_and_world(shop: Workshop) -> None:
    first = shop.commit({"bin/restore": RESTORE, "version": "1"}, restore=["bin/restore"])
    second = shop.commit({"version": "2"})
    arms = [shop.arm(first), shop.arm(second)]
    worlds = [shop.world("north"), shop.world("south")]
    offices = [shop.layers(), shop.layers()]  # as two engines would
    source = shop.source(first, second)
    asked = [office.prepared(source, arm, *world) for _ in range(5) for office in offices for arm in arms for world in worlds]
    found = await asyncio.gather(*asked)
    tokens = {
        key: await shop.sh(layer, "cat version /srv/matter; echo; cat /srv/token")
        for key, layer in {p.key: p for p in found}.items()
    }
    assert len(found) == 40
    assert sorted(text.split("\n")[0] for text in tokens.values()) == ["1north", "1south", "2north", "2south"]
    assert len({text.split("\n")[1] for text in tokens.values()}) == 4
    kinds = [row.kind for row in shop.rows.all()]
    assert (kinds.count(IMAGE), kinds.count(RUNTIME), kinds.count(PREPARED)) == (1, 1, 4)


async def test_a_commit_is_a_delta_over_the_nearest_image(shop: Workshop) -> None:
    built = f"{TOKEN} > product; echo built >> /srv-log"
    old = shop.commit({"bin/build": built.replace("/srv-log", "log"), "bin/reset": "echo reset >> log", "gone": "x", "kept": "1"},
                      build=["bin/build"], reset=["bin/reset"])  # fmt: skip
    middle = shop.commit({"kept": "2"})
    new = shop.commit({"kept": "3", "gone": None, "added": "y"})
    layers = shop.layers()
    far = await layers.images.image(shop.source(), old, shop.arm(old).tree, shop.arm(old).manifest)
    near = await layers.images.image(shop.source(), middle, shop.arm(middle).tree, shop.arm(middle).manifest)
    prepared = await layers.prepared(shop.source(new), shop.arm(new), *shop.world("w"))
    assert prepared.image_commit == middle
    assert len(prepared.layers) == 3
    delta = shop.rows.of_keys([prepared.key])[prepared.key]
    assert delta.parents == [near.key] and far.key != near.key
    seen = await shop.sh(prepared, "cat kept added log; ls gone product 2>&1; git status --short --untracked-files=no")
    assert seen.splitlines()[0] == "3ybuilt"
    assert "reset" in seen and "No such file" in seen and "product" in seen
    assert not [line for line in seen.splitlines() if line.startswith(" M")]


async def test_arms_on_two_branches_share_the_image_of_their_common_ancestor(shop: Workshop) -> None:
    root = shop.commit({"f": "0", "bin/build": f"{TOKEN} > token"}, build=["bin/build"], reset=["true"])
    left = shop.commit({"f": "left"})
    shop.checkout(root, "other")
    right = shop.commit({"f": "right"})
    layers = shop.layers()
    found = [await layers.prepared(shop.source(left, right), shop.arm(c), *shop.world("w")) for c in (left, right)]
    assert [one.image_commit for one in found] == [root, root]
    tokens = [await shop.sh(one, "cat token; cat f") for one in found]
    assert {token[:24] for token in tokens} == {tokens[0][:24]}
    assert [token[24:] for token in tokens] == ["left", "right"]


async def test_without_reset_the_build_runs_again_on_another_commit(shop: Workshop) -> None:
    old = shop.commit({"f": "1", "bin/build": "cat f > built"}, build=["bin/build"])
    new = shop.commit({"f": "2"})
    layers = shop.layers()
    await layers.images.image(shop.source(), old, shop.arm(old).tree, shop.arm(old).manifest)
    assert await shop.sh(await layers.prepared(shop.source(new), shop.arm(new), *shop.world("w")), "cat built") == "2"


async def test_a_working_tree_runs_as_it_is(shop: Workshop) -> None:
    shop.commit({"f": "1", ".gitignore": "ignored\n"}, build=["true"])
    (shop.app / "f").write_text("2")
    (shop.app / "new").write_text("3")
    (shop.app / "ignored").write_text("4")
    prepared = await shop.layers().prepared(shop.source(), shop.arm(None), *shop.world("w"))
    assert await shop.sh(prepared, "cat f new; ls ignored 2>/dev/null") == "23"


async def test_nothing_but_the_apps_folder_travels(shop_state: Path, state_dir: Path, database_url: str) -> None:
    shop = Workshop(state_dir, shop_state, database_url, path="services/app")
    (shop.repo / "rubric.yaml").write_text("the answer is 42\n")
    (shop.app / "old").write_text("a secret of yesterday\n")
    old = shop.commit({}, reset=["true"])
    new = shop.commit({"old": None, "f": "1"})
    layers = shop.layers()
    await layers.images.image(shop.source(), new, shop.arm(new).tree, shop.arm(new).manifest)
    prepared = await layers.prepared(shop.source(new), shop.arm(new), *shop.world("w"))
    objects = await shop.sh(
        prepared,
        "git cat-file --batch-all-objects --batch --unordered; find / -name '*rubric*' 2>/dev/null; git log --all --oneline",
    )
    assert "answer" not in objects and "yesterday" not in objects and "rubric" not in objects
    assert old
    shop.database.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo broken >&2; exit 3", "ended with 3: broken"),
        ("sleep 300 & echo done", "left running: sleep"),
        ("kill -9 $$", "ended with 137"),
    ],
)
async def test_a_restore_that_fails_is_no_layer(shop: Workshop, script: str, said: str) -> None:
    bad = shop.commit({"bin/restore": script}, restore=["bin/restore"])
    with pytest.raises(BuildError, match=said):
        await shop.layers().prepared(shop.source(bad), shop.arm(bad), *shop.world("w"))
    assert [row.kind for row in shop.rows.all()] == [IMAGE]
    assert await shop.backend.list() == []
    good = shop.commit({"bin/restore": RESTORE})
    assert (
        await shop.sh(await shop.layers().prepared(shop.source(good), shop.arm(good), *shop.world("w")), "cat /srv/matter") == "w"
    )


async def test_a_builder_killed_halfway_leaves_nothing_that_counts(shop: Workshop) -> None:
    commit = shop.commit({"bin/restore": f"mkdir -p /srv && {TOKEN} >> /srv/token && sleep 2 && {TOKEN} >> /srv/token && touch /srv/whole"},
                         restore=["bin/restore"])  # fmt: skip
    digest, folder = shop.world("w")
    script = f"""
import asyncio
from pathlib import Path
from eval_pipeline.environment.images import AppSource
from eval_pipeline.environment.layers import Layers
from eval_pipeline.environment.locks import HostLocks
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.specs import git
from eval_pipeline.specs.lock import read_manifest
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.store.artifacts import LocalArtifacts
from eval_pipeline.store.database import Database
from eval_pipeline.store.layers import LayerRows
state, repo = Path({str(shop.state_dir)!r}), Path({str(shop.repo)!r})
backend = LocalBackend("shop", state)
rows = LayerRows(Database({shop.database.url!r}), "local", backend.place)
tree = git.tree_of(repo, {commit!r}, ".")
arm = LockedArm(name="a", ref="x", commit={commit!r}, tree=tree, manifest=read_manifest(repo, tree), config={{}})
layers = Layers(backend, rows, LocalArtifacts(state / "artifacts"), "shop", HostLocks(state / "locks"), state / "tmp")
world = Path({str(folder)!r})
asyncio.run(layers.prepared(AppSource(repo=repo, path="."), arm, {digest!r}, world))
"""
    child = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while not list(shop.state_dir.glob("sandboxes/*/disk/u/srv/token")):
        assert time.monotonic() < deadline and child.poll() is None
        await asyncio.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    prepared = await shop.layers().prepared(shop.source(commit), shop.arm(commit), digest, folder)
    assert await shop.sh(prepared, "ls /srv/whole; wc -c < /srv/token") == "/srv/whole\n48"
    assert await shop.backend.list() == []


async def test_the_state_before_any_agent_is_kept(shop: Workshop) -> None:
    up = "echo serving > /tmp/serves; exec sleep 1000"
    dump = "[ -f /tmp/serves ] && mkdir -p $1/documents && cp /srv/matter $1/documents/m && ln -s /world/matter.txt $1/documents/same"
    commit = shop.commit(
        {"bin/restore": RESTORE, "bin/up": up, "bin/ready": "[ -f /tmp/serves ]", "bin/dump": dump},
        restore=["bin/restore"],
        services={"up": ["bin/up"], "ready": ["bin/ready"]},
        dump=["bin/dump", "/out/state"],
    )
    prepared = await shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w"))
    again = await shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w"))
    assert prepared.state is not None and again == prepared
    packed = shop.root / "state"
    shop.store.fetch(prepared.state, packed)
    with tarfile.open(packed) as archive:
        member = archive.extractfile("out/state/documents/m")
        assert member is not None and member.read() == b"w"
    assert await shop.backend.list() == []
    (lost,) = (shop.state_dir / "artifacts").rglob(prepared.state)
    lost.unlink()
    repaired = await shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w"))
    assert repaired.key == prepared.key and repaired.state is not None and shop.store.exists(repaired.state)


async def test_services_that_never_answer_fail_the_prepared_layer_with_their_words(shop: Workshop) -> None:
    commit = shop.commit(
        {"bin/up": "echo cannot bind >&2; sleep 1000", "bin/dump": "true"},
        services={"up": ["bin/up"], "ready": ["false"], "ready_timeout_s": 1.0},
        dump=["bin/dump"],
    )
    with pytest.raises(Exception, match=r"not ready within 1 s.*cannot bind"):
        await shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w"))
    assert await shop.backend.list() == []


async def test_a_layer_that_goes_meanwhile_is_built_again(shop: Workshop) -> None:
    commit = shop.commit({"bin/restore": RESTORE}, restore=["bin/restore"])
    layers, asked = shop.layers(), (shop.source(commit), shop.arm(commit), *shop.world("w"))
    first = await layers.prepared(*asked)
    token = await shop.sh(first, "cat /srv/token")
    assert await shop.sh(await layers.prepared(*asked), "cat /srv/token") == token
    await shop.backend.remove_layer(first.key)
    assert await shop.sh(await layers.prepared(*asked), "cat /srv/matter") == "w"
    assert await shop.sh(await layers.prepared(*asked), "cat /srv/token") != token


async def test_who_waits_for_a_build_does_not_depend_on_who_asked_for_it_first(shop: Workshop) -> None:
    commit = shop.commit({"bin/restore": f"{RESTORE}; sleep 1"}, restore=["bin/restore"])
    layers, asked = shop.layers(), (shop.source(commit), shop.arm(commit), *shop.world("w"))
    first = asyncio.create_task(layers.prepared(*asked))
    while not list(shop.state_dir.glob("sandboxes/*/disk/u/srv/token")):
        assert not first.done()
        await asyncio.sleep(0.02)
    second = asyncio.create_task(layers.prepared(*asked))
    await asyncio.sleep(0)
    first.cancel()
    assert await shop.sh(await second, "cat /srv/matter") == "w"
    assert first.cancelled() and await shop.backend.list() == []


async def test_a_build_that_fails_is_not_tried_by_everyone_who_needs_it(shop: Workshop) -> None:
    commit = shop.commit({"bin/restore": f"{TOKEN} >&2; exit 3"}, restore=["bin/restore"])
    layers, asked = shop.layers(), (shop.source(commit), shop.arm(commit), *shop.world("w"))
    said: set[str] = set()
    for _ in range(3):
        with pytest.raises(BuildError, match="ended with 3") as caught:
            await layers.prepared(*asked)
        said.add(str(caught.value))
    assert len(said) == 1  # the command would have said another token each time


async def test_a_layer_emptied_behind_our_back_is_made_again(shop: Workshop) -> None:
    commit = shop.commit({"bin/restore": RESTORE}, restore=["bin/restore"])
    prepared = await shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w"))
    for entry in Path(prepared.layers[-1]).iterdir():
        shutil.rmtree(entry)
    again = await shop.layers().prepared(shop.source(commit), shop.arm(commit), *shop.world("w"))
    assert await shop.sh(again, "cat /srv/matter") == "w"
