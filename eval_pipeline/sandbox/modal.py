"""The Modal backend: one Modal sandbox a Sandbox, layers as file system snapshots, worlds on a volume.

The SDK is loaded by the first call that needs it. A create that is cancelled goes on and is found again by its name; what nobody
finds, the reaper ends by its tags.
"""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from eval_pipeline.errors import ForeignSandbox, LayerGone, SandboxError, SandboxLost
from eval_pipeline.sandbox import modal_engine
from eval_pipeline.sandbox import modal_plan as plan
from eval_pipeline.sandbox import modal_scripts as scripts
from eval_pipeline.sandbox.base import ContextFile, Pulled, Sandbox, SandboxInfo, SandboxSpec
from eval_pipeline.sandbox.local import script
from eval_pipeline.sandbox.modal_images import Recipe, build_base
from eval_pipeline.sandbox.modal_sandbox import ModalSandbox
from eval_pipeline.sandbox.modal_worlds import Worlds
from eval_pipeline.settings import ModalSettings

if TYPE_CHECKING:
    from eval_pipeline.sandbox.modal_client import Cloud, Machine

BUILD_TAG = ("purpose", "build")
_REPEATED = {"build", "state"}  # begun anew in a fresh machine, so one that was lost does not keep its name
INSTALLATION, NAME = "evals-installation", "evals-name"
SNAPSHOT_TTL = timedelta(days=30)
SNAPSHOT_KEPT = SNAPSHOT_TTL - timedelta(days=1)
_SNAPSHOT_TIMEOUT_S = 600
_CONNECTING = 64
_THROTTLED_S = (1.0, 60.0)
_THROTTLED_TRIES = 12


class LayerRefs(Protocol):
    """Where the ids of images are kept: Modal can't list its snapshots."""

    def get(self, key: str) -> str | None:
        """The ref, unless it is unknown or has expired."""
        ...

    def expires_at(self, key: str) -> datetime | None:
        """Of one that was put here."""
        ...

    def put(self, key: str, ref: str, expires_at: datetime) -> str:
        """The ref that stands: the first one that was put."""
        ...

    def keep(self, key: str, ref: str, built_s: float) -> str:
        """The same for one that does not expire and is recorded by nobody else."""
        ...

    def remove(self, key: str) -> None: ...

    def gone(self, ref: str) -> None:
        """Modal has it no more."""
        ...


def place_of(settings: ModalSettings) -> str:
    return f"{settings.environment or 'default'}/{settings.app}"


async def unthrottled() -> None:
    return


