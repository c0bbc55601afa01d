"""What people are asked about judged criteria, and what they said: append-only, of each person the last word on a question holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from eval_pipeline.errors import NotFound, SpecError
from eval_pipeline.store.database import Database, storable
from eval_pipeline.store.schema_reviews import labels, review_items, reviews

Kind = Literal["random", "doubt"]
_SHORT = 16


@dataclass(frozen=True, kw_only=True)
class ReviewItem:
    """raters: how many people are to label it. kind: random when any drawing took it by chance."""

    question_digest: str
    cell_key: str
    criterion: str
    raters: int
    kind: Kind = "random"

    @property
    def name(self) -> str:
        """What people call it. It tells neither arm nor verdict."""
        return self.question_digest[:_SHORT]


@dataclass(frozen=True, kw_only=True)
class Label:
    """verdict: 0, 1 or a count; None: this person can't tell."""

    question_digest: str
    rater: str
    verdict: float | None
    note: str | None = None


class Reviews:
    def __init__(self, database: Database) -> None:
        self._database = database

    def draw(self, experiment: str, kind: Kind, items: Sequence[ReviewItem], *, seed: int, n_cells: int | None) -> int:
        """Ask people about these, behind what they are asked already. Returns how many of them are new."""

        def work(c: sa.Connection) -> int:
            c.execute(sa.text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"reviews {experiment}"})
            mine = (reviews.c.experiment_id == experiment) & (reviews.c.kind == kind)
            query = sa.select(review_items.c.cell_key, review_items.c.question_digest).join(reviews).where(mine)
            have = {(row.cell_key, row.question_digest) for row in c.execute(query)}
            new = [one for one in items if (one.cell_key, one.question_digest) not in have]
            if new:
                values = {"experiment_id": experiment, "kind": kind, "seed": seed, "n_cells": n_cells}
                review = c.execute(insert(reviews).values(values).returning(reviews.c.id)).scalar_one()
                c.execute(insert(review_items), [_row(review, place, one) for place, one in enumerate(new)])
            return len(new)

        return self._database.run(work)

    def items(self, experiment: str) -> list[ReviewItem]:
        """In the order people see. Cells that left the same have a question in common, and an item each."""
        return self._items(reviews.c.experiment_id == experiment)

    def named(self, name: str) -> ReviewItem:
        """By the beginning of its digest, the shortest that we show or a longer one. Raises NotFound."""
        found = self._items(review_items.c.question_digest.startswith(name, autoescape=True)) if len(name) >= _SHORT else []
        if len({one.question_digest for one in found}) != 1:
            raise NotFound(f"no review asks about {name!r}", hint="`evals judge review EXPERIMENT --json` lists what is asked")
        return found[0]

    def experiments(self) -> list[str]:
        """That people were asked about, oldest first."""
        query = sa.select(reviews.c.experiment_id).group_by(reviews.c.experiment_id).order_by(sa.func.min(reviews.c.id))
        return list(self._database.run(lambda c: c.execute(query).scalars().all()))

    def _items(self, which: sa.ColumnElement[bool]) -> list[ReviewItem]:
        query = sa.select(review_items, reviews.c.kind).join(reviews).where(which).order_by(reviews.c.id, review_items.c.place)
        found: dict[tuple[str, str], ReviewItem] = {}
        for row in self._database.run(lambda c: c.execute(query).all()):
            key = (row.cell_key, row.question_digest)
            before = found.get(key)
            by_chance = row.kind == "random" or (before is not None and before.kind == "random")
            found[key] = ReviewItem(
                question_digest=row.question_digest,
                cell_key=row.cell_key,
                criterion=row.criterion,
                raters=max(row.raters, before.raters if before else 0),
                kind="random" if by_chance else "doubt",
            )
        return list(found.values())

    def say(self, said: Sequence[Label]) -> int:
        """Add labels. What its rater says already is left out. Returns how many are new."""

        def work(c: sa.Connection) -> int:
            for rater in sorted({one.rater for one in said}):
                c.execute(sa.text("select pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"labels {rater}"})
            holds = {(one.question_digest, one.rater): one for one in _labels(c, (one.question_digest for one in said))}
            given = [_storable(one) for one in said]
            new = [one for one in given if holds.get((one.question_digest, one.rater)) != one]
            if new:
                c.execute(insert(labels), [one.__dict__ for one in new])
            return len(new)

        return self._database.run(work)

    def labels(self, questions: Iterable[str]) -> dict[str, list[Label]]:
        """By question, of each rater the last; in the order of the raters' names. What nobody labelled is left out."""
        found: dict[str, list[Label]] = {}
        for one in self._database.run(lambda c: _labels(c, questions)):
            found.setdefault(one.question_digest, []).append(one)
        return found


def _labels(c: sa.Connection, questions: Iterable[str]) -> list[Label]:
    asked = labels.c.question_digest == sa.any_(sa.literal(list(set(questions)), sa.ARRAY(sa.Text)))
    query = sa.select(labels).where(asked).order_by(labels.c.question_digest, labels.c.rater, labels.c.id)
    last = {(row.question_digest, row.rater): row for row in c.execute(query).all()}
    return [
        Label(question_digest=row.question_digest, rater=row.rater, verdict=row.verdict, note=row.note) for row in last.values()
    ]


def _storable(label: Label) -> Label:
    return Label(
        question_digest=label.question_digest, rater=label.rater, verdict=label.verdict, note=storable(label.note) or None
    )


def _row(review: int, place: int, item: ReviewItem) -> dict[str, object]:
    return {
        "review_id": review,
        "question_digest": item.question_digest,
        "cell_key": item.cell_key,
        "criterion": item.criterion,
        "place": place,
        "raters": item.raters,
    }


def check_rater(name: str) -> str:
    """Raises SpecError for what is no name to keep."""
    if not (0 < len(name) <= 64 and name.isprintable() and name == name.strip()):
        raise SpecError(f"{name!r} is no rater's name", hint="up to 64 characters on one line: --rater ann")
    return name
