"""The work that people review, read from stored bundles in the words that a judge reads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence

from eval_pipeline.analysis.questions import JudgedQuestion
from eval_pipeline.runner.judging import Examined
from eval_pipeline.runner.services import Services
from eval_pipeline.scoring.judge_prompt import Exam, ToAsk
from eval_pipeline.scoring.label_file import Sheet
from eval_pipeline.store.ledger import ExperimentRow
from eval_pipeline.store.reviews import ReviewItem

_MARK = re.compile(r"\[\[\[BEGIN task ([0-9a-f]{24})\]\]\]\n")
_SHOWN_APART = ("task", "reference")


async def sheets(
    services: Services, experiment: ExperimentRow, asked: Sequence[tuple[ReviewItem, JudgedQuestion]]
) -> AsyncGenerator[Sheet]:
    """In the order given; one work is read once when its questions follow each other. Raises StoreError and OutputUnreadable."""
    await services.restore_worlds(experiment, [str(one.cell) for _, one in asked])
    read: tuple[str, str] | None = None
    for item, one in asked:
        if read is None or read[0] != str(one.cell):
            read = (str(one.cell), readable(await _exam(services, experiment, one)))
        case = experiment.run.case(one.cell.case_name)
        yield Sheet(
            name=item.name,
            task=case.prompt,
            reference=experiment.score.cases[one.cell.case_name].reference,
            work=read[1],
            criterion=one.criterion.text,
            per_occurrence=one.criterion.per_occurrence,
        )


async def _exam(services: Services, experiment: ExperimentRow, one: JudgedQuestion) -> Exam:
    case = experiment.run.case(one.cell.case_name)
    criterion = one.criterion
    asked = ToAsk(question_digest=one.asked, criterion=criterion.id, text=criterion.text, per_occurrence=criterion.per_occurrence)
    examined = Examined(
        task=case.prompt,
        reference=experiment.score.cases[one.cell.case_name].reference,
        deliverables=case.deliverables,
        asked=(asked,),
    )
    return await services.persister.examine(one.bundle, experiment, one.cell, one.state_before, examined)


def readable(exam: Exam) -> str:
    """The work with a line before each part of it, in place of the judge's marks."""
    mark = _MARK.match(exam.text)
    assert mark is not None, "an exam begins with its task"
    block = re.compile(rf"\[\[\[BEGIN (\w+) {mark[1]}\]\]\]\n(.*?)\n\[\[\[END \1 {mark[1]}\]\]\]", re.DOTALL)
    parts = [(found[1], found[2]) for found in block.finditer(exam.text) if found[1] not in _SHOWN_APART]
    return "\n\n".join(f"[{'not shown' if kind == 'unseen' else kind}]\n{text}" for kind, text in parts)