class ModalBackend:
    """throttle: awaited before each create; the installation's share of what Modal allows.

    A sandbox tagged `purpose: build` can be committed. `max_sandboxes` of the settings says how many files this process may need open.
    """

    name = "modal"

    def __init__(
        self,
        installation: str,
        settings: ModalSettings,
        refs: LayerRefs,
        throttle: Callable[[], Awaitable[None]] = unthrottled,
    ) -> None:
        self._installation = installation
        self._settings = settings
        self._refs = refs
        self._throttle = throttle
        self._worlds = Worlds()
        self._turns: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._creating: set[asyncio.Task[Machine]] = set()
        self._live: set[str] = set()
        self._cloud: Cloud | None = None

    @property
    def cloud(self) -> Cloud:
        if self._cloud is None:
            from eval_pipeline.sandbox.modal_calls import reserve_descriptors
            from eval_pipeline.sandbox.modal_client import Cloud

            reserve_descriptors(2 * self._settings.max_sandboxes + 1024)
            self._cloud = Cloud(self._settings)
        return self._cloud

    @property
    def place(self) -> str:
        return place_of(self._settings)

    @property
    def runtime(self) -> str:
        return self._settings.runtime

    @property
    def missing(self) -> Mapping[str, str]:
        return plan.MISSING

    @property
    def poll_s(self) -> float:
        """How long to wait between two looks at a command: a look costs this process some 10 ms, and there may be thousands to look at."""
        return min(60.0, max(1.0, 0.04 * len(self._live)))

    async def get_or_create(self, spec: SandboxSpec) -> Sandbox:
        script.check_spec(spec)
        scripts.check_values("a secret", [*spec.secrets.values()])
        domains = plan.domains(spec.egress, spec.egress_local)
        lifetime_s = plan.check_lifetime(spec.name, spec.lifetime_s or plan.MAX_LIFETIME_S)
        plan.check_engine(spec.name, spec.engine is not None, self._settings.runtime)
        async with self._turn():
            machine = await self._last(spec) or await self._create(spec, domains, lifetime_s)
            made = self._sandbox(machine, spec)
            if await made.alive():
                await self._set_up(made, spec)
            return made

    def _turn(self) -> asyncio.Semaphore:
        """Of this loop: a backend may outlive the loop that used it first."""
        loop = asyncio.get_running_loop()
        if self._turns is None or self._turns[0] is not loop:
            self._turns = loop, asyncio.Semaphore(_CONNECTING)
        return self._turns[1]

    async def _last(self, spec: SandboxSpec) -> Machine | None:
        """Who has the name. One that was lost keeps it, so that nobody goes on in a fresh machine as if it were the old one."""
        found = await self.cloud.named(spec.name, ended=True)
        if found is None:
            return None
        if await found.ended() and (_REPEATED & {spec.tags.get("purpose")} or await found.was_told_to_end()):
            return None
        return await self._adopted(found, spec)

    async def _adopted(self, found: Machine, spec: SandboxSpec) -> Machine:
        owner = scripts.decode_tags(await found.tags()).get(INSTALLATION)
        if owner != spec.installation:
            raise ForeignSandbox(
                f"the sandbox {spec.name} belongs to the installation {owner}, not to {spec.installation}",
                hint="two ledgers share one Modal app: give each its own with EVALS_MODAL_APP",
            )
        return found

    async def _create(self, spec: SandboxSpec, domains: Sequence[str] | None, lifetime_s: int) -> Machine:
        """Shielded: the SDK forgets a create that is cancelled, and Modal does not."""
        task = asyncio.ensure_future(self._create_one(spec, domains, lifetime_s))
        self._creating.add(task)
        task.add_done_callback(self._creating.discard)
        return await asyncio.shield(task)

    async def _create_one(self, spec: SandboxSpec, domains: Sequence[str] | None, lifetime_s: int) -> Machine:
        from eval_pipeline.sandbox.modal_calls import NameTaken, Throttled
        from eval_pipeline.sandbox.modal_client import Wanted

        tags = {**spec.tags, INSTALLATION: spec.installation, NAME: spec.name}
        wanted = Wanted(
            name=spec.name,
            tags=scripts.encode_tags(tags),
            image=spec.layers[-1] if spec.layers else await self.base_layer(),
            world=None if spec.world is None else await self._world(spec.world),
            domains=domains,
            resources=spec.resources,
            lifetime_s=lifetime_s,
        )
        entrypoint = scripts.ENTRYPOINT if spec.engine is None else modal_engine.entrypoint(spec.engine)
        pause_s, longest_s = _THROTTLED_S
        for tried in range(_THROTTLED_TRIES):
            await self._throttle()
            try:
                return await self.cloud.create(wanted, entrypoint)
            except NameTaken:
                # our own, made by somebody else this moment, or by a call whose answer never came
                if (found := await self.cloud.named(spec.name)) is not None:
                    return await self._adopted(found, spec)
            except LayerGone:
                await asyncio.to_thread(self._refs.gone, wanted.image)
                raise
            except Throttled:
                if tried == _THROTTLED_TRIES - 1:
                    raise
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(longest_s, pause_s * 2)
            except SandboxError:
                if (found := await self.cloud.named(spec.name)) is not None:
                    return await self._adopted(found, spec)
                if tried >= 2:
                    raise
        raise SandboxError(f"the sandbox {spec.name} could not be made: its name is taken and nobody has it")

    async def _world(self, world: Path) -> tuple[str, str]:
        volume = f"{self._settings.app}-worlds"
        return volume, await self._worlds.path_of(world, await self.cloud.volume(volume))

    async def _set_up(self, made: ModalSandbox, spec: SandboxSpec) -> None:
        try:
            files = scripts.package(spec.files)
            done = await made.as_root(scripts.SETUP, spec.name, str(len(files)), stdin=files)
        except SandboxLost:
            return
        if done.code != 0:
            raise SandboxError(f"{spec.name} could not be set up: {done.complaint}")

    def _sandbox(self, machine: Machine, spec: SandboxSpec | None = None) -> ModalSandbox:
        self._live.add(machine.name)
        synced = None if spec is None else spec.synced
        named = None if synced is None else lambda: self.cloud.named_secret(synced.name, synced.keys)
        return ModalSandbox(machine, {} if spec is None else spec.secrets, self._live.discard, named)

    async def find(self, name: str) -> Sandbox | None:
        if not script.NAME.fullmatch(name):
            return None
        found = await self.cloud.named(name)
        return None if found is None else self._sandbox(found)

    async def list(self) -> builtins.list[SandboxInfo]:
        found = await self.cloud.running()
        turns = asyncio.Semaphore(_CONNECTING)

        async def info(machine: Machine) -> SandboxInfo | None:
            async with turns:
                tags = scripts.decode_tags(await machine.tags())
            if NAME not in tags or INSTALLATION not in tags:
                return None  # somebody else's, in the same app
            rest = {key: value for key, value in tags.items() if key not in (NAME, INSTALLATION)}
            return SandboxInfo(name=tags[NAME], installation=tags[INSTALLATION], tags=rest, alive=True)

        infos = await asyncio.gather(*map(info, found))
        return [one for one in infos if one is not None]

    async def commit(self, sandbox: Sandbox, key: str) -> str:
        sealed = self.layer(key)
        if sealed is None:
            sealed = await self._commit(sandbox, key)
        await sandbox.terminate()
        return sealed

    async def _commit(self, sandbox: Sandbox, key: str) -> str:
        if not isinstance(sandbox, ModalSandbox):
            raise SandboxError(f"{sandbox.name} is no sandbox on Modal")
        tags = scripts.decode_tags(await sandbox.machine.tags())
        if BUILD_TAG not in tags.items():
            raise SandboxError(
                f"{sandbox.name} is no build sandbox, so {key} can't be sealed from it", hint="tag it purpose: build"
            )
        done = await sandbox.as_root(scripts.SEAL)
        if done.code != 0:
            raise SandboxError(f"{sandbox.name} can't be sealed as {key}: {done.complaint}")
        ttl_s = int(SNAPSHOT_TTL.total_seconds())
        ref = await sandbox.patiently(lambda: sandbox.machine.snapshot(ttl_s, _SNAPSHOT_TIMEOUT_S))
        return self._refs.put(script.check_key(key), ref, datetime.now(UTC) + SNAPSHOT_KEPT)

    def layer(self, key: str) -> str | None:
        return self._refs.get(script.check_key(key))

    def layer_content(self, key: str) -> None:
        """Modal does not tell what is in a snapshot."""

    def layer_expires_at(self, key: str) -> datetime | None:
        return self._refs.expires_at(script.check_key(key))

    async def remove_layer(self, key: str, ref: str | None = None) -> None:
        self._refs.remove(script.check_key(key))
        if ref is not None:
            await self.cloud.delete_image(ref)

    def contents(self) -> Mapping[str, float]:
        """Modal lists no snapshots; it ends each by itself."""
        return {}

    async def base_layer(
        self,
        *,
        requirements: bytes | None = None,
        dockerfile: bytes | None = None,
        context: Mapping[str, ContextFile] | None = None,
        pulled: Pulled | None = None,
    ) -> str:
        """Built once; with the wheels of a hashed pip lock at /opt/venv, or as the Dockerfile or the registry has it."""
        recipe = Recipe(requirements=requirements, dockerfile=dockerfile, context=context or {}, pulled=pulled)
        if (known := self._refs.get(recipe.key)) is not None:
            return known
        ref, built_s = await build_base(self.cloud, recipe, self._settings.ecr_secret)
        return await asyncio.to_thread(self._refs.keep, recipe.key, ref, built_s)

    async def publish(self, ref: str, name: str) -> str:
        published = f"{self._settings.app}-{name}"
        try:
            await self.cloud.publish(ref, published)
        except LayerGone:
            await asyncio.to_thread(self._refs.gone, ref)
            raise
        return published

    async def aclose(self) -> None:
        """Sandboxes live on. A create that is under way is waited for: its sandbox shall have been told its name and tags."""
        if self._creating:
            await asyncio.gather(*self._creating, return_exceptions=True)
