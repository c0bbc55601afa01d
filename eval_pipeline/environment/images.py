"""The app's code as layers: an image is the whole app at some commit; a runtime is what another commit changes over it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.lock import IDENTITY_VERSION, LockedArm
from eval_pipeline.environment import compose
from eval_pipeline.environment.book import LayerBook
from eval_pipeline.environment.build_context import build_context
from eval_pipeline.environment.building import Build, Builder, Built, Step
from eval_pipeline.environment.lifecycle import APP_DIR
from eval_pipeline.errors import BuildError, SpecError
from eval_pipeline.sandbox.base import RUN_DIR, Backend, Engine, Pulled, SyncedSecret
from eval_pipeline.specs import git
from eval_pipeline.specs.lock import read_manifest
from eval_pipeline.store.layers import IMAGE, RUNTIME, LayerRow

ENGINE_TIMEOUT_S = 120.0
_BUNDLE = f"{RUN_DIR}/app.bundle"
_CLONE = f"git clone -q -b app {_BUNDLE} {APP_DIR} && git -C {APP_DIR} remote remove origin"
_CHECKOUT = f"git -C {APP_DIR} fetch -q {_BUNDLE} refs/heads/app && git -C {APP_DIR} checkout -q -f -B app FETCH_HEAD"


@dataclass(frozen=True, kw_only=True)
class AppSource:
    """Where the app's code is. commits: of all arms that run together; one image at their common ancestor may serve them."""

    repo: Path
    path: str
    commits: tuple[str, ...] = ()

    @classmethod
    def of(cls, repo: Path, path: str, arms: Iterable[LockedArm]) -> AppSource:
        commits = dict.fromkeys(arm.commit for arm in arms if arm.commit is not None)
        return cls(repo=repo, path=path, commits=tuple(commits))


@dataclass(frozen=True, kw_only=True)
class PhaseMeans:
    """What a phase may reach and know. egress_local: those of `egress` that may have a private address."""

    egress: Sequence[str] = ()
    egress_local: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    synced: SyncedSecret | None = None


Means = Callable[[AppManifest], PhaseMeans]


@dataclass(frozen=True)
class Base:
    """What an image stands on: a key that names it and its ref."""

    key: str
    ref: str


