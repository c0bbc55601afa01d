"""Job folders of Harbor: result.json of the job, and of each trial in a folder of its own."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, Field

from eval_pipeline.analysis.imported.files import MAX_ENTRIES, MIB, flat_scores, name_of, parsed, whole
from eval_pipeline.analysis.imported.reading import ReadArm, ReadRow, Tokens, cost_of, usage_of
from eval_pipeline.analysis.imported.table import ImportedRow, ImportedSource
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import SpecError

MAX_RESULT = 64 * MIB
_ENDINGS = {
    "AgentTimeoutError": Outcome.AGENT_TIMEOUT,
    "NonZeroAgentExitCodeError": Outcome.AGENT_ERROR,
    "ContextWindowExceededError": Outcome.BUDGET_EXCEEDED,
    "ContextLengthExceededError": Outcome.BUDGET_EXCEEDED,
    "OutputTokenExceededError": Outcome.BUDGET_EXCEEDED,
    "OutputLengthExceededError": Outcome.BUDGET_EXCEEDED,
    "AgentSafetyRefusalError": Outcome.REFUSAL,
    "ContentPolicyViolationError": Outcome.REFUSAL,
    "CancelledError": Outcome.CANCELLED,
}
"""Where the agent's work has a valid reward all the same, and what an operator ended. By the name of the exception."""


class _Counts(BaseModel):
    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None


class _Context(_Counts):
    model_usage: dict[str, _Counts] | None = None


class _Policy(BaseModel):
    has_valid_reward: bool


class _Exception(BaseModel):
    exception_type: str
    exception_message: str = ""
    policy: _Policy | None = None


class _Rewards(BaseModel):
    rewards: dict[str, Any] | None = None


class _Timing(BaseModel):
    started_at: AwareDatetime | None = None
    finished_at: AwareDatetime | None = None


class _Step(BaseModel):
    agent_result: _Context | None = None
    exception_info: _Exception | None = None
    agent_execution: _Timing | None = None


class _Model(BaseModel):
    name: str
    provider: str | None = None


class _Agent(BaseModel):
    name: str
    version: str = ""
    model_info: _Model | None = None


class _Trial(_Timing):
    task_name: str
    trial_name: str
    task_checksum: str | None = None
    source: str | None = None
    agent_info: _Agent
    agent_result: _Context | None = None
    verifier_result: _Rewards | None = None
    exception_info: _Exception | None = None
    agent_execution: _Timing | None = None
    step_results: list[_Step] | None = None

    @property
    def exceptions(self) -> list[_Exception]:
        found = [self.exception_info, *(step.exception_info for step in self.step_results or [])]
        return [one for one in found if one is not None]

    @property
    def contexts(self) -> list[_Context]:
        if self.agent_result is not None:
            return [self.agent_result]
        return [step.agent_result for step in self.step_results or [] if step.agent_result is not None]


class _Job(BaseModel):
    n_total_trials: int = Field(ge=0, le=MAX_ENTRIES)
    finished_at: datetime | None = None


def read_harbor(folder: Path) -> list[ReadArm]:
    """An arm for each agent and model. Raises SpecError for what is no job, or can't be read."""
    if not folder.is_dir():
        raise SpecError("is no folder", where=str(folder), hint="name the folder of a job: it holds result.json")
    path = folder / "result.json"
    job = parsed(whole(path, MAX_RESULT), _Job, str(path))
    digests, trials, unread = _trials(folder)
    if not trials:
        raise SpecError("holds no trial with a result", where=str(folder), hint="a trial is a folder in it, with a result.json")
    digest = hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()
    source = ImportedSource(file=folder.resolve().name, sha256=digest)
    absent = max(0, job.n_total_trials - len(trials))
    notes = [f"{source.file}: {absent} of {job.n_total_trials} planned trials have no result"] if absent else []
    notes += [] if job.finished_at else [f"{source.file}: the job has not finished; what it holds was read"]
    notes += [f"{source.file}: {unread} folders of trials hold no result.json"] if unread else []
    return _arms(trials, source, absent, notes)


def _trials(folder: Path) -> tuple[list[str], list[tuple[_Trial, str]], int]:
    """Digests of what was read, the trials with their files, and the number of folders without a result."""
    digests: list[str] = []
    trials: list[tuple[_Trial, str]] = []
    unread = 0
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    if len(names) > MAX_ENTRIES:
        raise SpecError(f"holds {len(names)} folders, {MAX_ENTRIES} are read", where=str(folder))
    for name in names:
        path = folder / name / "result.json"
        if not path.is_file():
            unread += (folder / name / "config.json").is_file()
            continue
        data = whole(path, MAX_RESULT)
        digests.append(hashlib.sha256(data).hexdigest())
        trials.append((parsed(data, _Trial, str(path)), str(path)))
    return digests, trials, unread


