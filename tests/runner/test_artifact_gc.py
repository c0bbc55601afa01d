"""Artifacts are removed when nothing has referred to them for long, and at no other time: in a directory and in S3."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.ledgers import Books, keys

from eval_pipeline.errors import SpecError
from eval_pipeline.runner.artifact_gc import GRACE_S, collect
from eval_pipeline.settings import RetentionSettings, Settings
from eval_pipeline.store.artifacts import LocalArtifacts, open_store
from eval_pipeline.store.records import Records
from eval_pipeline.store.reuse import Reuse

pytestmark = pytest.mark.slow


@pytest.fixture
def store(settings: Settings) -> LocalArtifacts:
    made = open_store(settings)
    assert isinstance(made, LocalArtifacts)
    return made


def put(settings: Settings, *, days_ago: float = 3) -> str:
    digest = open_store(settings).put_bytes(secrets.token_bytes(20)).digest
    when = time.time() - days_ago * 86400
    os.utime(path_of(settings, digest), (when, when))
    return digest


def path_of(settings: Settings, digest: str) -> Path:
    return settings.state_dir / "artifacts" / digest[:2] / digest


def a_day_later(records: Records) -> None:
    change = "update evals.artifact_marks set marked_at = marked_at - interval '25 hours'"
    records.database.run(lambda c: c.execute(sa.text(change)))


def attempted(books: Books, name: str, bundle: str, dump: str) -> str:
    """An experiment with one attempt: its bundle in a column, a dump somewhere in its evidence."""
    run = books.experiment(1, name=name)
    engine = books.engine()
    claim = books.claim(run, engine)
    books.finish(claim, books.begin(claim), bundle=bundle, evidence={"state": {"before": [{"digest": dump}]}})
    books.ledger.release(engine)
    return run.experiment_id


def test_marked_at_one_look_and_removed_at_a_later_one(
    settings: Settings, records: Records, books: Books, store: LocalArtifacts
) -> None:
    lost, young, bundle, dump = put(settings), put(settings, days_ago=0.5), put(settings), put(settings)
    attempted(books, "x", bundle, dump)
    dry = collect(settings, records, dry_run=True)
    assert (dry.removed, dry.n_stored, dry.n_referenced) == ([lost], 4, 2)
    first = collect(settings, records)
    assert (first.removed, first.marked) == ([], 1)
    assert collect(settings, records).removed == []
    a_day_later(records)
    assert collect(settings, records).removed == [lost]
    assert [store.exists(digest) for digest in (lost, young, bundle, dump)] == [False, True, True, True]


def test_what_is_referred_to_in_between_loses_its_mark(
    settings: Settings, records: Records, books: Books, store: LocalArtifacts
) -> None:
    bundle, dump = put(settings), put(settings)
    collect(settings, records)
    a_day_later(records)
    attempted(books, "x", bundle, dump)
    assert collect(settings, records).removed == []
    records.database.run(lambda c: c.execute(sa.text("update evals.attempts set bundle = null")))
    assert collect(settings, records).removed == [], "its time begins anew"
    assert store.exists(bundle)


def test_what_is_put_again_is_new_although_nothing_was_written(
    settings: Settings, records: Records, store: LocalArtifacts
) -> None:
    source = settings.state_dir / "file"
    source.write_bytes(b"the same")
    digest = store.put_file(source).digest
    os.utime(path_of(settings, digest), (0, 0))
    collect(settings, records)
    a_day_later(records)
    assert store.put_file(source).digest == digest  # and its row is about to be written
    assert collect(settings, records).removed == [] and store.exists(digest)
    assert not store.remove(digest, GRACE_S) and store.exists(digest)


def test_an_archived_experiments_artifacts_stay_unless_they_are_given_up(
    settings: Settings, records: Records, books: Books
) -> None:
    bundle, dump = put(settings), put(settings)
    name = attempted(books, "old", bundle, dump)
    records.ledger.archive(name)
    change = sa.text("update evals.experiments set archived_at = now() - interval '40 days'")
    records.database.run(lambda c: c.execute(change))
    for days, gone in ((None, []), (50, []), (30, sorted([bundle, dump]))):
        rule = replace(settings, retention=RetentionSettings(delete_after_days=days))
        collect(rule, records)
        a_day_later(records)
        assert collect(rule, records).removed == gone


@pytest.fixture
def given_up(settings: Settings, records: Records) -> Callable[[str], list[str]]:
    """Archive an experiment for longer than the rule allows; returns what is removed then."""

    def collected(name: str) -> list[str]:
        records.ledger.archive(name)
        change = sa.text("update evals.experiments set archived_at = now() - interval '40 days' where id = :name")
        records.database.run(lambda c: c.execute(change, {"name": name}))
        rule = replace(settings, retention=RetentionSettings(delete_after_days=30))
        collect(rule, records)
        a_day_later(records)
        return collect(rule, records).removed

    return collected


def test_what_a_living_experiment_took_over_stays_until_that_is_given_up_too(
    settings: Settings, records: Records, books: Books, store: LocalArtifacts, given_up: Callable[[str], list[str]]
) -> None:
    bundle, dump = put(settings), put(settings)
    old, new = attempted(books, "old", bundle, dump), books.experiment(1, name="new")
    assert Reuse(books.database).adopt(new.experiment_id) == keys(new)
    assert given_up(old) == []
    counted = books.cell(keys(new)[0]).counted
    assert counted is not None and counted.bundle == bundle and store.exists(bundle) and store.exists(dump)
    assert given_up(new.experiment_id) == sorted([bundle, dump])


def test_a_result_whose_bundle_was_removed_is_taken_over_by_nobody(
    settings: Settings, records: Records, books: Books, given_up: Callable[[str], list[str]]
) -> None:
    old = attempted(books, "old", put(settings), put(settings))
    new = books.experiment(1, name="new")
    digests = {keys(new)[0]: books.row(keys(new)[0]).cell_digest}
    assert len(Reuse(books.database).planned(new.experiment_id, digests)) == 1
    assert len(given_up(old)) == 2
    records.ledger.restore(old)
    assert Reuse(books.database).planned(new.experiment_id, digests) == {}
    assert Reuse(books.database).adopt(new.experiment_id) == []
    assert books.cell(keys(new)[0]).state == "open"


def test_a_store_of_two_ledgers_is_left_alone(settings: Settings, records: Records, store: LocalArtifacts) -> None:
    put(settings)
    store.claim("another-one")
    with pytest.raises(SpecError, match="shared with the installations another-one"):
        collect(settings, records)


def test_what_a_killed_collector_had_taken_aside_comes_back(settings: Settings, records: Records, store: LocalArtifacts) -> None:
    digest = put(settings)
    aside = settings.state_dir / "artifacts" / "tmp" / f"removed-{digest}"
    path_of(settings, digest).rename(aside)
    assert collect(settings, records).n_stored == 1
    assert store.exists(digest) and not aside.exists()
