"""From an attempt to a sandbox in which its agent can begin: layers, secrets, the machine, the app's services."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from eval_pipeline.domain.ids import CellKey, sandbox_name
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.errors import SandboxLost
from eval_pipeline.runner.app_life import AppLife
from eval_pipeline.runner.context import CellContext
from eval_pipeline.runner.doing import waits_for
from eval_pipeline.runner.warm import move_in, spec_digest, take_warm
from eval_pipeline.sandbox import modal_plan
from eval_pipeline.sandbox.base import OUTPUT_DIR, RUN_DIR, WORLD_DIR, Engine, Resources, Sandbox, SandboxSpec, SyncedSecret
from eval_pipeline.store.ledger import Claim, OpenAttempt
from eval_pipeline.store.steps import holds
from eval_pipeline.vault.delivery import Delivered

CASE_FILE = f"{RUN_DIR}/case.json"
_LOOK_S = 0.5
ADOPTABLE_S = {"local": 24 * 3600.0}
"""How much longer a cell's sandbox stands when no engine comes for it. On Modal every second is paid for."""
T = TypeVar("T")
AGENT_ENV = {"EVALS_CASE": CASE_FILE, "EVALS_OUTPUT": OUTPUT_DIR}


@dataclass(frozen=True)
class Ground:
    """What the attempt's sandbox will be made of. layers_s: how long it took to have them."""

    prepared: Prepared
    secrets: Delivered
    layers_s: float
    synced: SyncedSecret | None = None


async def lay_ground(context: CellContext, claim: Claim, attempt: OpenAttempt) -> Ground:
    """Raises Cancelled, BuildError and FenceLost."""
    key, run = CellKey.parse(claim.key), context.experiment.run
    arm, world = run.arm(key.arm), run.worlds[key.world]
    began = time.monotonic()
    waits_for("its image and world")
    prepared = await _while_wanted(context, context.layers.prepared(context.source, arm, world, context.world_dirs[world]))
    layers_s = time.monotonic() - began
    if not arm.manifest.secrets.agent:
        return Ground(prepared, Delivered(), layers_s)
    secrets = await asyncio.to_thread(context.secrets.deliver, claim, attempt, arm)
    return Ground(prepared, secrets, layers_s, await asyncio.to_thread(context.synced, secrets.versions))


async def take_ready(context: CellContext, claim: Claim, attempt: OpenAttempt, ground: Ground) -> OpenAttempt:
    """The attempt with a sandbox that stood ready for just such a cell; unchanged when there is none. Raises FenceLost."""
    if not await context.warm.there():
        return attempt
    key, run = CellKey.parse(claim.key), context.experiment.run
    wanted = spec_digest(ground.prepared, run.worlds[key.world], run.arm(key.arm).manifest, ground.secrets.versions)
    return await take_warm(context.warm.rows, claim, attempt, wanted)


async def set_up(context: CellContext, claim: Claim, attempt: OpenAttempt, ground: Ground, app: AppLife) -> Sandbox:
    """Done again for an attempt, it gives the same sandbox. Raises Cancelled; SandboxLost when one whose agent had begun is gone."""
    begun = attempt.agent_started_at
    if begun is not None and await context.backend.find(attempt.sandbox) is None:
        raise SandboxLost(f"{attempt.sandbox} is gone; its agent had started at {begun:%H:%M:%S}")
    key, run = CellKey.parse(claim.key), context.experiment.run
    spec = _spec(context, claim, attempt, ground)
    began = time.monotonic()
    warm = attempt.sandbox != sandbox_name(context.installation, claim.key, attempt.number)
    sandbox, ready_s = None, None
    waits_for("its sandbox")
    if warm and begun is None:
        manifest = run.arm(key.arm).manifest
        sandbox = await move_in(context.backend, spec, manifest, lambda: holds(context.ledger.database, claim))
        warm = sandbox is not None
    stood_ready = sandbox is not None
    sandbox = sandbox or await context.backend.get_or_create(spec)
    made = time.monotonic()
    # once an agent has begun, a service that ended is not for the setup to judge
    waits_for("its services")
    if begun is None and not stood_ready:
        ready_s = await app.start(sandbox, AGENT_ENV)
    context.stop_if_cancelled()
    app.evidence |= {"layer": ground.prepared.key, "image_commit": ground.prepared.image_commit}
    if ground.synced is not None:
        app.evidence["modal_secret"] = {"name": ground.synced.name, "version": ground.synced.version}
    app.evidence["setup"] = {
        "warm": warm,
        "layers_s": round(ground.layers_s, 4),
        "sandbox_s": round(made - began, 4),
        "services_s": None if ready_s is None else round(ready_s, 4),
    }
    return sandbox


async def _while_wanted(context: CellContext, work: Coroutine[Any, Any, T]) -> T:
    """A build may take half an hour, and goes on for the other cells when this one is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            context.stop_if_cancelled()
            await asyncio.wait({task}, timeout=_LOOK_S)
        return task.result()
    finally:
        task.cancel()


def _spec(context: CellContext, claim: Claim, attempt: OpenAttempt, ground: Ground) -> SandboxSpec:
    key, run = CellKey.parse(claim.key), context.experiment.run
    arm, limits = run.arm(key.arm), run.case(key.case_name).limits
    manifest = arm.manifest
    means = context.models.opened(attempt.sandbox, arm, ground.secrets, limits, context.prices)
    return SandboxSpec(
        name=attempt.sandbox,
        installation=context.installation,
        tags={"purpose": "cell", "cell": claim.key, "attempt": str(attempt.number), "stands_on": ground.prepared.key},
        layers=ground.prepared.layers,
        world=ground.prepared.world_dir,
        files={CASE_FILE: case_json(context.experiment.run, key)},
        secrets=means.secrets,
        synced=ground.synced,
        egress=means.egress,
        resources=Resources(**manifest.resources.model_dump()),
        engine=None if manifest.compose is None else Engine.CACHED,
        lifetime_s=modal_plan.lifetime_s(limits.wall_s) + ADOPTABLE_S.get(context.backend.name, 0.0),
    )


def case_json(run: RunLock, key: CellKey) -> bytes:
    """What the agent is told. Never the rubric, the reference or the arm's name."""
    case = run.case(key.case_name)
    data: dict[str, Any] = {
        "prompt": case.prompt,
        "deliverables": list(case.deliverables),
        "config": run.arm(key.arm).config,
        "trial": key.trial,
        "seed": run.cell_seed(key),
        "limits": case.limits.model_dump(mode="json"),
        "world": WORLD_DIR,
        "output": OUTPUT_DIR,
    }
    return json.dumps(data, ensure_ascii=False, indent=1).encode()