def _arms(trials: Iterable[tuple[_Trial, str]], source: ImportedSource, absent: int, notes: Sequence[str]) -> list[ReadArm]:
    ordered = sorted(trials, key=lambda one: _what_runs(one[0]))
    groups = [(what, list(group)) for what, group in groupby(ordered, key=lambda one: _what_runs(one[0]))]
    alone = len(groups) == 1
    return [
        ReadArm(
            source=source,
            names=(agent, "/".join(filter(None, (provider, model)))),
            version=version,
            task=None,
            config={"agent": agent, "agent_version": version, "model": model or None, "provider": provider or None},
            rows=_rows(group),
            n_absent=absent if alone else None if absent else 0,
            notes=notes,
            n_unplaced=0 if alone else absent,
        )
        for (agent, version, model, provider), group in groups
    ]


def _what_runs(trial: _Trial) -> tuple[str, str, str, str]:
    agent, model = trial.agent_info, trial.agent_info.model_info
    return agent.name, agent.version, model.name if model else "", (model.provider or "") if model else ""


def _rows(trials: list[tuple[_Trial, str]]) -> list[ReadRow]:
    """The trials of a task in the order in which they began."""
    counts: dict[str, int] = {}
    found: list[ReadRow] = []
    for trial, where in sorted(trials, key=lambda one: (one[0].started_at is None, str(one[0].started_at), one[0].trial_name)):
        case = name_of(trial.task_name, "its task_name", where)
        counts[case] = at = counts.get(case, -1) + 1
        found.append(_row(trial, case, at, where))
    return found


def _row(trial: _Trial, case: str, at: int, where: str) -> ReadRow:
    outcome = _outcome(trial)
    usage, untold = usage_of(_tokens(trial), where)
    said = trial.exceptions[0] if trial.exceptions else None
    rewards = (trial.verifier_result.rewards if trial.verifier_result else None) or {}
    return ReadRow(
        row=ImportedRow(
            case=case,
            trial=at,
            outcome=outcome,
            error=None if said is None else f"{said.exception_type}: {said.exception_message}"[:2000],
            question=trial.task_checksum,
            usage=usage,
            untold=untold,
            cost_usd=cost_of([one.cost_usd for one in trial.contexts], where),
            latency_s=_latency(trial, where),
            censored=outcome == Outcome.AGENT_TIMEOUT,
            started_at=trial.started_at,
            ended_at=trial.finished_at,
        ),
        scores=flat_scores(rewards, where),
    )


def _outcome(trial: _Trial) -> Outcome:
    """The exception that lost the reward decides; one beside a valid reward says how the agent ended."""
    if not trial.exceptions:
        return Outcome.OK
    for one in trial.exceptions:
        ending = _ENDINGS.get(one.exception_type)
        if ending == Outcome.CANCELLED:
            return ending
        valid = one.policy.has_valid_reward if one.policy else ending is not None
        if not valid:
            return Outcome.INFRA_FAILURE
    known = [_ENDINGS[one.exception_type] for one in trial.exceptions if one.exception_type in _ENDINGS]
    rewarded = trial.verifier_result is not None and bool(trial.verifier_result.rewards)
    return known[0] if known else Outcome.OK if rewarded else Outcome.INFRA_FAILURE


def _tokens(trial: _Trial) -> list[tuple[str, Tokens]]:
    """By model. Harbor's input includes what came from a cache: of no use without that number."""
    model = trial.agent_info.model_info.name if trial.agent_info.model_info else "unknown"
    return [(name, _split(one)) for context in trial.contexts for name, one in (context.model_usage or {model: context}).items()]


def _split(told: _Counts) -> Tokens:
    sent, cached = told.n_input_tokens, told.n_cache_tokens
    cached = None if sent is None or cached is None else min(cached, sent)
    uncached = None if sent is None or cached is None else sent - cached
    return Tokens(input_uncached=uncached, input_tokens=sent, cache_read=cached, output_tokens=told.n_output_tokens)


def _latency(trial: _Trial, where: str) -> float | None:
    """Of the agent alone; of the whole trial where its own time is not told."""
    own = [trial.agent_execution, *(step.agent_execution for step in trial.step_results or [])]
    spans = [one for one in own if one is not None] or [trial]
    seconds = [(one.finished_at - one.started_at).total_seconds() for one in spans if one.started_at and one.finished_at]
    if any(one < 0 for one in seconds):
        raise SpecError("it ends before it starts", where=where)
    return sum(seconds) if seconds and len(seconds) == len(spans) else None
