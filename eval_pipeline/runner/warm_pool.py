"""The pool of warm sandboxes: on the branch's head, for the worlds that app.yaml names, as many as may be."""

from __future__ import annotations

import asyncio
import fnmatch
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from eval_pipeline.domain.app import Resources as AppResources
from eval_pipeline.domain.experiment import WarmSpec
from eval_pipeline.domain.ids import sandbox_name
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.environment.lifecycle import start_services
from eval_pipeline.errors import EvalsError, SpecError
from eval_pipeline.runner.app_image import resolve_head
from eval_pipeline.runner.services import Services
from eval_pipeline.runner.setup import AGENT_ENV
from eval_pipeline.runner.warm import PURPOSE, spec_digest
from eval_pipeline.runner.workbench import Subject, prepared, subject
from eval_pipeline.sandbox.base import Engine, Resources, Sandbox, SandboxSpec, SyncedSecret
from eval_pipeline.scoring import sandbox_prices
from eval_pipeline.specs.library import Library
from eval_pipeline.store.warm import WarmRow, WarmRows
from eval_pipeline.vault.delivery import Delivered

FILLING = "warm-pool"
_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Place:
    """A world's part of the pool. wanted: of which kind; others are of no use any more."""

    at: Subject
    layers: Prepared
    wanted: str
    given: Delivered = field(repr=False)
    synced: SyncedSecret | None = None


@dataclass(kw_only=True)
class PoolReport:
    """By world: how many stand ready, how many were started now, and why none could be. ended: expired, dead or out of date.

    count: for each world; None when app.yaml asks for none. allowed: what the cost cap leaves of them, None without one.
    """

    count: int | None
    allowed: int | None = None
    ready: dict[str, int] = field(default_factory=dict[str, int])
    started: dict[str, int] = field(default_factory=dict[str, int])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    ended: list[str] = field(default_factory=list[str])


def warm_rows(services: Services) -> WarmRows:
    return WarmRows(services.records.database, services.backend.name, services.backend.place)


def allowed_by(warm: WarmSpec, backend: str, resources: AppResources, region: str | None = None) -> int | None:
    """How many sandboxes the cost cap leaves at list prices; None: as many as one likes. Raises SpecError when there is a cap and no price."""
    if warm.max_cost_usd_per_hour is None:
        return None
    rates = sandbox_prices.listed(backend, region)
    if rates is None:
        raise SpecError(
            f"app.yaml: warm.max_cost_usd_per_hour is {warm.max_cost_usd_per_hour:g}, and what a sandbox costs on {backend!r} is not known",
            hint="take the cap out, or use a backend with a known price",
        )
    hourly_usd = 3600 * rates.usd_per_s(resources.cpu, resources.memory_mib)
    return None if hourly_usd == 0 else int(Decimal(str(warm.max_cost_usd_per_hour)) / hourly_usd)


async def fill(services: Services, library: Library, count: int | None = None) -> PoolReport:
    """End what no cell can take any more and start what is missing; one at a time in a place. count: in place of app.yaml's.

    A world whose sandboxes don't come up is told in the report. Raises SpecError.
    """
    return await services.layers.builder.alone(FILLING, lambda: _fill(services, library, count))


async def _fill(services: Services, library: Library, count: int | None) -> PoolReport:
    spec = (await asyncio.to_thread(library.only_app)).warm
    if count is not None:
        spec = WarmSpec(count=count) if spec is None else spec.model_copy(update={"count": count})
    report = PoolReport(count=None if spec is None else spec.count)
    rows = warm_rows(services)
    await asyncio.to_thread(rows.forget_used)
    places = [] if spec is None or spec.count == 0 else await _places(services, library, spec, report)
    living = await _end_useless(services, rows, {place.wanted for place in places}, report)
    if spec is not None:
        report.allowed = _allowed(services, library, spec)
        await _start_missing(services, rows, spec, places, living, report)
    return report


def _allowed(services: Services, library: Library, spec: WarmSpec) -> int | None:
    if spec.max_cost_usd_per_hour is None:
        return None
    backend = services.backend.name
    region = services.settings.modal.region if backend == "modal" else None
    return allowed_by(spec, backend, resolve_head(library, backend).arm.manifest.resources, region)


