"""A cell and a sandbox that stands ready: what must be equal for the one to take the other, and how it moves in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from eval_pipeline.domain.app import AppManifest
from eval_pipeline.domain.canonical import digest
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.environment.lifecycle import services_answer
from eval_pipeline.errors import FenceLost, SandboxLost
from eval_pipeline.sandbox.base import Backend, Sandbox, SandboxSpec
from eval_pipeline.store.rows import Claim, OpenAttempt
from eval_pipeline.store.warm import WarmRows

log = logging.getLogger(__name__)

PURPOSE = "warm"
_FORMAT = 1
_LOOK_S = 1.0


def spec_digest(prepared: Prepared, world_digest: str, manifest: AppManifest, secret_versions: Mapping[str, str]) -> str:
    """Equal for two sandboxes in which an agent would find the same: layers, world, resources, egress, services and secrets."""
    return digest([_FORMAT, prepared.key, prepared.layers, world_digest, manifest.model_dump(mode="json"), dict(secret_versions)])


class Stock:
    """Warm sandboxes, as a cell sees them: without any, none is asked for, and whether there is any is looked up once a second."""

    def __init__(self, rows: WarmRows) -> None:
        self.rows = rows
        self._there = False
        self._look_at = 0.0

    async def there(self) -> bool:
        """Whether any stood ready when that was last looked up."""
        if (now := asyncio.get_running_loop().time()) >= self._look_at:
            self._look_at = now + _LOOK_S
            self._there = await asyncio.to_thread(self.rows.any_ready)
        return self._there


async def take_warm(rows: WarmRows, claim: Claim, attempt: OpenAttempt, wanted: str) -> OpenAttempt:
    """With the name of a ready sandbox, which is the attempt's own from now on; unchanged when none is free. Raises FenceLost."""
    if attempt.agent_started_at is not None:
        return attempt
    name = await asyncio.to_thread(rows.take, claim, attempt.id, wanted)
    return attempt if name is None else replace(attempt, sandbox=name)


async def move_in(
    backend: Backend, spec: SandboxSpec, manifest: AppManifest, ours: Callable[[], bool] = lambda: True
) -> Sandbox | None:
    """The living sandbox of that name with the spec's files in it, its services answering.

    None: it is dead, or its services are. What was left of it is ended then, and the name is free for a fresh one. Raises
    FenceLost when it is not `ours` any more.
    """
    found = await backend.find(spec.name)
    if found is None:
        return None
    try:
        if await found.alive():
            sandbox = await backend.get_or_create(spec)
            for path, data in spec.files.items():
                await sandbox.add_file(path, data)
            if manifest.services is None or await services_answer(sandbox, manifest.services):
                return sandbox
    except SandboxLost as lost:
        log.info("a warm sandbox was lost while a cell moved in: %s", lost)
    if not await asyncio.to_thread(ours):
        raise FenceLost(f"{spec.name}: another engine owns its cell now")
    await found.terminate()
    return None
