"""The app's commands in a sandbox: run to their end, services up until they answer, and the state dumped."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from eval_pipeline.domain.app import AppManifest, ServicesSpec
from eval_pipeline.domain.outcome import ServiceEnd
from eval_pipeline.environment import compose
from eval_pipeline.errors import BuildError, SandboxError
from eval_pipeline.sandbox.base import STATE_DIR, CommandState, Phase, Sandbox

APP_DIR = "/app"
UP, READY, ALIVE, TAKEN, DOWN, DUMP = "up", "ready", "alive", "taken", "down", "dump"
CONTAINERS = "containers"
SILENT = "it printed nothing"
DUMP_TIMEOUT_S = 300.0
DOWN_TIMEOUT_S = 60.0
_LOG_BYTES = 4000
_MAX_CONTAINERS = 32
_POLL_MIN_S, _POLL_MAX_S = 0.004, 0.1


async def run_command(
    sandbox: Sandbox,
    name: str,
    argv: Sequence[str],
    *,
    timeout_s: float,
    workdir: str = APP_DIR,
    env: Mapping[str, str] | None = None,
    with_secrets: bool = False,
    with_engine: bool = False,
) -> float:
    """To its end with code 0; the seconds it took. Raises BuildError with the end of its log."""
    await sandbox.start(name, argv, env=env or {}, workdir=workdir, with_secrets=with_secrets, with_engine=with_engine)
    state = await settled(sandbox, name, timeout_s)
    if state.phase is Phase.EXITED and state.exit_code == 0:
        return state.elapsed_s or 0.0
    if state.phase is Phase.RUNNING:
        await sandbox.stop(name)
        how = f"had not ended after {timeout_s:g} s"
    else:
        how = f"ended with {state.exit_code if state.phase is Phase.EXITED else state.phase}"
    if hit := await sandbox.limits_hit():
        how = f"{how} (limit reached: {', '.join(hit)})"
    log = await last_words(sandbox, name)
    raise BuildError(
        f"`{shlex.join(argv)}` {how}: {log.splitlines()[-1]}\n--- its log ends with\n{log}",
        hint="the command runs in the app's folder inside a sandbox without a route; fix it and run again",
    )


async def settled(sandbox: Sandbox, name: str, timeout_s: float) -> CommandState:
    """Its state once it runs no more, or after that time."""
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + timeout_s, _POLL_MIN_S
    while (state := await sandbox.state(name)).phase is Phase.RUNNING and loop.time() < deadline:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_MAX_S)
    return state


async def last_words(sandbox: Sandbox, name: str) -> str:
    stdout, stderr = await sandbox.logs(name, _LOG_BYTES)
    return (stdout + stderr).decode(errors="replace").strip()[-_LOG_BYTES:] or SILENT


@dataclass(frozen=True, kw_only=True)
class _Commands:
    """What services are started, asked and stopped with; engine: through the container engine."""

    up: Sequence[str]
    ready: Sequence[str] | None
    down: Sequence[str] | None
    engine: bool

    @classmethod
    def of(cls, services: ServicesSpec) -> _Commands:
        if services.compose is not None:
            up = compose.up(services.compose, services.ready_timeout_s)
            return cls(up=up, ready=compose.ready(), down=compose.down(services.compose), engine=True)
        assert services.up is not None  # the model allows one kind
        return cls(up=services.up, ready=services.ready, down=services.down, engine=False)


async def start_services(sandbox: Sandbox, services: ServicesSpec, env: Mapping[str, str]) -> float:
    """Up, and ready; the seconds that took. Done again on the same sandbox, it finds what stands.

    Raises SandboxError with the services' own words: before an agent has begun, their failure is infrastructure.
    """
    commands = _Commands.of(services)
    loop = asyncio.get_running_loop()
    began, pause_s = loop.time(), _POLL_MIN_S
    await sandbox.start(UP, commands.up, env=env, workdir=APP_DIR, with_secrets=True, with_engine=commands.engine)
    for number in count(1):
        ended = await ended_service(sandbox)
        if ended is not None:
            raise SandboxError(f"the services did not come up: {ended.said}")
        left_s = services.ready_timeout_s - (loop.time() - began)
        if await _answers(sandbox, commands, f"{READY}.{number}", left_s):
            break
        if left_s <= 0:
            # the last asking may have been cut off before it could say anything
            asked = [await last_words(sandbox, f"{READY}.{one}") for one in (number, number - 1) if one > 0]
            said = f"{next((words for words in asked if words != SILENT), SILENT)}; {await last_words(sandbox, UP)}"
            raise SandboxError(f"the services were not ready within {services.ready_timeout_s:g} s: {said}")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_MAX_S)
    return loop.time() - began


async def _answers(sandbox: Sandbox, commands: _Commands, name: str, left_s: float) -> bool:
    """Also of services that can't be asked."""
    if commands.ready is None:
        return True
    await sandbox.start(name, commands.ready, env={}, workdir=APP_DIR, with_engine=commands.engine)
    state = await settled(sandbox, name, max(left_s, 0.1))
    if state.phase is Phase.RUNNING:
        await sandbox.stop(name)
    return state.phase is Phase.EXITED and state.exit_code == 0


