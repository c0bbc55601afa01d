"""What a round cost: the ledger against what the agents said of themselves, and what is left on the machine."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from backports.zstd import tarfile
from chaos.chaos_round import Round
from chaos.chaos_stage import PRICE_USD
from chaos.chaos_witness import Mark

from eval_pipeline.runner.reaper import survey
from eval_pipeline.sandbox.local.places import prepare
from eval_pipeline.store.cell_views import AttemptView, CellView
from eval_pipeline.store.liveness import end_dead_engines

_SLACK_S = 0.02  # between the clock of a mark's reader and Postgres', which are the same machine's


@dataclass
class Toll:
    """lost: cells without exactly one counted result that is their own agent's. doubled: agents beyond one in an attempt.

    rerun_alive: agents that were run again although nothing had taken them. leaked: sandboxes, processes and leases left.
    misspent: attempts and experiments whose cost is not what was run. why: each of them in words.
    """

    rounds: int = 0
    cells: int = 0
    lost: int = 0
    doubled: int = 0
    rerun_alive: int = 0
    leaked: int = 0
    misspent: int = 0
    why: list[str] = field(default_factory=list[str])

    def add(self, other: Toll) -> None:
        for name in ("rounds", "cells", "lost", "doubled", "rerun_alive", "leaked", "misspent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.why += other.why

    @property
    def line(self) -> str:
        return (
            f"chaos rounds={self.rounds} cells={self.cells} lost={self.lost} doubled={self.doubled} "
            f"rerun_alive={self.rerun_alive} leaked={self.leaked}"
        )

    def note(self, what: str, why: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        self.why.append(f"{what}: {why}")


def toll_of(round: Round) -> Toll:
    toll = Toll(rounds=1)
    marks = round.stage.witness.marks(f"{round.name}/")
    for cell in round.stage.records.views.cells(round.experiment.id):
        toll.cells += 1
        own = [mark for mark in marks if mark.cell == f"{round.name}/{cell.key.rpartition('/')[2]}"]
        _judge_result(toll, round, cell, own)
        _judge_starts(toll, round, cell, own)
    _judge_total(toll, round)
    _judge_leftovers(toll, round)
    return toll


def _starts(marks: Sequence[Mark], attempt: AttemptView) -> list[Mark]:
    """Those that were said while the attempt lasted."""
    if attempt.agent_started_at is None or attempt.ended_at is None:
        return []
    began, ended = attempt.agent_started_at.timestamp() - _SLACK_S, attempt.ended_at.timestamp() + _SLACK_S
    return [mark for mark in marks if mark.what == "start" and began <= mark.at <= ended]


def _judge_result(toll: Toll, round: Round, cell: CellView, marks: list[Mark]) -> None:
    valid = [one for one in cell.attempts if one.outcome == "ok" and one.discarded is None]
    if cell.counted is None or len(valid) != 1 or cell.counted.bundle is None:
        told = [(one.number, one.outcome, one.error) for one in cell.attempts]
        return toll.note("lost", f"{cell.key} is {cell.state} with attempts {told}")
    answer = _answer(round, cell.counted.bundle)
    if answer not in {f"yes {mark.run}" for mark in _starts(marks, cell.counted)}:
        toll.note("lost", f"{cell.key} counts {answer!r}, which no agent of its attempt {cell.counted.number} gave")
    return None


def _answer(round: Round, bundle: str) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        round.stage.store.fetch(bundle, path)
        with tarfile.open(path) as tar:
            content = tar.extractfile("out/result.json")
            return None if content is None else json.load(content)["answer"]


def _judge_starts(toll: Toll, round: Round, cell: CellView, marks: list[Mark]) -> None:
    told: set[str] = set()
    for attempt in cell.attempts:
        starts = _starts(marks, attempt)
        told |= {mark.run for mark in starts}
        if len(starts) > 1:
            toll.note("doubled", f"{cell.key}: {len(starts)} agents in attempt {attempt.number}")
        if starts and attempt is not cell.attempts[-1] and not _excused(round, attempt, starts[0], marks):
            toll.note("rerun_alive", f"{cell.key}: attempt {attempt.number} ended as {attempt.outcome}: {attempt.error}")
        cost = Decimal(PRICE_USD) if starts else Decimal(0)
        # then nobody could look at what it used
        taken = attempt.sandbox in round.excused or (bool(starts) and _excused(round, attempt, starts[0], marks))
        if attempt.cost_usd != cost and not (taken and attempt.cost_usd is None):
            toll.note("misspent", f"{cell.key}: attempt {attempt.number} cost {attempt.cost_usd}, {len(starts)} agents ran")
    strangers = [mark for mark in marks if mark.what == "start" and mark.run not in told]
    for mark in strangers:
        toll.note("doubled", f"{cell.key}: agent {mark.run} ran in no attempt")


def _excused(round: Round, attempt: AttemptView, start: Mark, marks: list[Mark]) -> bool:
    """A fault took its sandbox; or it had ended, and nothing could be stored for long."""
    if attempt.sandbox in round.excused:
        return True
    ended = any(mark.what == "end" and mark.run == start.run for mark in marks)
    assert attempt.ended_at is not None
    over = attempt.ended_at.timestamp()
    return ended and any(start.at <= until and since <= over for since, until in round.full)


def _judge_total(toll: Toll, round: Round) -> None:
    (row,) = round.stage.ask(
        "select committed_usd from evals.experiments where id = %s",
        round.experiment.id,
    )
    (total,) = round.stage.ask(
        "select coalesce(sum(coalesce(cost_usd, reserved_usd) + coalesce(sandbox_cost_usd, reserved_sandbox_usd)), 0)"
        " from evals.attempts where cell_key like %s",
        f"{round.experiment.id}/%",
    )
    if row[0] != total[0]:
        toll.note("misspent", f"{round.experiment.id}: {row[0]} is committed, its attempts sum to {total[0]}")


def _judge_leftovers(toll: Toll, round: Round) -> None:
    stage = round.stage
    for command in round.left_behind():
        toll.note("leaked", f"process {command}")
    if stage.modal is not None and stage.backend == "modal":
        names = [one["name"] for one in stage.modal.sandboxes() if one["alive"]]
    else:
        names = [found.info.name for found in asyncio.run(survey(stage.settings, stage.records))]
        scratch = str(prepare(stage.settings.state_dir).scratch)
        names += [line for line in _commands() if f"{scratch}/" in line]
    end_dead_engines(stage.records.leases, stage.settings)
    names += [f"lease of engine {engine.id}" for engine in stage.records.leases.living()]
    for name in names:
        toll.note("leaked", name)


def _commands() -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200])
        except OSError:
            continue
    return found
