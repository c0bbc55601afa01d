"""What a cell stands on, built once and shared: base -> image -> runtime(app tree) -> prepared(app tree, world).

The image is the whole app at some commit. A runtime layer holds what the checkout of another commit and `reset` change over it.
Keys name the app's tree and commands, not the image below: of one tree there is one runtime, whichever image it grew on.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.lock import IDENTITY_VERSION, LockedArm
from eval_pipeline.environment.building import Build, Builder, Built, Step
from eval_pipeline.environment.lifecycle import APP_DIR, dump_state, start_services
from eval_pipeline.errors import BuildError, SpecError
from eval_pipeline.sandbox.base import RUN_DIR, Backend
from eval_pipeline.specs import git
from eval_pipeline.specs.lock import read_manifest
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.layers import IMAGE, PREPARED, RUNTIME, LayerRow, LayerRows

_BUNDLE = f"{RUN_DIR}/app.bundle"
_CLONE = f"git clone -q -b app {_BUNDLE} {APP_DIR} && git -C {APP_DIR} remote remove origin"
_CHECKOUT = f"git -C {APP_DIR} fetch -q {_BUNDLE} refs/heads/app && git -C {APP_DIR} checkout -q -f -B app FETCH_HEAD"


@dataclass(frozen=True, kw_only=True)
class AppSource:
    """Where the app's code is. commits: of all arms that run together; their common ancestor is what one image can serve."""

    repo: Path
    path: str
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PhaseMeans:
    """What a phase may reach and know."""

    egress: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


def _nothing(_: AppManifest) -> PhaseMeans:
    return PhaseMeans()


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """layers: refs, lowest first. world_dir: the restored snapshot. key: names the content.

    state: artifact of the app's dump before any agent; None when the app dumps nothing. image_commit: of the image below.
    """

    key: str
    layers: tuple[str, ...]
    world_dir: Path
    state: str | None
    image_commit: str | None


