"""What the worker processes do: read a stored bundle and answer its criteria. Everything in and out can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eval_pipeline.domain.outcome import AgentResult
from eval_pipeline.domain.rubric import Rubric
from eval_pipeline.domain.usage import Usage
from eval_pipeline.runner.output import Output, read_output
from eval_pipeline.scoring.checks import Evidence
from eval_pipeline.scoring.verdicts import Documents, Verdict, answer_questions, questions


@dataclass(frozen=True, kw_only=True)
class BundleTask:
    """bundle: its digest. path: where the bytes are. world_dir: the restored snapshot with `world_digest`."""

    path: Path
    bundle: str
    rubric: Rubric
    world_digest: str
    world_dir: Path


@dataclass(frozen=True, kw_only=True)
class BundleReport:
    result: AgentResult
    usages: list[Usage]
    calls: int
    n_events: int
    bad_lines: int
    files: list[str]
    verdicts: list[Verdict]


def report_on_bundle(task: BundleTask) -> BundleReport:
    """Raises tarfile.TarError or OSError when the bundle itself is broken."""
    output = read_output(task.path)
    asked = questions(task.rubric, task.world_digest, task.bundle)
    return BundleReport(
        result=output.result,
        usages=output.usages,
        calls=output.calls,
        n_events=output.n_events,
        bad_lines=output.bad_lines,
        files=sorted([*output.files, *output.too_large]),
        verdicts=answer_questions(asked, _evidence(output, task.world_dir)) if asked else [],
    )


def _evidence(output: Output, world_dir: Path) -> Evidence:
    return Evidence(answer=output.result.answer, files=output.files, documents=Documents(world_dir), result=None)
