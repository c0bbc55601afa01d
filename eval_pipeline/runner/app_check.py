"""Every command of an app's manifest on one case, one after the other, and what the manifest promises with them."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval_pipeline.domain.app import AppManifest, ServicesSpec
from eval_pipeline.domain.case import Case
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import RunLock
from eval_pipeline.environment.images import PhaseMeans
from eval_pipeline.environment.layers import Prepared
from eval_pipeline.environment.lifecycle import APP_DIR, UP, dump_state, last_words, run_command, settled, stop_services
from eval_pipeline.errors import BuildError, EvalsError, InfrastructureError
from eval_pipeline.runner.output import RESULT_MAX_BYTES, parse_result, read_output
from eval_pipeline.runner.services import Services
from eval_pipeline.runner.setup import AGENT_ENV, CASE_FILE, case_json
from eval_pipeline.runner.workbench import CHECK, Subject, furnished, name_of, prepared
from eval_pipeline.sandbox.base import OUTPUT_DIR, Phase, Sandbox
from eval_pipeline.scoring.world_diff import diff_states
from eval_pipeline.scoring.world_state import bundle_state, files_state
from eval_pipeline.specs.lock import locked_case

AGENT = "agent"
_SAID_CHARS = 2000
_SETTLE_S = 10.0
# What is newer than the agent's start, outside of what is collected or thrown away
_WRITTEN = "find / -xdev -newer /tmp/.evals-before -type f 2>/dev/null | grep -v '^/proc/' | head -20; exit 0"


@dataclass(frozen=True, kw_only=True)
class Step:
    """said: the end of what the command printed, what was found, or the error."""

    name: str
    ok: bool
    seconds: float
    said: str


@dataclass
class AppCheck:
    """Steps in their order; `run` stops at the first that fails, and ends its sandboxes."""

    services: Services
    at: Subject
    case: Case
    config: dict[str, Any]
    _sandboxes: list[Sandbox] = field(default_factory=list[Sandbox])
    _layers: Prepared | None = None

    @property
    def manifest(self) -> AppManifest:
        return self.at.arm.manifest

    async def run(self) -> AsyncGenerator[Step]:
        try:
            for name, work in self._plan():
                began = time.monotonic()
                try:
                    ok, said = True, await work()
                except EvalsError as error:
                    ok, said = False, str(error)
                yield Step(name=name, ok=ok, seconds=round(time.monotonic() - began, 3), said=said[-_SAID_CHARS:])
                if not ok:
                    return
        finally:
            for sandbox in self._sandboxes:
                await sandbox.terminate()

    def _plan(self) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
        """What the manifest has no command for is left out."""
        manifest, up = self.manifest, self.manifest.services
        steps = [
            ("image", self._image, True),
            ("reset", self._runtime, True),
            ("restore", self._restore, True),
            ("dump after restore", self._same_as_the_world, manifest.dump is not None),
            ("services up and ready", self._up, True),
            ("agent", self._agent, True),
            ("dump", self._dump, manifest.dump is not None),
            ("output", self._output, True),
            ("down", self._down, up is not None and up.down is not None),
            ("ready after a service's end", self._death, up is not None and up.ready is not None),
        ]
        return [(name, work) for name, work, there in steps if there]

    async def _image(self) -> str:
        row = await self.services.layers.images.image(self.at.source, self.at.arm.commit, self.at.arm.tree, self.manifest)
        return _built("image", row.key, row.built_s)

    async def _runtime(self) -> str:
        row = await self.services.layers.images.runtime(self.at.source, self.at.arm)
        return _built(row.kind, row.key, row.built_s)

    async def _restore(self) -> str:
        """No process may be left after it: the build itself refuses that."""
        self._layers = await prepared(self.services, self.at)
        return f"prepared {self._layers.key[:12]}; no process was left"

    async def _same_as_the_world(self) -> str:
        assert self._layers is not None
        assert self._layers.state is not None
        snapshot = self.services.ledger.snapshots([self.at.world_digest])[self.at.world_digest].manifest
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder) / "state"
            await asyncio.to_thread(self.services.store.fetch, self._layers.state, bundle)
            places = {entry.path: self.at.world_dir / entry.path for entry in snapshot.entries if entry.type == "file"}
            dumped = bundle_state(bundle, self.at.world_dir, snapshot, Path(folder) / "after")
            diff = await asyncio.to_thread(diff_states, files_state(places, snapshot), dumped)
        if diff.unchanged:
            return "the same as the world"
        changed = ", ".join(f"{name} {number}" for name, number in diff.summary().items() if number)
        first = [f"{one.side}: {one.where or 'the state'} {one.what}" for one in diff.problems.entries[:5]]
        first += [f"{one.change}: {one.path}" for one in [*diff.documents.entries, *diff.blobs.entries][:5]]
        first += [f"{one.change}: row {one.key} of {one.table} {', '.join(one.fields)}" for one in diff.rows.entries[:5]]
        raise BuildError("what `dump` writes right after `restore` is not the world: " + "\n".join([changed, *first]))

    async def _up(self) -> str:
        sandbox = await self._sandbox()
        return await last_words(sandbox, UP) if self.manifest.services else "the app has no services"

    async def _sandbox(self) -> Sandbox:
        assert self._layers is not None
        delivered = await asyncio.to_thread(self.services.secrets.for_agent, self.manifest)
        files = {CASE_FILE: self._case_json()}
        what = secrets.token_hex(12)
        models = self.services.backends.models(self.services.backend.name)
        name = name_of(self.services.installation, CHECK, what)
        given = await asyncio.to_thread(models.opened, name, self.at.arm.model_copy(update={"config": self.config}), delivered)
        means = PhaseMeans(files=files, env=AGENT_ENV, egress=given.egress, secrets=given.secrets)
        sandbox = await furnished(self.services, self.at, self._layers, purpose=CHECK, what=what, means=means)
        self._sandboxes.append(sandbox)
        return sandbox

    def _case_json(self) -> bytes:
        arm = self.at.arm.model_copy(update={"config": self.config})
        run = RunLock(
            name="check",
            app=self.manifest.name,
            app_path=self.at.source.path,
            backend=self.services.backend.name,
            seed=0,
            trials=1,
            worlds={self.at.world: self.at.world_digest},
            cases=(locked_case(self.case),),
            arms=(arm,),
        )
        return case_json(run, CellKey("check", self.case.world, self.case.spec.id, arm.name, 0))

    async def _agent(self) -> str:
        sandbox = self._sandboxes[0]
        await run_command(sandbox, "before", ["/bin/touch", "/tmp/.evals-before"], timeout_s=10)
        await sandbox.start(AGENT, self.manifest.agent, env=AGENT_ENV, workdir=APP_DIR, with_secrets=True)
        limit_s = self.case.spec.limits.wall_s
        state = await settled(sandbox, AGENT, limit_s)
        said = await last_words(sandbox, AGENT)
        if state.phase is Phase.RUNNING:
            await sandbox.stop(AGENT)
            raise BuildError(f"the agent had not ended after {limit_s:g} s (limits.wall_s of the case)\n{said}")
        if state.exit_code != 0:
            how = f"the agent ended with {state.exit_code if state.phase is Phase.EXITED else state.phase}"
            raise BuildError(f"{how}{await self._own_words(sandbox)}\n{said}")
        await run_command(sandbox, "written", ["/bin/sh", "-c", _WRITTEN], timeout_s=60, workdir="/")
        elsewhere = [path for path in (await sandbox.logs("written"))[0].decode(errors="replace").split() if _outside(path)]
        note = (
            f"\nmeanwhile written outside /out and /tmp, and so seen by nobody but `dump`: {', '.join(elsewhere)}"
            if elsewhere
            else ""
        )
        return said + note

    async def _own_words(self, sandbox: Sandbox) -> str:
        left = await sandbox.read(f"{OUTPUT_DIR}/result.json", RESULT_MAX_BYTES)
        error = "" if left is None else f": {parse_result(left).error}"
        return error if self.config else f"{error} (it was given no config: try --config, as an arm has it)"

    async def _dump(self) -> str:
        await dump_state(self._sandboxes[0], self.manifest)
        return await last_words(self._sandboxes[0], "dump")

    async def _output(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder) / "bundle.tar"
            collected = await self._sandboxes[0].collect(bundle)
            output = await asyncio.to_thread(read_output, bundle)
        wrong = [] if output.result.status is not None else [output.result.error or "there is no result.json"]
        if output.bad_lines:
            wrong.append(f"transcript.jsonl: {output.bad_lines} lines can't be read, as JSON or as a usage event")
        wrong += [f"{path} is left out: {why}" for path, why in list(collected.skipped.items())[:10]]
        if wrong:
            raise BuildError("\n".join(wrong))
        return f"status {output.result.status}, {output.calls} model calls, {output.n_events} events, {collected.n_files} files"

    async def _down(self) -> str:
        assert self.manifest.services is not None
        await stop_services(self._sandboxes[0], self.manifest.services)
        return await last_words(self._sandboxes[0], "down")

    async def _death(self) -> str:
        sandbox, services = await self._sandbox(), self.manifest.services
        assert services is not None
        if (await sandbox.state(UP)).phase is not Phase.RUNNING:
            return "`up` leaves its services to themselves: nobody can end them from here"
        await sandbox.stop(UP)
        await settled(sandbox, UP, _SETTLE_S)
        return await _must_fail(sandbox, services)


async def _must_fail(sandbox: Sandbox, services: ServicesSpec) -> str:
    assert services.ready is not None
    try:
        await run_command(sandbox, "ready.after", services.ready, timeout_s=services.ready_timeout_s)
    except BuildError:
        return "`ready` says no once `up` was ended"
    except InfrastructureError as error:
        raise BuildError(str(error)) from None
    raise BuildError("`ready` still says yes after `up` was ended, so a dead service would go unnoticed")


def _built(kind: str, key: str, built_s: float | None) -> str:
    return f"{kind} {key[:12]}" + (f", built in {built_s:.1f} s" if built_s is not None else "")


def _outside(path: str) -> bool:
    return not path.startswith(("/out/", "/tmp/", "/run/evals/", "/dev/"))
