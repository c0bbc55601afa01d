"""What is archived by itself, and what never is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.ledgers import Books, keys

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.retention import MOST_PARTITIONS, archive_old, due, partitions_warning
from eval_pipeline.settings import RetentionSettings, load_settings
from eval_pipeline.store.records import Records
from eval_pipeline.store.views import Rested

DAY_S = 86400.0
RULE = RetentionSettings(after_days=10, over=4, keep=2)


def rested(**days: float) -> list[Rested]:
    return [Rested(experiment=name, idle_s=age * DAY_S, at_rest=not name.startswith("open")) for name, age in days.items()]


def test_old_ones_go_oldest_first_and_the_newest_stay_however_old() -> None:
    assert due(rested(a=30, b=20, c=11, d=9), RULE) == ["a", "b"]
    assert due(rested(a=30, b=20), RULE) == []
    assert due(rested(a=9, b=8, c=7, d=6), RULE) == []


def test_of_too_many_the_oldest_go_and_open_ones_never() -> None:
    assert due(rested(a=6, b=5, c=4, d=3, e=2, f=1), RULE) == ["a", "b"]
    assert due(rested(open_a=99, open_b=5, c=4, d=3, e=2, f=1), RULE) == []


def test_a_warning_at_half() -> None:
    assert partitions_warning(MOST_PARTITIONS // 2 - 1) is None
    assert "50000 cells" in (partitions_warning(MOST_PARTITIONS // 2) or "")


def test_the_rule_is_read_from_the_environment() -> None:
    environ = {"EVALS_ARCHIVE_AFTER_DAYS": "7", "EVALS_ARCHIVE_OVER": "50", "EVALS_ARCHIVE_KEEP": "0"}
    assert load_settings(environ).retention == RetentionSettings(after_days=7, over=50, keep=0)
    with pytest.raises(SpecError, match="EVALS_ARCHIVE_KEEP"):
        load_settings({"EVALS_ARCHIVE_KEEP": "-1"})


def older(records: Records, *experiments: str) -> None:
    """As if all that happened to them had been 20 days ago."""
    for statement in (
        "update evals.experiments set ran_at = ran_at - interval '20 days' where id = any(:names)",
        "update evals.cells set updated_at = updated_at - interval '20 days' where experiment_id = any(:names)",
    ):
        records.database.run(lambda c, statement=statement: c.execute(sa.text(statement), {"names": list(experiments)}))


@pytest.mark.slow
def test_done_failed_and_cancelled_ones_go_and_come_back_to_stay(records: Records, books: Books) -> None:
    rule = replace(RULE, keep=0)
    made = {name: books.experiment(1, name=name) for name in ("done", "failed", "cancelled", "open", "busy", "fresh")}
    ids = {name: run.experiment_id for name, run in made.items()}
    for name, outcome in {"done": Outcome.OK, "failed": Outcome.INFRA_FAILURE, "fresh": Outcome.OK}.items():
        engine = books.engine()
        claim = books.claim(made[name], engine)
        books.finish(claim, books.begin(claim), outcome, last=True)
        books.ledger.release(engine)
    books.ledger.request_cancel(ids["cancelled"])
    books.ledger.request_cancel(ids["busy"])
    assert len(books.ledger.claim(books.engine(), keys(made["busy"]), "place-1")) == 1
    older(records, *(ids[name] for name in made if name != "fresh"))
    before = records.views.n_partitions()
    assert set(archive_old(records, rule)) == {ids[name] for name in ("done", "failed", "cancelled")}
    assert before - records.views.n_partitions() == 3
    assert {row.id for row in records.ledger.experiments()} == {ids[name] for name in ("open", "busy", "fresh")}
    records.ledger.restore(ids["done"])
    assert archive_old(records, rule) == [] and ids["done"] in {row.id for row in records.ledger.experiments()}
