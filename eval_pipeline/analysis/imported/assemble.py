"""From what the readers found to one table: names of arms, which score counts, its range, and what can't stand side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from eval_pipeline.analysis.imported.reading import ReadArm, ReadRow, number
from eval_pipeline.analysis.imported.table import ImportedArm, ImportedRow, ImportedTable, System
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import SpecError
from eval_pipeline.specs.importers.slugs import slug

_EPS = 1e-9
_TOLD = 12


@dataclass(frozen=True, kw_only=True)
class Options:
    """score None: the only one there is. span None: 0 to 1. pass_at None: the upper end, where every score is at one of the ends.

    errors_count: a cell that ended in an error, without a score, counts as an agent's error with the lowest score.
    """

    score: str | None = None
    span: tuple[float, float] | None = None
    pass_at: float | None = None
    errors_count: bool = False


Named = tuple[str | None, ReadArm]
"""The name somebody gave the arm; None: it is named after what it runs."""


def assemble(name: str, system: System, read: Sequence[Named], options: Options) -> ImportedTable:
    """Raises SpecError where the files don't make one table."""
    chosen = _choose([row for _, one in read for row in one.rows], options.score)
    several = len({one.task for _, one in read}) > 1
    named = sorted(zip(_names(read), (one for _, one in read), strict=True), key=lambda pair: pair[0])
    taken = {
        arm: [_taken(row, chosen, one.task if several else None) for one in group for row in one.rows]
        for arm, group in ((arm, [one for _, one in pairs]) for arm, pairs in groupby(named, key=lambda pair: pair[0]))
    }
    scores = [row.score for rows in taken.values() for row in rows if row.score is not None]
    low, high = _span(scores, options.span)
    pass_at = options.pass_at if options.pass_at is not None else high if {*scores} <= {low, high} else None
    arms = [
        ImportedArm(
            name=arm,
            config=dict(next(one for other, one in named if other == arm).config),
            sources=sorted((one.source for other, one in named if other == arm), key=lambda source: source.file),
            rows=_unique(arm, [_finished(row, low, pass_at, options) for row in rows]),
            n_absent=_total([one.n_absent for other, one in named if other == arm]),
        )
        for arm, rows in taken.items()
    ]
    _refuse_other_questions(arms)
    notes = dict.fromkeys((one.source, note) for _, one in named for note in one.notes)
    return ImportedTable(
        name=name,
        system=system,
        score=chosen,
        low=low,
        high=high,
        pass_at=pass_at,
        trials=1 + max(row.trial for arm in arms for row in arm.rows),
        arms=arms,
        notes=[*(note for _, note in notes), *_unscored(arms)],
        n_absent=sum({one.source: one.n_unplaced for _, one in named}.values()),
    )


def _choose(rows: Sequence[ReadRow], wanted: str | None) -> str:
    there = sorted({name for row in rows for name in row.scores})
    if not there:
        raise SpecError("nothing in these files has a score", hint="score them first, with the system that wrote them")
    told = f"there are: {', '.join(there[:_TOLD])}{', ...' if there[_TOLD:] else ''}"
    if wanted is None and len(there) > 1:
        raise SpecError(f"there are {len(there)} scores to choose from", hint=f"name one: --scorer NAME[.KEY]; {told}")
    if wanted is not None and wanted not in there:
        raise SpecError(f"no score is called {wanted!r}", hint=told)
    return wanted or there[0]


def _names(read: Sequence[Named]) -> list[str]:
    """By model and agent; with the version too where that is not enough to tell different versions of one task apart."""
    plain = ["-".join(filter(None, one.names)) for _, one in read]
    versions: dict[tuple[str, str | None], set[str]] = {}
    for text, (_, one) in zip(plain, read, strict=True):
        versions.setdefault((text, one.task), set()).add(one.version)
    found = [
        given or slug(f"{text}-v{one.version}" if len(versions[text, one.task]) > 1 else text)
        for text, (given, one) in zip(plain, read, strict=True)
    ]
    for arm in set(found):
        same = [text for text, name, (given, _) in zip(plain, found, read, strict=True) if name == arm and given is None]
        if not arm or len(set(same)) > 1:
            said = f"no name can be made of {same[0]!r}" if not arm else f"{' and '.join(sorted(set(same)))} would both be {arm}"
            raise SpecError(said, hint="name the arms: --arm NAME=FILE")
    return found


def _taken(read: ReadRow, chosen: str, task: str | None) -> ImportedRow:
    score = number(read.scores.get(chosen)) if read.row.outcome.valid else None
    case = read.row.case if task is None else f"{task}:{read.row.case}"
    return read.row.model_copy(update={"case": case, "score": score})


def _finished(row: ImportedRow, low: float, pass_at: float | None, options: Options) -> ImportedRow:
    if options.errors_count and row.outcome == Outcome.INFRA_FAILURE:
        return row.model_copy(update={"outcome": Outcome.AGENT_ERROR, "score": low, "passed": None if pass_at is None else False})
    passed = None if row.score is None or pass_at is None else row.score >= pass_at - _EPS
    return row.model_copy(update={"passed": passed})


def _span(scores: Sequence[float], given: tuple[float, float] | None) -> tuple[float, float]:
    low, high = given or (0.0, 1.0)
    if outside := [score for score in scores if not low <= score <= high]:
        said = f"scores reach from {min(scores):g} to {max(scores):g}, outside of {low:g} to {high:g}"
        raise SpecError(f"{said}: {len(outside)} of {len(scores)}", hint="say between what they can lie: --range LOW HIGH")
    return low, high


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _unique(arm: str, rows: Sequence[ImportedRow]) -> list[ImportedRow]:
    found = {(row.case, row.trial): row for row in rows}
    if len(found) < len(rows):
        seen: set[tuple[str, int]] = set()
        case, trial = next(key for row in rows if (key := (row.case, row.trial)) in seen or seen.add(key))
        hint = "two files of one arm? Give each a name: --arm NAME=FILE; or leave out the one that was run again"
        raise SpecError(f"arm {arm} has case {case!r}, trial {trial} more than once", hint=hint)
    return [found[key] for key in sorted(found)]


def _refuse_other_questions(arms: Sequence[ImportedArm]) -> None:
    """Equal names with different questions are not the same case."""
    asked: dict[str, tuple[str, str]] = {}
    for arm in arms:
        for row in arm.rows:
            if row.question is None:
                continue
            other, question = asked.setdefault(row.case, (arm.name, row.question))
            if question != row.question:
                both = f"{other} and {arm.name}" if other != arm.name else f"the trials of {arm.name}"
                hint = "they are different cases of the same name: import them under two names (--as)"
                raise SpecError(f"{both} were asked different things in case {row.case!r}", hint=hint)


def _unscored(arms: Sequence[ImportedArm]) -> list[str]:
    counts = {arm.name: sum(row.score is None and row.outcome.valid for row in arm.rows) for arm in arms}
    return [f"{arm}: {n} cells ended without a score that is a number: they are missing, not 0" for arm, n in counts.items() if n]
