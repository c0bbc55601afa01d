"""The Modal backend: one Modal sandbox a Sandbox, layers as file system snapshots, worlds on a volume.

The SDK is loaded by the first call that needs it. A create that is cancelled goes on and is found again by its name; what nobody
finds, the reaper ends by its tags.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import hashlib
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eval_pipeline.errors import ForeignSandbox, SandboxError, SandboxLost, SpecError
from eval_pipeline.sandbox import modal_plan as plan
from eval_pipeline.sandbox import modal_scripts as scripts
from eval_pipeline.sandbox.base import Sandbox, SandboxInfo, SandboxSpec
from eval_pipeline.sandbox.local import script
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
_RECIPE_FORMAT = 1


class LayerRefs(Protocol):
    """Where the ids of images are kept: Modal can't list its snapshots."""

    def get(self, key: str) -> str | None:
        """The ref, unless it is unknown or has expired."""
        ...

    def put(self, key: str, ref: str, expires_at: datetime) -> str:
        """The ref that stands: the first one that was put."""
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
        async with self._turn():
            machine = await self._last(spec) or await self._create(spec, domains, lifetime_s)
            made = self._sandbox(machine, spec.secrets)
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
        from eval_pipeline.sandbox.modal_calls import ImageGone, NameTaken, Throttled
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
        pause_s, longest_s = _THROTTLED_S
        for tried in range(_THROTTLED_TRIES):
            await self._throttle()
            try:
                return await self.cloud.create(wanted, scripts.ENTRYPOINT)
            except NameTaken:
                # our own, made by somebody else this moment, or by a call whose answer never came
                if (found := await self.cloud.named(spec.name)) is not None:
                    return await self._adopted(found, spec)
            except ImageGone:
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
            done = await made.as_root(scripts.SETUP, spec.name, stdin=scripts.package(spec.files))
        except SandboxLost:
            return
        if done.code != 0:
            raise SandboxError(f"{spec.name} could not be set up: {done.complaint}")

    def _sandbox(self, machine: Machine, secrets: Mapping[str, str] | None = None) -> ModalSandbox:
        self._live.add(machine.name)
        return ModalSandbox(machine, secrets or {}, self._live.discard)

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

    async def remove_layer(self, key: str) -> None:
        self._refs.remove(script.check_key(key))

    def contents(self) -> Mapping[str, float]:
        """Modal lists no snapshots; it ends each by itself."""
        return {}

    async def base_layer(self, *, requirements: bytes | None = None, dockerfile: bytes | None = None) -> str:
        """With the wheels of a hashed pip lock at /opt/venv, or made from a Dockerfile without a build context. Built once."""
        if dockerfile is not None and requirements is not None:
            raise SpecError("a Dockerfile installs its own requirements")
        commands = [] if dockerfile is not None else _host_commands(requirements)
        python = f"python:{sys.version_info.major}.{sys.version_info.minor}-bookworm"
        parts = [str(_RECIPE_FORMAT), scripts.PREPARE, *commands, (dockerfile or b"").decode(), python if not dockerfile else ""]
        key = f"base-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"
        if (known := self._refs.get(key)) is not None:
            return known

        with tempfile.TemporaryDirectory(prefix="evals-") as folder:

            def recipe(image: Any) -> Any:
                base = image.from_registry(python) if dockerfile is None else _from_dockerfile(image, dockerfile, Path(folder))
                return base.dockerfile_commands([*commands, f"RUN {scripts.PREPARE}"])

            built = await self.cloud.build(recipe)
        return self._refs.put(key, built, datetime.now(UTC) + timedelta(days=3650))

    async def aclose(self) -> None:
        """Sandboxes live on. A create that is under way is waited for: its sandbox shall have been told its name and tags."""
        if self._creating:
            await asyncio.gather(*self._creating, return_exceptions=True)


def _host_commands(requirements: bytes | None) -> list[str]:
    if requirements is None:
        return ["RUN python3 -m venv --without-pip /opt/venv"]
    text = base64.b64encode(requirements).decode()
    pieces = [text[start : start + 4000] for start in range(0, len(text), 4000)]
    install = "/opt/venv/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /opt/requirements.lock"
    return [
        "RUN python3 -m venv /opt/venv",
        *(f"RUN printf %s {piece} >>/opt/requirements.b64" for piece in pieces),
        f"RUN base64 -d /opt/requirements.b64 >/opt/requirements.lock && {install}",
    ]


def _from_dockerfile(image: Any, dockerfile: bytes, folder: Path) -> Any:
    path = folder / "Dockerfile"
    path.write_bytes(dockerfile)
    return image.from_dockerfile(path, context_dir=folder)
