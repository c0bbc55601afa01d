"""Making one layer: by one process at a time and one task in it, in a sandbox, seen only once it is whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from eval_pipeline.domain.app import Resources as AppResources
from eval_pipeline.domain.ids import sandbox_name
from eval_pipeline.environment.lifecycle import APP_DIR, run_command
from eval_pipeline.environment.locks import BuildLocks
from eval_pipeline.errors import BuildError
from eval_pipeline.sandbox.base import Backend, Engine, Resources, Sandbox, SandboxSpec, SyncedSecret
from eval_pipeline.vault.redaction import Redactor

BUILD_TIMEOUT_S = 1800.0
FAILED_KEPT_S = 60.0
"""How long all who need a layer that failed to build are told so, before one of them tries again."""
# Prints the living processes beside PID 1 and this one, by name, when they are still there after 2 s
_OTHERS = """
n=0
while [ $n -lt 40 ]; do
  left=
  for p in /proc/[0-9]*; do
    pid=${p#/proc/}
    [ "$pid" = 1 ] || [ "$pid" = $$ ] || [ ! -O "$p" ] || ! read -r stat <"$p/stat" || case $stat in
      *") Z "*) ;;
      *) read -r name <"$p/comm" && left="$left $name" ;;
    esac
  done 2>/dev/null
  [ -n "$left" ] || exit 0
  n=$((n + 1))
  sleep 0.05
done
echo "$left"
"""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a build. env and secrets only where the app's own code runs."""

    name: str
    argv: Sequence[str]
    workdir: str = APP_DIR
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    with_secrets: bool = False
    with_engine: bool = False


@dataclass(frozen=True, kw_only=True)
class Build:
    """What a layer is made of. secrets: for the steps that ask for them. egress: of the whole sandbox.

    above: the key of the highest parent; None when that is the base.
    """

    key: str
    app: str
    parents: Sequence[str]
    steps: Sequence[Step]
    resources: AppResources
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    above: str | None = None
    world: Path | None = None
    egress: Sequence[str] = ()
    egress_local: Sequence[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    engine: Engine | None = None
    synced: SyncedSecret | None = None


@dataclass(frozen=True, kw_only=True)
class Built:
    """seconds: None when the layer was there, because its record was lost."""

    ref: str
    seconds: float | None


class Builder:
    def __init__(self, backend: Backend, installation: str, locks: BuildLocks) -> None:
        self._backend = backend
        self._installation = installation
        self._locks = locks
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._failed: dict[str, tuple[BuildError, float]] = {}

    async def once(self, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `make` returns, called by one at a time, also of several processes; who asks here meanwhile gets the same."""
        return await self.shared(key, lambda: self.alone(key, make))

    async def shared(self, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same within this process only. It goes on for the others when one that asked is cancelled.

        Of an end only a BuildError is kept, for FAILED_KEPT_S: a thousand cells must not each try what fails, and a layer may go.
        """
        error, until = self._failed.get(key, (None, 0.0))
        if error is not None and time.monotonic() < until:
            raise BuildError(str(error), hint=error.hint)
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(make())
            task.add_done_callback(lambda ended: self._ended(key, ended))
        return await asyncio.shield(task)

    def _ended(self, key: str, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BuildError):
            self._failed[key] = error, time.monotonic() + FAILED_KEPT_S

    async def alone(self, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `make` returns, called while no other holds the key: in this process or in another of this place."""
        async with self._locks.hold(key):
            return await make()

    async def build(self, build: Build) -> Built:
        """Raises BuildError with the end of the log when a step fails, or leaves a process behind."""
        sealed = await asyncio.to_thread(self._backend.layer, build.key)
        if sealed is not None:
            return Built(ref=sealed, seconds=None)
        began = time.monotonic()
        async with self.fresh_sandbox(build, purpose="build") as sandbox:
            for step in build.steps:
                await self._step(sandbox, step, build)
            ref = await self._backend.commit(sandbox, build.key)
        return Built(ref=ref, seconds=time.monotonic() - began)

    @asynccontextmanager
    async def fresh_sandbox(self, build: Build, *, purpose: str) -> AsyncGenerator[Sandbox]:
        """For the holder of the key's lock. What an interrupted one left is ended: half-done work is not continued."""
        spec = SandboxSpec(
            name=sandbox_name(self._installation, f"{purpose}:{build.key}", 0),
            installation=self._installation,
            tags={"purpose": purpose, "layer": build.key, **({"stands_on": build.above} if build.above else {})},
            layers=build.parents,
            world=build.world,
            files=build.files,
            secrets=build.secrets,
            synced=build.synced,
            egress=build.egress,
            egress_local=build.egress_local,
            resources=Resources(**build.resources.model_dump()),
            engine=build.engine,
        )
        await self._end(spec.name)
        try:
            yield await self._backend.get_or_create(spec)
        finally:
            await self._end(spec.name)

    async def _end(self, name: str) -> None:
        if (left := await self._backend.find(name)) is not None:
            await left.terminate()

    async def _step(self, sandbox: Sandbox, step: Step, build: Build) -> None:
        try:
            await run_command(
                sandbox,
                step.name,
                step.argv,
                timeout_s=BUILD_TIMEOUT_S,
                workdir=step.workdir,
                env=step.env,
                with_secrets=step.with_secrets,
                with_engine=step.with_engine,
            )
            await _require_quiet(sandbox, step.name)
        except BuildError as error:
            raise BuildError(without(f"{build.app}: {step.name}: {error}", build.secrets), hint=error.hint) from None


def without(text: str, secrets: Mapping[str, str]) -> str:
    """A step that was given secrets may print them, and an error goes to many places. Here the short ones go, too."""
    redactor = Redactor(secrets)
    text = redactor.text(text)
    for name in sorted(redactor.too_short, key=lambda name: len(secrets[name]), reverse=True):
        text = text.replace(secrets[name], f"[secret {name}]")
    return text


async def _require_quiet(sandbox: Sandbox, after: str) -> None:
    """A process that still runs would be cut off in the middle of what it writes, and every copy would start from that."""
    await run_command(sandbox, f"{after}.left", ["/bin/sh", "-c", _OTHERS], timeout_s=60, workdir="/")
    stdout, _ = await sandbox.logs(f"{after}.left")
    if left := sorted(set(stdout.decode(errors="replace").split())):
        raise BuildError(
            f"processes were left running: {', '.join(left)}", hint="stop what the command starts before it ends, and wait for it"
        )
