"""From an attempt to a sandbox in which its agent can begin: layers, secrets, the machine, the app's services."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.errors import SandboxLost
from eval_pipeline.runner.app_life import AppLife
from eval_pipeline.runner.context import CellContext
from eval_pipeline.sandbox import modal_plan
from eval_pipeline.sandbox.base import OUTPUT_DIR, RUN_DIR, WORLD_DIR, Resources, Sandbox, SandboxSpec
from eval_pipeline.store.ledger import Claim, OpenAttempt
from eval_pipeline.vault.delivery import Delivered

CASE_FILE = f"{RUN_DIR}/case.json"
_LOOK_S = 0.5
T = TypeVar("T")
AGENT_ENV = {"EVALS_CASE": CASE_FILE, "EVALS_OUTPUT": OUTPUT_DIR}


@dataclass(frozen=True)
class SetUp:
    sandbox: Sandbox
    prepared: Prepared


async def set_up(context: CellContext, claim: Claim, attempt: OpenAttempt, app: AppLife) -> SetUp:
    """Done again for an attempt, it gives the same sandbox. Raises Cancelled; SandboxLost when one whose agent had begun is gone."""
    if attempt.agent_started_at is not None and await context.backend.find(attempt.sandbox) is None:
        raise SandboxLost(f"{attempt.sandbox} is gone; its agent had started at {attempt.agent_started_at:%H:%M:%S}")
    key, run = CellKey.parse(claim.key), context.experiment.run
    arm = run.arm(key.arm)
    began = time.monotonic()
    world = run.worlds[key.world]
    prepared = await _while_wanted(context, context.layers.prepared(context.source, arm, world, context.world_dirs[world]))
    built = time.monotonic()
    secrets = await asyncio.to_thread(context.secrets.deliver, claim, attempt, arm)
    sandbox = await context.backend.get_or_create(_spec(context, claim, attempt, prepared, secrets))
    made = time.monotonic()
    # once an agent has begun, a service that ended is not for the setup to judge
    ready_s = await app.start(sandbox, AGENT_ENV) if attempt.agent_started_at is None else None
    context.stop_if_cancelled()
    app.evidence |= {"layer": prepared.key, "image_commit": prepared.image_commit}
    app.evidence["setup"] = {
        "layers_s": round(built - began, 4),
        "sandbox_s": round(made - built, 4),
        "services_s": None if ready_s is None else round(ready_s, 4),
    }
    return SetUp(sandbox, prepared)


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


def _spec(context: CellContext, claim: Claim, attempt: OpenAttempt, prepared: Prepared, secrets: Delivered) -> SandboxSpec:
    key, run = CellKey.parse(claim.key), context.experiment.run
    manifest = run.arm(key.arm).manifest
    return SandboxSpec(
        name=attempt.sandbox,
        installation=context.installation,
        tags={"purpose": "cell", "cell": claim.key, "attempt": str(attempt.number), "stands_on": prepared.key},
        layers=prepared.layers,
        world=prepared.world_dir,
        files={CASE_FILE: case_json(context.experiment.run, key)},
        secrets=secrets.values,
        egress=manifest.egress,
        resources=Resources(**manifest.resources.model_dump()),
        lifetime_s=modal_plan.lifetime_s(run.case(key.case_name).limits.wall_s),
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
