"""From a sandbox to what the ledger is told: the bundle by digest into the store, read by worker processes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.outcome import AgentResult
from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.domain.usage import Usage
from eval_pipeline.domain.verdict import VerdictRow
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.domain.world_diff import WorldDiff
from eval_pipeline.errors import OutputUnreadable
from eval_pipeline.runner.doing import waits_for
from eval_pipeline.runner.judging import BundleReport, BundleTask, Examined
from eval_pipeline.runner.readers import MEMORY_MIB, Readers
from eval_pipeline.runner.slots import Slots
from eval_pipeline.sandbox.base import Sandbox
from eval_pipeline.scoring.judge_prompt import Exam
from eval_pipeline.scoring.verdicts import CHECK_VERSION, Verdict, no_verdict, questions
from eval_pipeline.store.artifacts import Artifact, ArtifactStore
from eval_pipeline.store.cell_views import SECRETS_FOUND
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.verdicts import Verdicts
from eval_pipeline.vault.bundles import RedactionTask, redact_bundle
from eval_pipeline.vault.redaction import Redactor

WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A bundle that is in the store. path: a copy here, as long as it is held. facts: of its collection, for the record."""

    bundle: str
    path: Path
    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Persisted:
    """bundle: the digest under which the output is stored. verdicts: what the checks say, not written yet. evidence: with `world_diff` (its artifact's digest and its counts) and
    `state_before` when there was a state to compare with."""

    bundle: str
    result: AgentResult
    usages: list[Usage]
    calls: int
    evidence: dict[str, Any]
    verdicts: tuple[VerdictRow, ...] = ()


