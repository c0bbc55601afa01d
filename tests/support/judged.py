"""Experiments whose cells are done, with stored bundles and no sandbox anywhere: what there is to judge."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import tarfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from support.ledgers import HERE
from support.locks import locked_arm, locked_case, run_lock

from eval_pipeline.analysis.load import load_table
from eval_pipeline.analysis.tables import ScoredCell
from eval_pipeline.domain.cell import AttemptResult, Outcome
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.lock import LockedArm, ScoredCase, ScoreLock
from eval_pipeline.domain.rubric import Criterion, Policy, Rubric
from eval_pipeline.domain.world import WorldSpec
from eval_pipeline.runner.finish import judge_missing
from eval_pipeline.runner.judges import JudgeReport
from eval_pipeline.runner.services import Services, open_services
from eval_pipeline.settings import Settings
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records, open_records
from eval_pipeline.store.schema import judge_calls
from eval_pipeline.store.snapshots import pack_world

PRICE = {
    "provider": "loopback",
    "model": "gpt-test",
    "effective_from": "2026-01-01",
    "input_uncached": "10",
    "cache_read": "1",
    "cache_write_5m": "12",
    "cache_write_1h": "12",
    "output": "100",
    "source": "made up",
}
CALL_USD = Decimal("0.0114")
"""600 uncached, 400 cached and 50 output tokens at these prices."""


def judged(id: str, text: str, points: float = 1, **more: Any) -> Criterion:
    return Criterion(id=id, text=text, points=points, judge=True, **more)


def bundle_of(answer: str | None, files: Mapping[str, bytes] | None = None) -> bytes:
    result = json.dumps({"status": "ok", "answer": answer}).encode()
    named = {"out/result.json": result, **{f"out/files/{name}": data for name, data in (files or {}).items()}}
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in named.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(sink.getvalue(), mtime=0)  # the same output is the same bundle, whenever it was made


class JudgedRuns:
    def __init__(self, settings: Settings, records: Records, services: Services) -> None:
        self.settings, self.records, self.services = settings, records, services
        self._names = (f"x{n}" for n in itertools.count())
        folder = settings.worlds_dir / "worlds" / "w"
        (folder / "documents").mkdir(parents=True)
        (folder / "documents" / "lease.txt").write_text("60 days\n")
        spec = WorldSpec(id="w", title="w", documents="documents/")
        self.snapshot = pack_world(folder, spec, services.store)
        records.ledger.add_snapshot("w", self.snapshot)

    def experiment(
        self,
        judge: JudgeSpec | None,
        criteria: Sequence[Criterion],
        answers: Sequence[str | None],
        *,
        files: Mapping[str, bytes] | Sequence[Mapping[str, bytes]] = {},
        budget_usd: str | None = None,
        prices: Sequence[dict[str, Any]] = (PRICE,),
        reference: str | None = None,
        outcome: Outcome = Outcome.OK,
        policy: Policy = "clip_cell",
        arms: Sequence[LockedArm] = (locked_arm("secret-arm"),),
        trials: int = 1,
    ) -> ExperimentRow:
        """An answer a cell: case by case, arm by arm, trial by trial. files: of each, or of all."""
        left = files if isinstance(files, Sequence) else [files] * len(answers)
        n_cases = len(answers) // (len(arms) * trials)
        cases = [locked_case(f"c{n}", prompt="Which contracts need consent?") for n in range(n_cases)]
        run = run_lock(next(self._names), cases, arms, trials, worlds={"w": self.snapshot.digest})
        scored = ScoredCase(rubric=Rubric(criteria=tuple(criteria)), reference=reference)
        score = ScoreLock(policy=policy, judge=judge, cases={case.name: scored for case in cases}, prices=list(prices))
        budget = None if budget_usd is None else Decimal(budget_usd)
        self.records.ledger.create_experiment(run, score, repo="/app", baseline=None, budget_usd=budget)
        engine = "00000000-0000-0000-0000-000000000001"
        self.records.leases.open_engine(engine, HERE, 1, None)
        keys = [str(key) for key in run.cell_keys()]
        claims = self.records.ledger.claim(engine, keys, HERE.place)
        for claim, answer, written in zip(claims, answers, left, strict=True):
            attempt = self.records.ledger.begin_attempt(
                claim, backend="local", host_id=HERE.id, name_sandbox=str, reserve_usd=Decimal(0)
            )
            bundle = self.services.store.put_bytes(bundle_of(answer, written)).digest
            result = AttemptResult(outcome=outcome, bundle=bundle, cost_usd=Decimal(0), latency_s=1.0)
            self.records.ledger.finish_attempt(claim, attempt.id, result, last=False)
        return self.records.ledger.experiment(run.experiment_id)

    def judge(self, experiment: ExperimentRow, *, again: bool = False) -> JudgeReport:
        return asyncio.run(judge_missing(self.services, self.records.ledger.experiment(experiment.id), again=again))

    def table(self, experiment: ExperimentRow) -> list[ScoredCell]:
        return load_table(self.records, self.records.ledger.experiment(experiment.id))

    def calls(self, experiment: ExperimentRow) -> list[Any]:
        query = sa.select(judge_calls).where(judge_calls.c.experiment_id == experiment.id).order_by(judge_calls.c.id)
        return list(self.records.database.run(lambda c: c.execute(query).all()))

    def committed_usd(self, experiment: ExperimentRow) -> Decimal:
        return self.records.ledger.experiment(experiment.id).committed_usd


@contextmanager
def judged_runs(settings: Settings) -> Generator[JudgedRuns]:
    with open_records(settings) as records, open_services(settings, records) as services:
        yield JudgedRuns(settings, records, services)