class Images:
    """build_means: what `build` and `reset` of an app may reach and know; called in a thread, it may take seconds."""

    def __init__(self, backend: Backend, book: LayerBook, builder: Builder, build_means: Means) -> None:
        self._backend = backend
        self._book = book
        self._builder = builder
        self._build_means = build_means

    async def base(self, source: AppSource, tree: str, manifest: AppManifest) -> Base:
        image = manifest.image
        lock = await asyncio.to_thread(_file_of, source.repo, tree, image.requirements)
        recipe = await asyncio.to_thread(_file_of, source.repo, tree, image.dockerfile)
        context = {} if recipe is None else await asyncio.to_thread(build_context, source.repo, tree, recipe)
        named = [IDENTITY_VERSION, image.model_dump(), *((part or b"").decode() for part in (lock, recipe))]
        named += [[path, file.executable, hashlib.sha256(file.data).hexdigest()] for path, file in sorted(context.items())]
        name, pulled = digest(named), image.registry or image.ecr

        async def make() -> str:
            from_registry = None if pulled is None else Pulled(pulled, ecr=image.ecr is not None)
            return await self._backend.base_layer(requirements=lock, dockerfile=recipe, context=context, pulled=from_registry)

        ref = await self._builder.once(f"base-{name}", make)
        return Base(digest([name, Path(ref).name]), ref)

    async def image(self, source: AppSource, commit: str | None, tree: str, manifest: AppManifest) -> LayerRow:
        """The whole app at this tree. Raises BuildError."""
        base = await self.base(source, tree, manifest)
        key = digest([IMAGE, base.key, tree, manifest.build, *_engine_key(manifest)])

        async def make() -> LayerRow:
            if (known := await self._book.known(key)) is not None:
                return known
            bundle = await asyncio.to_thread(git.bundle, source.repo, tree)
            built = await self._build(key, [base.ref], ("clone", _CLONE, "/"), ("build", manifest.build), manifest, bundle)
            return await self._book.record(
                IMAGE, key, built.ref, app=manifest.name, base=base.key, commit=commit, tree=tree, built_s=built.seconds
            )

        return await self._builder.once(key, make)

    async def runtime(self, source: AppSource, arm: LockedArm) -> LayerRow:
        """The app at the arm's tree: an image of it where there is one, else the delta over the nearest image. Raises BuildError.

        The key names the tree and the commands, not the image below: of one tree there is one runtime, whatever images come and go.
        """
        base = await self.base(source, arm.tree, arm.manifest)
        key = digest([RUNTIME, base.key, arm.tree, arm.manifest.build, arm.manifest.reset, *_engine_key(arm.manifest)])

        async def make() -> LayerRow:
            if (known := await self._book.known(key)) is not None:
                return known
            image = await self._image_for(source, arm, base)
            return image if image.tree == arm.tree else await self._delta(key, source, arm, base, image)

        return await self._builder.once(key, make)

    async def _delta(self, key: str, source: AppSource, arm: LockedArm, base: Base, image: LayerRow) -> LayerRow:
        manifest = arm.manifest
        bundle = await asyncio.to_thread(git.bundle, source.repo, arm.tree, over=image.tree)
        reset = ("reset", manifest.reset or manifest.build)
        built = await self._build(key, [base.ref, image.ref], ("checkout", _CHECKOUT, "/"), reset, manifest, bundle, image.key)
        return await self._book.record(
            RUNTIME,
            key,
            built.ref,
            app=manifest.name,
            base=base.key,
            commit=arm.commit,
            tree=arm.tree,
            built_s=built.seconds,
            parents=[image.key],
        )

    async def _image_for(self, source: AppSource, arm: LockedArm, base: Base) -> LayerRow:
        """The nearest image at an ancestor; else a new one, at the arms' common ancestor if that serves them, or at the arm itself."""
        gone: set[str] = set()
        while (found := await asyncio.to_thread(self._nearest, source.repo, arm, base, gone)) is not None:
            if await self._book.known(found.key) is not None:
                return found
            gone.add(found.key)
        if source.commits and arm.commit is not None:
            shared = await asyncio.to_thread(git.common_ancestor, source.repo, source.commits)
            image = await self._image_at(source, shared, base) if shared not in (None, arm.commit) else None
            if image is not None:
                return image
        return await self.image(source, arm.commit, arm.tree, arm.manifest)

    def _nearest(self, repo: Path, arm: LockedArm, base: Base, without: Container[str]) -> LayerRow | None:
        there = [row for row in self._book.images(arm.manifest.name, base.key) if row.key not in without]
        if same := [row for row in there if row.tree == arm.tree]:
            return same[0]
        away = [(git.distance(repo, row.commit, arm.commit or "HEAD"), row) for row in there if row.commit is not None]
        near = [(commits, row) for commits, row in away if commits is not None]
        return min(near, key=lambda pair: pair[0])[1] if near else None

    async def _image_at(self, source: AppSource, commit: str, base: Base) -> LayerRow | None:
        """None when the app was not there yet, stood on something else, or does not build there."""
        try:
            tree = await asyncio.to_thread(git.tree_of, source.repo, commit, source.path)
            manifest = await asyncio.to_thread(read_manifest, source.repo, tree)
            if (await self.base(source, tree, manifest)).key != base.key:
                return None
            return await self.image(source, commit, tree, manifest)
        except (SpecError, BuildError):
            return None

    async def _build(
        self,
        key: str,
        parents: Sequence[str],
        fetch: tuple[str, str, str],
        command: tuple[str, Sequence[str] | None],
        manifest: AppManifest,
        bundle: bytes,
        above: str | None = None,
    ) -> Built:
        steps = [Step(name=fetch[0], argv=["/bin/sh", "-c", fetch[1]], workdir=fetch[2])]
        engine = None if manifest.compose is None else Engine.PULLS
        means = PhaseMeans()
        if command[1] is not None or engine is not None:
            means = await asyncio.to_thread(self._build_means, manifest)
        if command[1] is not None:
            steps.append(Step(name=command[0], argv=command[1], env=means.env, with_secrets=True, with_engine=engine is not None))
        if manifest.compose is not None:
            argv = compose.pull(manifest.compose, ENGINE_TIMEOUT_S)
            steps.append(Step(name="containers", argv=argv, env=means.env, with_secrets=True, with_engine=True))
        build = Build(
            key=key,
            app=manifest.name,
            parents=parents,
            above=above,
            steps=steps,
            resources=manifest.resources,
            files={_BUNDLE: bundle, **means.files},
            egress=means.egress,
            egress_local=means.egress_local,
            secrets=means.secrets,
            engine=engine,
            synced=means.synced,
        )
        return await self._builder.build(build)


def _engine_key(manifest: AppManifest) -> list[str]:
    """Nothing of an app without containers: its layers keep their keys."""
    return [] if manifest.compose is None else [manifest.compose]


@cache
def _file_of(repo: Path, tree: str, name: str | None) -> bytes | None:
    return git.read_file(repo, tree, name) if name else None