class Layers:
    """Builds what is missing.

    build_means, agent_means: what the app's manifest may reach and know in that phase.
    """

    def __init__(
        self,
        backend: Backend,
        rows: LayerRows,
        store: ArtifactStore,
        installation: str,
        lock_dir: Path,
        scratch: Path,
        *,
        build_means: Callable[[AppManifest], PhaseMeans] = _nothing,
        agent_means: Callable[[AppManifest], PhaseMeans] = _nothing,
    ) -> None:
        self._backend = backend
        self._rows = rows
        self._store = store
        self._scratch = scratch
        self._builder = Builder(backend, installation, lock_dir)
        self._build_means = build_means
        self._agent_means = agent_means

    async def image(self, source: AppSource, commit: str | None, tree: str, manifest: AppManifest) -> LayerRow:
        """The whole app at this tree. Raises BuildError."""
        base, base_ref = await self._base(source, tree, manifest)
        key = digest([IMAGE, base, tree, manifest.build])

        async def make() -> LayerRow:
            if (known := await self._known(key)) is not None:
                return known
            steps = [Step(name="checkout", argv=["/bin/sh", "-c", _CLONE], workdir="/")]
            bundle = await asyncio.to_thread(git.bundle, source.repo, tree)
            built = await self._app_build(key, [base_ref], steps, "build", manifest.build, manifest, bundle)
            return await self._record(
                key, built, kind=IMAGE, manifest=manifest, base=base, commit=commit, tree=tree, parents=[], world=None
            )

        return await self._builder.once(key, make)

    async def runtime(self, source: AppSource, arm: LockedArm) -> LayerRow:
        """The app at the arm's tree: an image of it where there is one, else the delta over the nearest image."""
        base, base_ref = await self._base(source, arm.tree, arm.manifest)
        key = digest([RUNTIME, base, arm.tree, arm.manifest.build, arm.manifest.reset])

        async def make() -> LayerRow:
            if (known := await self._known(key)) is not None:
                return known
            image = await self._image_for(source, arm, base)
            if image.tree == arm.tree:
                return image
            bundle = await asyncio.to_thread(git.bundle, source.repo, arm.tree, over=image.tree)
            steps = [Step(name="checkout", argv=["/bin/sh", "-c", _CHECKOUT], workdir="/")]
            command = arm.manifest.reset or arm.manifest.build
            built = await self._app_build(key, [base_ref, image.ref], steps, "reset", command, arm.manifest, bundle)
            return await self._record(
                key,
                built,
                kind=RUNTIME,
                manifest=arm.manifest,
                base=base,
                commit=arm.commit,
                tree=arm.tree,
                parents=[image.key],
                world=None,
            )

        return await self._builder.once(key, make)

    async def prepared(self, source: AppSource, arm: LockedArm, world_digest: str, world_dir: Path) -> Prepared:
        """Raises BuildError with the end of the log when one of the app's commands fails."""
        asked = digest([arm.tree, arm.manifest.model_dump(mode="json"), world_digest])
        return await self._builder.shared(asked, lambda: self._prepared(source, arm, world_digest, world_dir))

    async def _prepared(self, source: AppSource, arm: LockedArm, world_digest: str, world_dir: Path) -> Prepared:
        manifest = arm.manifest
        base, base_ref = await self._base(source, arm.tree, manifest)
        if manifest.restore is None and manifest.dump is None:
            row = await self.runtime(source, arm)
        else:
            row = await self._restored(source, arm, base, base_ref, world_digest, world_dir)
        chain = await asyncio.to_thread(self._rows.of_keys, [*row.parents, row.key])
        await asyncio.to_thread(self._rows.used, chain)
        image = chain[row.parents[0]] if row.parents else row
        return Prepared(
            key=row.key,
            layers=(base_ref, *(chain[parent].ref for parent in row.parents), row.ref),
            world_dir=world_dir,
            state=row.state,
            image_commit=image.commit,
        )

    async def _restored(
        self, source: AppSource, arm: LockedArm, base: str, base_ref: str, world_digest: str, world_dir: Path
    ) -> LayerRow:
        manifest = arm.manifest
        services = None if manifest.services is None else manifest.services.model_dump()
        how = [manifest.build, manifest.reset, manifest.restore, services, manifest.dump]
        key = digest([PREPARED, base, arm.tree, how, world_digest])

        async def make() -> LayerRow:
            if (known := await self._known(key)) is not None:
                return known
            runtime = await self.runtime(source, arm)
            steps = [] if manifest.restore is None else [Step(name="restore", argv=manifest.restore)]
            parents = [base_ref, *await self._refs(runtime)]
            build = Build(key=key, app=manifest.name, parents=parents, steps=steps, resources=manifest.resources, world=world_dir)
            built = await self._builder.build(build)
            return await self._record(
                key,
                built,
                kind=PREPARED,
                manifest=manifest,
                base=base,
                commit=arm.commit,
                tree=arm.tree,
                parents=[*runtime.parents, runtime.key],
                world=world_digest,
                state=None if manifest.dump is None else await self._state(build, built.ref, manifest),
            )

        return await self._builder.once(key, make)

    async def _known(self, key: str) -> LayerRow | None:
        """The recorded layer, while it and all below it are there."""
        row = await asyncio.to_thread(self._rows.find, key)
        if row is None:
            return None
        chain = await asyncio.to_thread(self._rows.of_keys, [*row.parents, key])
        there = [parent in chain and self._backend.layer(parent) is not None for parent in [*row.parents, key]]
        return row if all(there) else None

    async def _refs(self, row: LayerRow) -> list[str]:
        below = await asyncio.to_thread(self._rows.of_keys, row.parents)
        return [*(below[parent].ref for parent in row.parents), row.ref]

    async def _base(self, source: AppSource, tree: str, manifest: AppManifest) -> tuple[str, str]:
        """What the image stands on: a key that names it, and its ref."""
        image = manifest.image
        lock = await asyncio.to_thread(_file_of, source.repo, tree, image.requirements)
        recipe = await asyncio.to_thread(_file_of, source.repo, tree, image.dockerfile)
        name = digest([IDENTITY_VERSION, image.model_dump(), *((part or b"").decode() for part in (lock, recipe))])
        ref = await self._builder.once(f"base-{name}", lambda: self._backend.base_layer(requirements=lock, dockerfile=recipe))
        return digest([name, Path(ref).name]), ref

    async def _image_for(self, source: AppSource, arm: LockedArm, base: str) -> LayerRow:
        """The nearest image at an ancestor; else a new one, at the arms' common ancestor if that serves them, or at the arm itself."""
        found = await asyncio.to_thread(self._nearest, source.repo, arm, base)
        if found is not None:
            return found
        if source.commits and arm.commit is not None:
            shared = await asyncio.to_thread(git.common_ancestor, source.repo, source.commits)
            if shared not in (None, arm.commit):
                image = await self._image_at(source, shared, base)
                if image is not None:
                    return image
        return await self.image(source, arm.commit, arm.tree, arm.manifest)

    def _nearest(self, repo: Path, arm: LockedArm, base: str) -> LayerRow | None:
        there = [row for row in self._rows.images(arm.manifest.name, base) if self._backend.layer(row.key) is not None]
        if same := [row for row in there if row.tree == arm.tree]:
            return same[0]
        away = [(git.distance(repo, row.commit, arm.commit or "HEAD"), row) for row in there if row.commit is not None]
        near = [(commits, row) for commits, row in away if commits is not None]
        return min(near, key=lambda pair: pair[0])[1] if near else None

    async def _image_at(self, source: AppSource, commit: str, base: str) -> LayerRow | None:
        """None when the app was not there yet, stood on something else, or does not build there."""
        try:
            tree = await asyncio.to_thread(git.tree_of, source.repo, commit, source.path)
            manifest = await asyncio.to_thread(read_manifest, source.repo, tree)
            if (await self._base(source, tree, manifest))[0] != base:
                return None
            return await self.image(source, commit, tree, manifest)
        except (SpecError, BuildError):
            return None

    async def _app_build(
        self,
        key: str,
        parents: Sequence[str],
        steps: list[Step],
        name: str,
        command: Sequence[str] | None,
        manifest: AppManifest,
        bundle: bytes,
    ) -> Built:
        means = self._build_means(manifest) if command else PhaseMeans()
        if command:
            steps = [*steps, Step(name=name, argv=command, env=means.env, with_secrets=True)]
        build = Build(
            key=key,
            app=manifest.name,
            parents=parents,
            steps=steps,
            resources=manifest.resources,
            files={_BUNDLE: bundle},
            egress=means.egress,
            secrets=means.secrets,
        )
        return await self._builder.build(build)

    async def _state(self, build: Build, ref: str, manifest: AppManifest) -> str:
        """The app's own dump of the prepared layer, before any agent: services up, dumped, collected."""
        means = self._agent_means(manifest)
        above = Build(
            key=build.key,
            app=build.app,
            parents=[*build.parents, ref],
            steps=[],
            resources=build.resources,
            world=build.world,
            secrets=means.secrets,
        )
        sandbox = await self._builder.fresh_sandbox(above, purpose="state")
        try:
            if manifest.services is not None:
                await start_services(sandbox, manifest.services, {})
            await dump_state(sandbox, manifest)
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                path = Path(folder) / "state.tar.gz"
                await sandbox.collect(path)
                return (await asyncio.to_thread(self._store.put_file, path)).digest
        finally:
            await sandbox.terminate()

    async def _record(
        self,
        key: str,
        built: Built,
        *,
        kind: str,
        manifest: AppManifest,
        base: str,
        commit: str | None,
        tree: str,
        parents: list[str],
        world: str | None,
        state: str | None = None,
    ) -> LayerRow:
        content = self._backend.layer_content(key)
        row = LayerRow(
            backend=self._rows.backend,
            place=self._rows.place,
            key=key,
            kind=kind,
            app=manifest.name,
            base=base,
            commit=commit,
            tree=tree,
            world=world,
            parents=parents,
            ref=built.ref,
            digest=None if content is None else content.digest,
            size_bytes=None if content is None else content.size_bytes,
            built_s=built.seconds,
            state=state,
        )
        await asyncio.to_thread(self._rows.add, row)
        return row


@cache
def _file_of(repo: Path, tree: str, name: str | None) -> bytes | None:
    return git.read_file(repo, tree, name) if name else None
