"""The root file system of a cell, built once and shared: base -> runtime(app tree) -> prepared(app tree, world)."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.canonical import digest
from eval_pipeline.domain.ids import sandbox_name
from eval_pipeline.domain.lock import IDENTITY_VERSION, LockedArm
from eval_pipeline.errors import BuildError
from eval_pipeline.sandbox.base import RUN_DIR, Backend, Phase, Resources, Sandbox, SandboxSpec
from eval_pipeline.specs import git

APP_DIR = "/app"
BUILD_TIMEOUT_S = 1800.0
_POLL_S = 0.05
_LOG_BYTES = 4000


class BaseLayers(Protocol):
    async def host_layer(self, requirements: bytes | None = None) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """layers: refs, lowest first. world_dir: the restored snapshot."""

    layers: tuple[str, ...]
    world_dir: Path


class Layers:
    """Builds missing layers; the same layer is built by one process at a time and by one task in it."""

    def __init__(self, backend: Backend, base: BaseLayers, installation: str, lock_dir: Path) -> None:
        self._backend = backend
        self._base = base
        self._installation = installation
        self._lock_dir = lock_dir
        self._building: dict[str, asyncio.Task[str]] = {}

    async def prepared(self, repo: Path, arm: LockedArm, world_digest: str, world_dir: Path) -> Prepared:
        """Raises BuildError with the end of the log when one of the app's commands fails."""
        manifest = arm.manifest
        lock = await asyncio.to_thread(_requirements, repo, arm.tree, manifest.image.requirements)
        base_key = digest([IDENTITY_VERSION, manifest.image.model_dump(), (lock or b"").decode()])
        base = await self._once(base_key, lambda: self._base.host_layer(lock))
        runtime_key = digest([base_key, Path(base).name, arm.tree, manifest.build])
        runtime = await self._once(runtime_key, lambda: self._runtime(runtime_key, [base], repo, arm))
        if manifest.restore is None:
            return Prepared(layers=(base, runtime), world_dir=world_dir)
        prepared_key = digest([runtime_key, world_digest, manifest.restore])
        restore = [("restore", list(manifest.restore), APP_DIR)]
        prepared = await self._once(
            prepared_key, lambda: self._build(prepared_key, [base, runtime], restore, manifest, {}, world_dir=world_dir)
        )
        return Prepared(layers=(base, runtime, prepared), world_dir=world_dir)

    async def _once(self, key: str, make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        task = self._building.get(key)
        if task is None:
            task = self._building[key] = asyncio.create_task(self._locked(key, make))
            task.add_done_callback(lambda ended: self._forget_failed(key, ended))
        return await asyncio.shield(task)

    def _forget_failed(self, key: str, task: asyncio.Task[str]) -> None:
        """A build that failed is tried again by the next cell that needs it."""
        if task.cancelled() or task.exception() is not None:
            self._building.pop(key, None)

    async def _locked(self, key: str, make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        self._lock_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._lock_dir / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(handle):
                await asyncio.sleep(_POLL_S)
            return self._backend.layer(key) or await make()
        finally:
            os.close(handle)

    async def _runtime(self, key: str, parents: Sequence[str], repo: Path, arm: LockedArm) -> str:
        code = await asyncio.to_thread(git.archive, repo, arm.tree)
        unpack = f"mkdir -p {APP_DIR} && tar -xf {RUN_DIR}/app.tar -C {APP_DIR}"
        commands = [("checkout", ["/bin/sh", "-c", unpack], "/")]
        if arm.manifest.build is not None:
            commands.append(("build", list(arm.manifest.build), APP_DIR))
        return await self._build(key, parents, commands, arm.manifest, {f"{RUN_DIR}/app.tar": code})

    async def _build(
        self,
        key: str,
        parents: Sequence[str],
        commands: Sequence[tuple[str, list[str], str]],
        manifest: AppManifest,
        files: dict[str, bytes],
        *,
        world_dir: Path | None = None,
    ) -> str:
        spec = SandboxSpec(
            name=sandbox_name(self._installation, f"layer:{key}", 0),
            installation=self._installation,
            tags={"purpose": "build", "layer": key},
            layers=parents,
            world=world_dir,
            files=files,
            resources=Resources(**manifest.resources.model_dump()),
        )
        if (left := await self._backend.find(spec.name)) is not None:
            await left.terminate()  # a build that was interrupted: half-done work is not continued
        sandbox = await self._backend.get_or_create(spec)
        try:
            for name, argv, workdir in commands:
                await self._command(sandbox, name, argv, workdir, manifest.name)
            return await self._backend.commit(sandbox, key)
        finally:
            await sandbox.terminate()

    async def _command(self, sandbox: Sandbox, name: str, argv: list[str], workdir: str, app: str) -> None:
        await sandbox.start(name, argv, env={}, workdir=workdir)
        deadline = asyncio.get_running_loop().time() + BUILD_TIMEOUT_S
        while (state := await sandbox.state(name)).phase is Phase.RUNNING:
            if asyncio.get_running_loop().time() > deadline:
                raise BuildError(f"{app}: `{' '.join(argv)}` has not ended after {BUILD_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)
        if state.phase is not Phase.EXITED or state.exit_code != 0:
            out, err = await sandbox.logs(name, _LOG_BYTES)
            log = (out + err).decode(errors="replace").strip()
            how = state.exit_code if state.phase is Phase.EXITED else state.phase
            if hit := await sandbox.limits_hit():
                how = f"{how} (limit reached: {', '.join(hit)})"
            last = log.splitlines()[-1] if log else "it printed nothing"
            raise BuildError(
                f"{app}: {name} (`{' '.join(argv)}`) ended with {how}: {last}\n--- its log ends with\n{log}",
                hint="the command runs in the app's folder inside a sandbox without a route; fix it and run again",
            )


@cache
def _requirements(repo: Path, tree: str, name: str | None) -> bytes | None:
    return git.read_file(repo, tree, name) if name else None


def _try_lock(handle: int) -> bool:
    """Never waits: a thread that waits for another process' build would be missing elsewhere."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
