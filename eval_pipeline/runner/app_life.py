"""The app around an agent: its services before, meanwhile and after, and the state that is left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from eval_pipeline.domain.app import AppManifest, ServicesSpec
from eval_pipeline.domain.outcome import ServiceEnd
from eval_pipeline.environment.lifecycle import (
    APP_DIR,
    DOWN_TIMEOUT_S,
    UP,
    dump_state,
    ended_service,
    keep_service_logs,
    silent_service,
    start_services,
    stop_services,
)
from eval_pipeline.errors import BuildError, SandboxError
from eval_pipeline.runner.output import parse_result
from eval_pipeline.sandbox.base import OUTPUT_DIR, CommandState, Phase, Sandbox

_EVERY_S, _GRACE_S, _SETTLE_S, _POLL_S = 1.0, 15.0, 0.5, 0.02
_LOOK_BYTES = 2**20


class AppLife:
    """Of one attempt. evidence: what is found out, for the attempt's record. ended: the service that ended while the agent ran."""

    def __init__(self, manifest: AppManifest) -> None:
        self._manifest = manifest
        self._services = manifest.services
        self._next_look = 0.0
        self._ended_at: float | None = None
        self.ended: ServiceEnd | None = None
        self.evidence: dict[str, Any] = {}

    @property
    def dumped(self) -> bool:
        """Whether what lies in /out/state is the app's own dump; anything else there may be an agent's."""
        return "dump_s" in self.evidence

    async def start(self, sandbox: Sandbox, env: Mapping[str, str]) -> float | None:
        """Seconds until the services answered; None without any. Raises SandboxError."""
        return None if self._services is None else await start_services(sandbox, self._services, env)

    async def start_agent(self, sandbox: Sandbox, name: str, env: Mapping[str, str]) -> None:
        engine = self._services is not None and self._services.agent_engine
        await sandbox.start(name, self._manifest.agent, env=env, workdir=APP_DIR, with_secrets=True, with_engine=engine)

    async def gave_up(self, sandbox: Sandbox) -> bool:
        """Whether a service ended some time ago: its agent may wait for it to the end of its time."""
        now = asyncio.get_running_loop().time()
        if self._services is not None and self._ended_at is None and now >= self._next_look:
            self._next_look = now + _EVERY_S
            self._ended_at = now if await ended_service(sandbox) is not None else None
        return self._ended_at is not None and now > self._ended_at + _GRACE_S

    async def look_back(self, sandbox: Sandbox, agent: CommandState) -> None:
        """A service's end and the agent's failure over it come together: the supervisor may still be about to say so."""
        if self._services is None or agent.phase is Phase.LOST:
            return
        if agent.exit_code == 0 and await _answered(sandbox):
            self.ended = await ended_service(sandbox)
        else:
            self.ended = await _end_within(sandbox, _SETTLE_S) or await self._end_of_silent(sandbox, self._services)
        if self.ended is not None:
            self.evidence["service_end"] = self.ended.said

    async def _end_of_silent(self, sandbox: Sandbox, services: ServicesSpec) -> ServiceEnd | None:
        """Of services that answer no more: `up` may take its time to stop those that are left, and only then says which ended."""
        silent = await silent_service(sandbox, services)
        return silent and (await _end_within(sandbox, DOWN_TIMEOUT_S) or silent)

    async def dump(self, sandbox: Sandbox) -> None:
        """Without a dump there is no difference to the world as it was; the record then says why."""
        if self._manifest.dump is None:
            return
        if not await sandbox.alive():
            self.evidence["dump_error"] = "the sandbox had ended before the state could be dumped"
            return
        try:
            self.evidence["dump_s"] = round(await dump_state(sandbox, self._manifest), 4)
        except BuildError as error:
            self.evidence["dump_error"] = str(error)

    async def keep_logs(self, sandbox: Sandbox) -> None:
        """Of containers, as logs of the sandbox: those of other services are there already. Without them the record says why."""
        if self._manifest.compose is None or "services_logged" in self.evidence or not await sandbox.alive():
            return
        try:
            self.evidence["services_logged"] = await keep_service_logs(sandbox)
        except (BuildError, SandboxError) as error:
            self.evidence["services_logged"], self.evidence["service_logs_error"] = [], str(error)

    async def down(self, sandbox: Sandbox) -> None:
        """Containers end cleanly, after all is kept; whatever is left ends with the sandbox."""
        if self._services is None or self._services.compose is None:
            return
        try:
            await stop_services(sandbox, self._services)
        except (BuildError, SandboxError) as error:
            self.evidence["down_error"] = str(error)


async def _end_within(sandbox: Sandbox, timeout_s: float) -> ServiceEnd | None:
    """None as well when `up` has left its services to themselves: it says nothing more."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        may_end = (await sandbox.state(UP)).phase is Phase.RUNNING and asyncio.get_running_loop().time() < deadline
        if (end := await ended_service(sandbox)) is not None or not may_end:
            return end
        await asyncio.sleep(_POLL_S)


async def _answered(sandbox: Sandbox) -> bool:
    """Whether the agent calls its work done. A result that is too large to look into counts as one."""
    try:
        data = await sandbox.read(f"{OUTPUT_DIR}/result.json", _LOOK_BYTES)
    except SandboxError:
        return True
    result = None if data is None else await asyncio.to_thread(parse_result, data)
    return result is not None and result.status in ("ok", "refusal")
