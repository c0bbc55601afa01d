"""A sandbox for a person: an app at a commit over a world, made as a cell's is, and kept until it is closed or its time is over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.ids import sandbox_name
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.environment.images import AppSource, PhaseMeans
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.environment.lifecycle import start_services
from eval_pipeline.environment.snapshotting import record_snapshot
from eval_pipeline.errors import NotFound, SandboxError, SpecError
from eval_pipeline.host import reachable_root
from eval_pipeline.runner.services import Services
from eval_pipeline.sandbox import modal_plan
from eval_pipeline.sandbox.base import Backend, Engine, Resources, Sandbox, SandboxInfo, SandboxSpec
from eval_pipeline.specs.library import Library
from eval_pipeline.specs.lock import lock_app, read_manifest, refuse_misfits
from eval_pipeline.store.snapshots import restore

AUTHOR, SHELL, CHECK = "author", "shell", "check"
PURPOSES = (AUTHOR, SHELL, CHECK)
KEPT_H = {AUTHOR: 7 * 24, SHELL: 24, CHECK: 2}
LONGEST_H = {"modal": modal_plan.MAX_LIFETIME_S // 3600}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What stands in the sandbox, and where. world_digest: of the snapshot below `world_dir`."""

    source: AppSource
    arm: LockedArm
    world: str
    world_digest: str
    world_dir: Path
    backend: str = "local"


def kept(info: SandboxInfo, now: datetime | None = None) -> bool:
    """Whether it is a person's and its time is not over."""
    until = info.tags.get("until")
    if info.tags.get("purpose") not in PURPOSES or until is None:
        return False
    return datetime.fromisoformat(until) > (now or datetime.now(UTC))


def subject(services: Services, library: Library, world: str, ref: str | None, backend: str = "local") -> Subject:
    """The world as it is on disk, packed, under the app at `ref`; None: its branch. Raises SpecError for what no lock would take."""
    found = library.world(world)
    app = library.only_app()
    repo = library.app_repo(app)
    arm = lock_app(repo, app.path, ref or app.branch)
    refuse_misfits("the app", arm, backend, [found.spec])
    recorded = record_snapshot(found, services.store, services.ledger)
    snapshot = services.ledger.snapshots([recorded.digest])[recorded.digest]
    folder = restore(snapshot, services.store, reachable_root(services.settings.state_dir) / "worlds")
    source = AppSource.of(repo, app.path, [arm])
    return Subject(source=source, arm=arm, world=world, world_digest=recorded.digest, world_dir=folder, backend=backend)


def name_of(installation: str, purpose: str, what: str) -> str:
    return sandbox_name(installation, f"{purpose}:{what}", 0)


async def prepared(services: Services, at: Subject) -> Prepared:
    _, layers = services.backends.named(at.backend)
    return await layers.prepared(at.source, at.arm, at.world_digest, at.world_dir)


async def furnished(services: Services, at: Subject, layers: Prepared, *, purpose: str, what: str, means: PhaseMeans) -> Sandbox:
    """The sandbox with the app's services up; ended again when they don't come up. Raises SandboxError."""
    manifest = at.arm.manifest
    backend, _ = services.backends.named(at.backend)
    until = datetime.now(UTC) + timedelta(hours=min(KEPT_H[purpose], LONGEST_H.get(at.backend, KEPT_H[purpose])))
    tags = {"purpose": purpose, "world": at.world, "snapshot": at.world_digest, "tree": at.arm.tree, "stands_on": layers.key}
    ports = manifest.services.ports if manifest.services else ()
    tags |= {"commit": at.arm.commit or "", "ref": at.arm.ref, "until": until.isoformat(), "ports": " ".join(map(str, ports))}
    spec = SandboxSpec(
        name=name_of(services.installation, purpose, what),
        installation=services.installation,
        tags=tags,
        layers=layers.layers,
        world=layers.world_dir,
        files=means.files,
        secrets=means.secrets,
        synced=means.synced,
        egress=means.egress,
        egress_local=means.egress_local,
        resources=Resources(**manifest.resources.model_dump()),
        engine=None if manifest.compose is None else Engine.CACHED,
    )
    sandbox = await backend.get_or_create(spec)
    try:
        if manifest.services is not None:
            await start_services(sandbox, manifest.services, means.env)
    except BaseException:
        await sandbox.terminate()
        raise
    return sandbox


