"""How far the judge of an experiment may be trusted, read from the ledger."""

from __future__ import annotations

import tarfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from eval_pipeline.analysis.calibration import Calibration, Drawn, badge_of, calibrate
from eval_pipeline.analysis.corrected import CorrectedArm, corrected_arms
from eval_pipeline.analysis.load_tables import Tables, load_tables
from eval_pipeline.analysis.questions import JudgedQuestion
from eval_pipeline.analysis.stats import Badge
from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.errors import StoreError
from eval_pipeline.scoring.bundle_tar import work_bytes
from eval_pipeline.scoring.judge_votes import judge_version
from eval_pipeline.scoring.price_library import family_of
from eval_pipeline.store.artifacts import ArtifactStore
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.records import Records
from eval_pipeline.store.reviews import Label


@dataclass(frozen=True, kw_only=True)
class JudgeCalibration:
    """means: of one experiment, an arm each, raw and corrected; none over several experiments."""

    experiments: list[str]
    judge: str
    version: str
    calibration: Calibration
    means: list[CorrectedArm] = field(default_factory=list[CorrectedArm])


def load_calibration(
    records: Records,
    experiment: ExperimentRow,
    store: ArtifactStore,
    labels: Mapping[str, Sequence[Label]] | None = None,
) -> JudgeCalibration | None:
    """labels: by question, in place of those in the ledger. None: no judge decides anything."""
    judge = experiment.score.judge
    tables = load_tables(records, experiment, labels=labels)
    if judge is None or not tables.questions:
        return None
    found = [_measured(store, one) for one in drawn_of(records, experiment, tables.questions)]
    return JudgeCalibration(
        experiments=[experiment.id],
        judge=judge.model,
        version=judge_version(judge),
        calibration=calibrate(found, tables.questions, judge.provider),
        means=means_of(experiment, tables, found),
    )


def load_judges(records: Records) -> list[JudgeCalibration]:
    """Every judge that scores an experiment people were asked about, over all of these."""
    drawn: dict[str, list[Drawn]] = defaultdict(list)
    asked: dict[str, list[JudgedQuestion]] = defaultdict(list)
    judges: dict[str, tuple[JudgeSpec, list[str]]] = {}
    for experiment in map(records.ledger.experiment, records.reviews.experiments()):
        if (judge := experiment.score.judge) is None:
            continue
        version, questions = judge_version(judge), load_tables(records, experiment).questions
        judges.setdefault(version, (judge, []))[1].append(experiment.id)
        asked[version] += questions
        found = drawn_of(records, experiment, questions)
        drawn[version] += [replace(one, arm=f"{experiment.id}/{one.arm}") for one in found]
    return [
        JudgeCalibration(
            experiments=names,
            judge=judge.model,
            version=version,
            calibration=calibrate(drawn[version], asked[version], judge.provider),
        )
        for version, (judge, names) in judges.items()
    ]


def load_badge(records: Records, experiment: ExperimentRow) -> Badge | None:
    """Of the experiment's judge, by the labels of its own cells. None: no judge decides anything."""
    tables = load_tables(records, experiment)
    if experiment.score.judge is None or not tables.questions:
        return None
    return badge_of(drawn_of(records, experiment, tables.questions))


def badge_and_means(records: Records, experiment: ExperimentRow, tables: Tables) -> tuple[Badge, list[CorrectedArm]]:
    """means: none while nobody has labelled a whole cell that was drawn at random."""
    drawn = drawn_of(records, experiment, tables.questions)
    means = means_of(experiment, tables, drawn) if drawn else []
    return badge_of(drawn), means if any(one.n_labelled for one in means) else []


def drawn_of(records: Records, experiment: ExperimentRow, questions: Sequence[JudgedQuestion]) -> list[Drawn]:
    """The questions that were drawn at random, and no others: what is in doubt says nothing of the rest."""
    chosen = {(one.cell_key, one.question_digest) for one in records.reviews.items(experiment.id) if one.kind == "random"}
    families = {arm.name: _family(arm.name, arm.config.get("model")) for arm in experiment.run.arms} if chosen else {}
    return [
        Drawn(question=one, arm=one.cell.arm, family=families[one.cell.arm])
        for one in questions
        if (str(one.cell), one.digest) in chosen
    ]


def _measured(store: ArtifactStore, one: Drawn) -> Drawn:
    """With the length of a work that people labelled. What is no longer stored, or can't be read, has none."""
    if not one.known:
        return one
    try:
        with store.open(one.question.bundle) as stored:
            return replace(one, length=work_bytes(stored))
    except (StoreError, tarfile.TarError, OSError, TypeError):
        return one


def means_of(experiment: ExperimentRow, tables: Tables, drawn: Sequence[Drawn]) -> list[CorrectedArm]:
    cells = {str(one.question.cell) for one in drawn}
    return corrected_arms([arm.name for arm in experiment.run.arms], tables.judged, tables.decided, cells)


def _family(arm: str, model: object) -> str:
    """An arm that names no model is a family of its own."""
    return family_of(model) if isinstance(model, str) and model else arm