class Persister:
    """world_dirs, manifests: of the restored snapshots by digest; both may grow. parsers: how many bundles are handled at once.

    redactor_of: for what an attempt, by its id, has left; None: for one that was given no secrets. quarantine: for deliverables that hold a secret.
    """

    def __init__(
        self,
        store: ArtifactStore,
        verdicts: Verdicts,
        state_dir: Path,
        world_dirs: dict[str, Path],
        manifests: dict[str, SnapshotManifest],
        memory_mib: int = MEMORY_MIB,
        *,
        redactor_of: Callable[[int | None], Redactor],
        quarantine: ArtifactStore,
    ) -> None:
        self._store = store
        self._verdicts = verdicts
        self._state_dir = state_dir
        self._scratch = state_dir / "tmp"
        self._world_dirs = world_dirs
        self._manifests = manifests
        self._readers = Readers(memory_mib)
        self._redactor_of = redactor_of
        self._quarantine = quarantine
        self.parsers = Slots(WORKERS)
        self._scratch.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def collected(self, sandbox: Sandbox, attempt_id: int | None) -> AsyncGenerator[Kept]:
        """What the sandbox left, redacted and durable from here on. attempt_id: None: it was given no secrets.

        Raises StoreError or SandboxError; SpecError and OutputUnreadable when it can't be redacted.
        """
        async with self._room() as folder:
            path, sealed = folder / "bundle.tar", folder / "sealed"
            redactor = self._redactor_of(None) if attempt_id is None else await asyncio.to_thread(self._redactor_of, attempt_id)
            collected = await sandbox.collect(path)
            artifact, found = await self._stored(
                RedactionTask(path=path, sealed=sealed, aside=folder / "aside", redactor=redactor)
            )
            skipped = {redactor.text(_printable(name)): why for name, why in list(collected.skipped.items())[:50]}
            facts = {"n_files": collected.n_files, "size_bytes": collected.size_bytes, "skipped": skipped, **found}
            # As it was collected it is read in half the time
            yield Kept(bundle=artifact.digest, path=path if path.exists() else sealed, facts=facts)

    async def _stored(self, task: RedactionTask) -> tuple[Artifact, dict[str, Any]]:
        """And what was found, for the record."""
        if not task.redactor:  # nothing is read, so no reader is needed
            return await asyncio.to_thread(self._sealed, task), {}
        found = await self._redacted(task)
        return await asyncio.to_thread(self._store.take_file, task.sealed), found

    def _sealed(self, task: RedactionTask) -> Artifact:
        redact_bundle(task)
        return self._store.take_file(task.sealed)

    async def _redacted(self, task: RedactionTask) -> dict[str, Any]:
        """What is put aside is durable first."""
        waits_for("its reader")
        redacted = await self._readers.redact(task)
        aside: list[dict[str, Any]] = []
        for one in redacted.put_aside:
            stored = await asyncio.to_thread(self._quarantine.put_file, one.path)
            aside.append({"file": one.file, "why": one.why, "digest": stored.digest, "size_bytes": one.size_bytes})
        if not redacted.replaced and not aside:
            return {}
        more = {"left_out": redacted.n_left_out} if redacted.n_left_out else {}
        return {SECRETS_FOUND: {"replaced": dict(sorted(redacted.replaced.items())), "quarantined": aside, **more}}

    @asynccontextmanager
    async def fetched(self, bundle: str, facts: Mapping[str, Any] | None = None) -> AsyncGenerator[Kept]:
        """Raises StoreError."""
        async with self._room() as folder:
            path = folder / "bundle"
            await asyncio.to_thread(self._store.fetch, bundle, path)
            yield Kept(bundle=bundle, path=path, facts=dict(facts or {}))

    @asynccontextmanager
    async def _room(self) -> AsyncGenerator[Path]:
        waits_for("a place to persist")
        async with self.parsers.hold():
            waits_for("its output")
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                yield Path(folder)

    async def read(
        self,
        kept: Kept,
        experiment: ExperimentRow,
        key: CellKey,
        state_before: str | None = None,
        measured: Sequence[Usage] | None = None,
    ) -> Persisted:
        """measured: what the gateway counted, if one stood between. state_before: digest of the prepared state's dump, to compare /out/state with.

        Raises StoreError, and OutputUnreadable when the bundle can't be read.
        """
        report = await self._report(kept, experiment, key, state_before, measured=measured)
        compared = None if report.world_diff is None else await asyncio.to_thread(self._keep_diff, report.world_diff)
        return Persisted(
            bundle=kept.bundle,
            result=report.result,
            usages=report.usages,
            calls=report.calls,
            evidence={
                **kept.facts,
                "n_events": report.n_events,
                "bad_lines": report.bad_lines,
                "calls": report.calls,
                **({} if state_before is None else {"state_before": state_before, "world_diff": compared}),
            },
            verdicts=tuple(verdict_rows(report.verdicts, kept.bundle)),
        )

    def _keep_diff(self, diff: WorldDiff) -> dict[str, Any]:
        return {"digest": self._store.put_bytes(diff.model_dump_json().encode()).digest, **diff.summary()}

    async def judge(
        self,
        bundle: str,
        experiment: ExperimentRow,
        key: CellKey,
        state_before: str | None = None,
        measured: Sequence[Usage] | None = None,
    ) -> None:
        """Answer the criteria again from the stored bundle; verdicts that are there stay, what had failed gets another vote."""
        try:
            async with self.fetched(bundle) as kept:
                given = (await self._report(kept, experiment, key, state_before, measured=measured)).verdicts
        except OutputUnreadable as error:  # of this cell alone
            rubric, world = experiment.score.cases[key.case_name].rubric, experiment.run.worlds[key.world]
            given = [no_verdict(question, str(error)) for question in questions(rubric, world, bundle, state_before)]
        before = await asyncio.to_thread(self._verdicts.of_bundles, [bundle])
        failed = {digest: row.vote for digest, row in before.items() if row.status != "ok"}
        await asyncio.to_thread(self._verdicts.add, verdict_rows(given, bundle, failed))

    async def examine(
        self, bundle: str, experiment: ExperimentRow, key: CellKey, state_before: str | None, examined: Examined
    ) -> Exam:
        """The judge's requests, from the stored bundle. Raises StoreError and OutputUnreadable."""
        async with self.fetched(bundle) as kept:
            report = await self._report(kept, experiment, key, state_before, examined)
        assert report.exam is not None
        return report.exam

    async def _report(
        self,
        kept: Kept,
        experiment: ExperimentRow,
        key: CellKey,
        state_before: str | None,
        examined: Examined | None = None,
        measured: Sequence[Usage] | None = None,
    ) -> BundleReport:
        rubric: Rubric = experiment.score.cases[key.case_name].rubric
        before = None
        if state_before is not None:
            before = kept.path.with_name("before")
            await asyncio.to_thread(self._store.fetch, state_before, before)
        world = experiment.run.worlds[key.world]
        task = BundleTask(
            path=kept.path,
            bundle=kept.bundle,
            rubric=rubric,
            world_digest=world,
            world_dir=self._world_dirs[world],
            measured=None if measured is None else tuple(measured),
            before=before,
            state_before=state_before,
            manifest=None if before is None else self._manifests[world],
            examined=examined,
            state_dir=self._state_dir,
        )
        waits_for("its reader")
        return await self._readers.report(task)

    def close(self) -> None:
        self._readers.close()


def verdict_rows(verdicts: Sequence[Verdict], bundle: str, failed: Mapping[str, int] | None = None) -> list[VerdictRow]:
    """failed: by request digest, the last vote of those that have none that is ok."""
    tried = failed or {}
    return [
        VerdictRow(
            request_digest=verdict.request_digest,
            judge_version=CHECK_VERSION,
            vote=tried.get(verdict.request_digest, -1) + 1,
            bundle=bundle,
            criterion=verdict.criterion,
            verdict=verdict.verdict,
            status=verdict.status,
            reason=verdict.reason,
        )
        for verdict in verdicts
    ]


def _printable(name: str) -> str:
    return name[:300].encode("utf-8", "backslashreplace").decode()