@dataclass(frozen=True, kw_only=True)
class StartedOn:
    """What an open sandbox was started with. commit: None for a working tree."""

    manifest: AppManifest
    commit: str | None
    digest: str
    snapshot: SnapshotManifest
    world_dir: Path


def started_on(services: Services, library: Library, info: SandboxInfo) -> StartedOn:
    """Raises SpecError when the app's tree, or the snapshot, is not there any more."""
    manifest = read_manifest(library.app_repo(library.only_app()), info.tags["tree"])
    digest = info.tags["snapshot"]
    snapshot = services.ledger.snapshots([digest]).get(digest)
    if snapshot is None:
        raise SpecError(f"the snapshot {digest[:12]} is not in the ledger any more", hint="close the world and open it again")
    return StartedOn(
        manifest=manifest,
        commit=info.tags["commit"] or None,
        digest=digest,
        snapshot=snapshot.manifest,
        world_dir=restore(snapshot, services.store, reachable_root(services.settings.state_dir) / "worlds"),
    )


async def opened(backend: Backend, installation: str, world: str) -> tuple[SandboxInfo, Sandbox]:
    """The sandbox in which the world is open. Raises NotFound."""
    found = await find_open(backend, installation, world)
    if found is None:
        raise NotFound(f"the world {world!r} is not open here", hint=f"`evals world open {world}` starts the app on it")
    return found


async def find_open(backend: Backend, installation: str, world: str) -> tuple[SandboxInfo, Sandbox] | None:
    name = name_of(installation, AUTHOR, world)
    info = next((one for one in await backend.list() if one.name == name and one.alive), None)
    sandbox = None if info is None else await backend.find(name)
    return None if info is None or sandbox is None else (info, sandbox)


async def close_world(backend: Backend, installation: str, world: str, patience_s: float = 20.0) -> str:
    """End the sandbox in which the world is open, see it gone, and return its name. Raises NotFound, SandboxError."""
    _, sandbox = await opened(backend, installation, world)
    await sandbox.terminate()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while await sandbox.alive() or await find_open(backend, installation, world) is not None:
        if loop.time() > deadline:
            hint = "`evals sandbox list` shows it; close the world again"
            raise SandboxError(
                f"the sandbox {sandbox.name} of {world} was ended and still lives {patience_s:.0f} s later", hint=hint
            )
        await asyncio.sleep(0.2)
    return sandbox.name


async def open_world(services: Services, at: Subject, *, egress: bool) -> Sandbox:
    """The app up on the world; the sandbox where it is open already, if that is the same app and world. Raises SpecError if not."""
    backend, _ = services.backends.named(at.backend)
    found = await find_open(backend, services.installation, at.world)
    if found is not None and found[0].tags.get("snapshot") != at.world_digest:
        raise _other(at.world, "the world has changed on disk since")
    if found is not None and found[0].tags.get("tree") != at.arm.tree:
        raise _other(at.world, f"it is open with the app at {found[0].tags.get('ref')}, not {at.arm.ref}")
    if found is not None:
        return found[1]
    layers = await prepared(services, at)
    means = PhaseMeans(egress=at.arm.manifest.egress if egress else ())
    await _end_left(backend, name_of(services.installation, AUTHOR, at.world))
    return await furnished(services, at, layers, purpose=AUTHOR, what=at.world, means=means)


async def _end_left(backend: Backend, name: str) -> None:
    """A dead one of the same name would be taken for the one that is asked for."""
    left = await backend.find(name)
    if left is not None:
        await left.terminate()


def _other(world: str, why: str) -> SpecError:
    hint = f"`evals world save {world}` keeps what was changed in it, `evals world close {world}` gives it up; then open it again"
    return SpecError(f"the world {world!r} is open already, and {why}", hint=hint)


async def wait_until_gone(sandbox: Sandbox, every_s: float = 0.5) -> None:
    while await sandbox.alive():
        await asyncio.sleep(every_s)
