"""A gateway, a backend that uses it, and commands inside its sandboxes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.gateway.client import Gateway, ensure_gateway, stop
from eval_pipeline.sandbox.base import Phase, Sandbox, SandboxSpec
from eval_pipeline.sandbox.local.backend import Egress, LocalBackend
from eval_pipeline.sandbox.local.places import prepare


@dataclass
class Site:
    state_dir: Path
    gateway: Gateway
    backend: LocalBackend

    async def sandbox(self, *egress: str, local: Sequence[str] = (), files: Mapping[str, bytes] | None = None) -> Sandbox:
        name = f"e-{secrets.token_hex(12)}"
        spec = SandboxSpec(name=name, installation="a", egress=egress, egress_local=local, files=files or {})
        return await self.backend.get_or_create(spec)


@asynccontextmanager
async def gateway_site(state_dir: Path, local: Sequence[str] = ()) -> AsyncGenerator[Site]:
    """Nothing of it is left afterwards."""
    gateway = ensure_gateway(state_dir, local=local)
    made = Site(state_dir, gateway, LocalBackend("a", state_dir, Egress(gateway.admit, gateway.release)))
    yield made
    for info in await made.backend.list():
        sandbox = await made.backend.find(info.name)
        assert sandbox is not None
        await sandbox.terminate()
    stop(state_dir)
    places = prepare(state_dir)
    assert places.scratch == places.builds or not places.scratch.exists()


async def run(
    sandbox: Sandbox, *argv: str, env: Mapping[str, str] | None = None, timeout_s: float = 60
) -> tuple[int | None, str, str]:
    command_id = secrets.token_hex(4)
    await sandbox.start(command_id, argv, env=env or {}, workdir="/out")
    async with asyncio.timeout(timeout_s):
        while (state := await sandbox.state(command_id)).phase is Phase.RUNNING:
            await asyncio.sleep(0.01)
    stdout, stderr = await sandbox.logs(command_id)
    return state.exit_code, stdout.decode(), stderr.decode()
