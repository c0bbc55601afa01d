"""What the worker processes do: read a stored bundle and answer its criteria. Everything in and out can be pickled."""

from __future__ import annotations

import os
import select
import threading
from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.domain.outcome import AgentResult
from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.domain.usage import Usage
from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.domain.world_diff import WorldDiff
from eval_pipeline.runner.output import Output, read_output
from eval_pipeline.scoring.check_base import Bench, Evidence
from eval_pipeline.scoring.judge_prompt import Exam, ToAsk, exam
from eval_pipeline.scoring.judge_questions import work_of
from eval_pipeline.scoring.verdicts import Documents, Verdict, answer_questions, questions
from eval_pipeline.scoring.world_diff import world_diff_of


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What a judge is to be asked about a bundle. task, reference, deliverables: the case's."""

    task: str
    reference: str | None
    deliverables: tuple[str, ...]
    asked: tuple[ToAsk, ...]


@dataclass(frozen=True, kw_only=True)
class BundleTask:
    """bundle: its digest. path: where the bytes are. world_dir: the restored snapshot with `world_digest`.

    measured: what the model gateway counted; None: nothing stood between, and checks of the usage read the transcript's.
    before: the bundle with the dump of the prepared state, whose digest is `state_before`; None: the app has no `dump`, and nothing
    is compared. manifest: of the snapshot; needed with `before`. examined: None: the checks are answered; else they are not, and the
    judge's requests are written. state_dir: for the sandboxes of checks that are programs of one's own; None: these give no verdict.
    """

    path: Path
    bundle: str
    rubric: Rubric
    world_digest: str
    world_dir: Path
    measured: tuple[Usage, ...] | None = None
    before: Path | None = None
    state_before: str | None = None
    manifest: SnapshotManifest | None = None
    examined: Examined | None = None
    state_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BundleReport:
    """world_diff: None when nothing was compared. exam: None when none was asked for."""

    result: AgentResult
    usages: list[Usage]
    calls: int
    n_events: int
    bad_lines: int
    files: list[str]
    verdicts: list[Verdict]
    world_diff: WorldDiff | None
    exam: Exam | None


def end_with(engine: int) -> None:
    """In a worker: leave with the engine. Its forkserver outlives a killed engine, and keeps its workers for ever."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        watched = os.pidfd_open(engine)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_leave_after, args=(watched,), daemon=True).start()


def _leave_after(watched: int) -> None:
    select.select([watched], [], [])
    os._exit(1)


def report_on_bundle(task: BundleTask) -> BundleReport:
    """Raises tarfile.TarError or OSError when the bundle itself is broken."""
    output = read_output(task.path)
    diff = _world_diff(task)
    evidence = _evidence(output, task, diff)
    examined = task.examined
    asked = questions(task.rubric, task.world_digest, task.bundle, task.state_before) if examined is None else []
    return BundleReport(
        result=output.result,
        usages=output.usages,
        calls=output.calls,
        n_events=output.n_events,
        bad_lines=output.bad_lines,
        files=sorted([*output.files, *output.too_large]),
        verdicts=answer_questions(asked, evidence),
        world_diff=diff,
        exam=None if examined is None else _exam(examined, output, evidence),
    )


def _world_diff(task: BundleTask) -> WorldDiff | None:
    if task.before is None or task.manifest is None:
        return None
    return world_diff_of(task.path, task.before, task.world_dir, task.manifest)


def _exam(examined: Examined, output: Output, evidence: Evidence) -> Exam:
    work = work_of(evidence, output.too_large, examined.deliverables)
    return exam(examined.task, examined.reference, work, examined.asked)


def _evidence(output: Output, task: BundleTask, diff: WorldDiff | None) -> Evidence:
    return Evidence(
        answer=output.result.answer,
        files=output.files,
        documents=Documents(task.world_dir),
        result=output.result_json,
        world_diff=diff,
        usage=output.usages if task.measured is None else task.measured,
        bench=None if task.state_dir is None else Bench(state_dir=task.state_dir, world_dir=task.world_dir),
    )