async def _places(services: Services, library: Library, spec: WarmSpec, report: PoolReport) -> list[Place]:
    names = [name for name in library.world_names() if any(fnmatch.fnmatchcase(name, glob) for glob in spec.worlds)]
    if not names:
        raise SpecError(f"app.yaml: warm.worlds ({', '.join(spec.worlds)}) names no world", hint="`evals world list` shows them")
    found: list[Place] = []
    for name in names:
        try:
            at = await asyncio.to_thread(subject, services, library, name, None, services.backend.name)
            layers = await prepared(services, at)
        except EvalsError as error:
            report.failed[name] = str(error)
            continue
        given = await asyncio.to_thread(services.secrets.for_agent, at.arm.manifest)
        wanted = spec_digest(layers, at.world_digest, at.arm.manifest, given.versions)
        synced = await asyncio.to_thread(services.backends.synced, services.backend.name, "agent", given.versions)
        found.append(Place(at=at, layers=layers, wanted=wanted, given=given, synced=synced))
    return found


async def _end_useless(services: Services, rows: WarmRows, wanted: set[str], report: PoolReport) -> list[WarmRow]:
    """Expired, dead, half-made by a crash, or of another image, manifest or secret. What is left."""
    alive = {info.name for info in await services.backend.list() if info.alive}
    free = await asyncio.to_thread(rows.free)
    good = [row for row in free if row.left_s > 0 and row.ready_s is not None and row.spec_digest in wanted and row.name in alive]
    kept = {row.name for row in good}
    for name in await asyncio.to_thread(rows.give_up, [row.name for row in free if row.name not in kept]):
        sandbox = await services.backend.find(name)
        if sandbox is not None:
            await sandbox.terminate()
        report.ended.append(name)
    return good


async def _start_missing(
    services: Services, rows: WarmRows, spec: WarmSpec, places: Sequence[Place], living: Sequence[WarmRow], report: PoolReport
) -> None:
    """One that expires before the next hour is over is replaced now: so there is no gap between the two."""
    lasting = [row.spec_digest for row in living if row.left_s > spec.ttl_s / 2]
    lacking = {place.at.world: max(0, spec.count - lasting.count(place.wanted)) for place in places}
    # In turns, so that a cap leaves something for each world
    queue = [place for turn in range(spec.count) for place in places if turn < lacking[place.at.world]]
    if report.allowed is not None:
        queue = queue[: max(0, report.allowed - len(lasting))]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(place: Place) -> None:
        async with gate:
            try:
                await start_warm(services, rows, place, spec.ttl_s)
            except EvalsError as error:
                report.failed[place.at.world] = str(error)
                return
        report.started[place.at.world] = report.started.get(place.at.world, 0) + 1

    await asyncio.gather(*map(one, queue))
    for place in places:
        report.ready[place.at.world] = lasting.count(place.wanted) + report.started.get(place.at.world, 0)


async def start_warm(services: Services, rows: WarmRows, place: Place, ttl_s: float) -> Sandbox:
    """Written down first, then made, its services up. Raises SandboxError; nothing is left then."""
    at, manifest = place.at, place.at.arm.manifest
    name = sandbox_name(services.installation, f"{PURPOSE}:{uuid.uuid4()}", 0)
    until = await asyncio.to_thread(rows.intend, name, spec_digest=place.wanted, app=manifest.name, world=at.world, ttl_s=ttl_s)
    tags = {"purpose": PURPOSE, "world": at.world, "until": until.isoformat(), "stands_on": place.layers.key}
    means = await asyncio.to_thread(services.backends.models(services.backend.name).opened, name, at.arm, place.given)
    spec = SandboxSpec(
        name=name,
        installation=services.installation,
        tags=tags | {"commit": at.arm.commit or ""},
        layers=place.layers.layers,
        world=place.layers.world_dir,
        secrets=means.secrets,
        synced=place.synced,
        egress=means.egress,
        resources=Resources(**manifest.resources.model_dump()),
        engine=None if manifest.compose is None else Engine.CACHED,
    )
    began = time.monotonic()
    try:
        sandbox = await services.backend.get_or_create(spec)
        if manifest.services is not None:
            await start_services(sandbox, manifest.services, AGENT_ENV)
        await asyncio.to_thread(rows.ready, name, time.monotonic() - began)
    except BaseException:
        await asyncio.to_thread(rows.give_up, [name])
        if (left := await services.backend.find(name)) is not None:
            await left.terminate()
        raise
    return sandbox