async def ended_service(sandbox: Sandbox) -> ServiceEnd | None:
    """How `up` ended, when it did with anything but 0; None while it runs, and when it left its services to themselves."""
    state = await sandbox.state(UP)
    if state.phase is not Phase.EXITED or state.exit_code == 0:
        return None
    return ServiceEnd(exit_code=state.exit_code, said=f"`up` ended with code {state.exit_code}: {await last_words(sandbox, UP)}")


async def silent_service(sandbox: Sandbox, services: ServicesSpec) -> ServiceEnd | None:
    """Services that do not answer any more, where `up` has not said how one ended."""
    if await _answers(sandbox, _Commands.of(services), ALIVE, services.ready_timeout_s):
        return None
    return ServiceEnd(exit_code=None, said=f"the services answer no more: {await last_words(sandbox, ALIVE)}")


async def services_answer(sandbox: Sandbox, services: ServicesSpec) -> bool:
    """Whether services that came up some time ago, before anybody took the sandbox, still answer."""
    if (await sandbox.state(UP)).phase is Phase.ABSENT or await ended_service(sandbox) is not None:
        return False
    return await _answers(sandbox, _Commands.of(services), TAKEN, services.ready_timeout_s)


async def stop_services(sandbox: Sandbox, services: ServicesSpec) -> None:
    """Cleanly, where the app can. Raises BuildError."""
    commands = _Commands.of(services)
    if commands.down is not None:
        await run_command(sandbox, DOWN, commands.down, timeout_s=DOWN_TIMEOUT_S, with_engine=commands.engine)
        await settled(sandbox, UP, DOWN_TIMEOUT_S)


async def dump_state(sandbox: Sandbox, manifest: AppManifest, name: str = DUMP) -> float:
    """The state, below /out/state and nothing else there; the seconds it took. name: a new one for each dump. Raises BuildError."""
    assert manifest.dump is not None
    fresh = 'rm -rf -- "$0" && mkdir -- "$0" && exec "$@"'
    argv = ["/bin/sh", "-c", fresh, STATE_DIR, *manifest.dump]
    return await run_command(sandbox, name, argv, timeout_s=DUMP_TIMEOUT_S, with_engine=manifest.compose is not None)


async def keep_service_logs(sandbox: Sandbox) -> list[str]:
    """Of every container, as logs of the sandbox's own: they go into its bundle. Their names. Raises BuildError."""
    await run_command(sandbox, CONTAINERS, compose.LIST, timeout_s=DOWN_TIMEOUT_S, with_engine=True)
    listed, _ = await sandbox.logs(CONTAINERS)
    found = dict(list(compose.containers(listed).items())[:_MAX_CONTAINERS])
    for name, container in found.items():
        argv = ["docker", "logs", "--timestamps", container]
        await run_command(sandbox, f"service.{name}", argv, timeout_s=DOWN_TIMEOUT_S, with_engine=True)
    return [*found]
