"""Looking into a cell: a shell where its agent worked, or in a copy of the place with what it left."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.environment.images import PhaseMeans
from eval_pipeline.environment.lifecycle import APP_DIR
from eval_pipeline.errors import NotFound, SandboxLost
from eval_pipeline.runner.engine import app_source
from eval_pipeline.runner.services import Services, open_services
from eval_pipeline.runner.setup import AGENT_ENV, CASE_FILE, case_json
from eval_pipeline.runner.shell import SHELL as PROGRAM
from eval_pipeline.runner.shell import STDERR, STDOUT, run_shell
from eval_pipeline.runner.workbench import SHELL, Subject, furnished, prepared
from eval_pipeline.sandbox.base import OUTPUT_DIR, Sandbox
from eval_pipeline.scoring.bundle_tar import bundle_members
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.records import open_records

FILE_MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Ended:
    """exit_code: of the shell, 128+n for signal n."""

    sandbox: str
    exit_code: int


async def cell_shell(
    settings: Settings,
    key: CellKey,
    *,
    bundle: str | None,
    running: str | None,
    live: bool,
    egress: bool,
    argv: Sequence[str],
    quiet: bool,
) -> Ended:
    """bundle: what the cell left; None: nothing. running: the sandbox of its last attempt, for `live`. quiet: output to stderr.

    Raises NotFound when it should be live and is not, SandboxLost when the sandbox went away first.
    """
    with open_records(settings) as records, open_services(settings, records) as services:
        sandbox = await _living(services, key, running) if live else await _copy(services, key, bundle, egress=egress)
        try:
            output = STDERR if quiet else STDOUT
            end = await run_shell(sandbox, env=AGENT_ENV, workdir=APP_DIR, command=argv or PROGRAM, output=output)
        finally:
            if not live:
                await sandbox.terminate()
    if end.exit_code is None:
        raise SandboxLost(f"the shell in {sandbox.name} ended with its sandbox")
    return Ended(sandbox=sandbox.name, exit_code=end.exit_code)


async def _living(services: Services, key: CellKey, running: str | None) -> Sandbox:
    backend, _ = services.backends.named(services.ledger.experiment(key.experiment).run.backend)
    sandbox = None if running is None else await backend.find(running)
    if sandbox is None or not await sandbox.alive():
        hint = f"`evals cell shell {key}` without --live makes a sandbox as the cell's was"
        raise NotFound(f"{key} has no living sandbox within reach of this machine", hint=hint)
    return sandbox


async def _copy(services: Services, key: CellKey, bundle: str | None, *, egress: bool) -> Sandbox:
    experiment = services.ledger.experiment(key.experiment)
    arm = experiment.run.arm(key.arm)
    world_digest = experiment.run.worlds[key.world]
    dirs = await services.restore_worlds(experiment, [str(key)])
    at = Subject(
        source=app_source(experiment),
        arm=arm,
        world=key.world,
        world_digest=world_digest,
        world_dir=dirs[world_digest],
        backend=experiment.run.backend,
    )
    files = {CASE_FILE: case_json(experiment.run, key)}
    means = PhaseMeans(files=files, env=AGENT_ENV, egress=arm.manifest.egress if egress else ())
    layers = await prepared(services, at)
    what = f"{key}:{secrets.token_hex(8)}"
    sandbox = await furnished(services, at, layers, purpose=SHELL, what=what, means=means)
    if bundle is not None:
        await _fill(sandbox, services.store, bundle)
    return sandbox


async def _fill(sandbox: Sandbox, store: ArtifactStore, bundle: str) -> None:
    """The files the cell left, in their places. Links and files above 64 MiB are left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        store.fetch(bundle, path)
        for member, stream in bundle_members(path):
            if stream is not None and member.name.startswith("out/") and member.size <= FILE_MAX_BYTES:
                await sandbox.write(f"{OUTPUT_DIR}/{member.name.removeprefix('out/')}", stream.read())
