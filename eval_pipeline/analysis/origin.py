"""Where a cell's number comes from: what was run, and how it was judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from eval_pipeline.domain.canonical import canonical_json
from eval_pipeline.domain.ids import CellKey
from eval_pipeline.domain.lock import ScoreLock
from eval_pipeline.scoring.judge_votes import judge_version
from eval_pipeline.scoring.prices import PriceBook
from eval_pipeline.store.ledger import ExperimentRow


@dataclass(frozen=True, kw_only=True)
class Origin:
    """app, commit, tree and config: of the arm; commit None: a working tree. config: canonical JSON. snapshot: the world's digest.

    run_lock, score_lock: digests. judge_version None: no criterion of the experiment is judged. Of an imported cell only the config is known.
    """

    config: str
    app: str | None = None
    backend: str | None = None
    commit: str | None = None
    tree: str | None = None
    snapshot: str | None = None
    run_lock: str | None = None
    score_lock: str | None = None
    judge_version: str | None = None
    price_version: str | None = None
    scoring_version: int | None = None


def origins(experiment: ExperimentRow, prices: PriceBook) -> Callable[[CellKey], Origin]:
    run, score, judge, price_version = experiment.run, experiment.score, judged_by(experiment.score), prices.version

    @cache
    def of(arm_name: str, world: str) -> Origin:
        arm = run.arm(arm_name)
        return Origin(
            app=run.app,
            backend=run.backend,
            commit=arm.commit,
            tree=arm.tree,
            config=canonical_json(arm.config),
            snapshot=run.worlds[world],
            run_lock=run.digest,
            score_lock=score.digest,
            judge_version=judge,
            price_version=price_version,
            scoring_version=score.scoring_version,
        )

    return lambda key: of(key.arm, key.world)


def judged_by(score: ScoreLock) -> str | None:
    """The version of the judge; None when no criterion asks one."""
    if score.judge is None or not any(one.judge for case in score.cases.values() for one in case.rubric.criteria):
        return None
    return judge_version(score.judge)
