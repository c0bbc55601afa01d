"""What a cell stands on, built once and shared: base -> image -> runtime(app tree) -> prepared(app tree, world)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.lock import LockedArm
from eval_pipeline.environment.book import LayerBook
from eval_pipeline.environment.building import Build, Builder, Step
from eval_pipeline.environment.gone import built_again
from eval_pipeline.environment.images import AppSource, Base, Images, Means, PhaseMeans
from eval_pipeline.environment.lifecycle import dump_state, start_services
from eval_pipeline.environment.locks import BuildLocks
from eval_pipeline.sandbox.base import Backend, Engine
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.layers import PREPARED, LayerRow, LayerRows
from eval_pipeline.vault.bundles import RedactionTask, redact_bundle
from eval_pipeline.vault.redaction import Redactor


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """layers: refs, lowest first. world_dir: the restored snapshot. key: names the content.

    state: artifact of the app's dump before any agent; None when the app dumps nothing. image_commit: of the image below; None when
    that is a working tree's.
    """

    key: str
    layers: tuple[str, ...]
    world_dir: Path
    state: str | None
    image_commit: str | None


def _nothing(_: AppManifest) -> PhaseMeans:
    return PhaseMeans()


def _no_secrets() -> Redactor:
    return Redactor({})


class Layers:
    """Builds what is missing. scratch: for files on their way into the store. agent_means: what services may know.

    redactor: of all that anybody was given.
    """

    def __init__(
        self,
        backend: Backend,
        rows: LayerRows,
        store: ArtifactStore,
        installation: str,
        locks: BuildLocks,
        scratch: Path,
        *,
        build_means: Means = _nothing,
        agent_means: Means = _nothing,
        redactor: Callable[[], Redactor] = _no_secrets,
    ) -> None:
        self._redactor = redactor
        self._store = store
        self._scratch = scratch
        self._agent_means = agent_means
        self._held: dict[str, tuple[Prepared, dict[str, str]]] = {}
        self.book = LayerBook(backend, rows)
        self.locks = locks
        self.builder = Builder(backend, installation, locks)
        self.images = Images(backend, self.book, self.builder, build_means)

    async def prepared(self, source: AppSource, arm: LockedArm, world_digest: str, world_dir: Path) -> Prepared:
        """Raises BuildError with the end of the log when one of the app's commands fails."""
        asked = digest([arm.tree, arm.manifest.model_dump(mode="json"), world_digest])
        prepared, refs = self._held.get(asked, (None, {}))
        if prepared is None or not await self.book.there(refs):
            made = await self.builder.shared(
                asked, lambda: built_again(lambda: self._prepared(source, arm, world_digest, world_dir))
            )
            self._held[asked] = made
            prepared = made[0]
        return prepared

    async def _prepared(
        self, source: AppSource, arm: LockedArm, world_digest: str, world_dir: Path
    ) -> tuple[Prepared, dict[str, str]]:
        """With the refs of its layers by key: while they are there it is good."""
        base = await self.images.base(source, arm.tree, arm.manifest)
        if arm.manifest.restore is None and arm.manifest.dump is None:
            row = await self.images.runtime(source, arm)
        else:
            row = await self._restored(source, arm, base, world_digest, world_dir)
        chain = await self.book.chain(row)
        await asyncio.to_thread(self.book.rows.used, [layer.key for layer in chain])
        prepared = Prepared(
            key=row.key,
            layers=(base.ref, *(layer.ref for layer in chain)),
            world_dir=world_dir,
            state=row.state,
            image_commit=chain[0].commit,
        )
        return prepared, {layer.key: layer.ref for layer in chain}

    async def _restored(self, source: AppSource, arm: LockedArm, base: Base, world_digest: str, world_dir: Path) -> LayerRow:
        manifest = arm.manifest
        services = None if manifest.services is None else manifest.services.model_dump()
        engine = None if manifest.compose is None else Engine.CACHED
        how = [manifest.build, manifest.reset, manifest.restore, services, manifest.dump]
        key = digest([PREPARED, base.key, arm.tree, how, world_digest])

        async def make() -> LayerRow:
            known = await self.book.known(key)
            if known is not None and await self._has_state(known):
                return known
            runtime = await self.images.runtime(source, arm)
            build = Build(
                key=key,
                app=manifest.name,
                parents=[base.ref, *(layer.ref for layer in await self.book.chain(runtime))],
                above=runtime.key,
                steps=[]
                if manifest.restore is None
                else [Step(name="restore", argv=manifest.restore, with_engine=engine is not None)],
                resources=manifest.resources,
                world=world_dir,
                engine=engine,
            )
            built = await self.builder.build(build)
            return await self.book.record(
                PREPARED,
                key,
                built.ref,
                app=manifest.name,
                base=base.key,
                commit=arm.commit,
                tree=arm.tree,
                built_s=built.seconds,
                parents=[*runtime.parents, runtime.key],
                world=world_digest,
                state=None if manifest.dump is None else await self._state(build, built.ref, manifest),
            )

        return await self.builder.once(key, make)

    async def _has_state(self, row: LayerRow) -> bool:
        """Every cell's state is compared with it, so one that is gone is dumped again."""
        return row.state is None or await asyncio.to_thread(self._store.exists, row.state)

    async def _state(self, build: Build, ref: str, manifest: AppManifest) -> str:
        """The app's own dump of the prepared layer, before any agent: services up, dumped, collected."""
        means = await asyncio.to_thread(self._agent_means, manifest)
        above = replace(
            build, parents=[*build.parents, ref], steps=(), secrets=means.secrets, synced=means.synced, egress=means.egress
        )
        async with self.builder.fresh_sandbox(above, purpose="state") as sandbox:
            if manifest.services is not None:
                await start_services(sandbox, manifest.services, {})
            await dump_state(sandbox, manifest)
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                path = Path(folder) / "state.tar"
                await sandbox.collect(path)
                # As the state that is compared with it will be: services may keep what they were given
                sealed, aside = path.with_name("sealed"), path.with_name("aside")
                redactor = await asyncio.to_thread(self._redactor)
                await asyncio.to_thread(redact_bundle, RedactionTask(path=path, sealed=sealed, aside=aside, redactor=redactor))
                return (await asyncio.to_thread(self._store.take_file, sealed)).digest
