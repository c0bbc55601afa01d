"""What the ledger says of an experiment under way."""

from __future__ import annotations

from support.ledgers import HERE, Books, keys

from eval_pipeline.domain.cell import Outcome
from eval_pipeline.store.standing import ends_by_arm, first_error, open_cells, pace


def test_open_cells_pace_and_ends(database_url: str) -> None:
    books = Books(database_url)
    run = books.experiment(4)
    engine = books.engine()
    done, failed, running, _ = books.ledger.claim(engine, keys(run), HERE.place)
    books.finish(done, books.begin(done), Outcome.AGENT_ERROR, error="said \0 no\nmore")
    books.finish(failed, books.begin(failed), Outcome.INFRA_FAILURE, last=True, error="lost")
    attempt = books.begin(running)
    books.ledger.agent_started(running, attempt.id, 60.0)
    books.leases.say(engine, {running.key: ["its agent", "2026-01-01T00:00:00+00:00"]})
    name = run.experiment_id

    found = open_cells(books.database, name)
    assert [(one.state, one.living, one.attempt) for one in found] == [
        ("failed", True, None),
        ("running", True, 1),
        ("open", True, None),
    ]
    assert found[0].error == "lost"
    assert found[1].doing is not None and found[1].doing[0] == "its agent" and found[1].deadline_at is not None
    now = pace(books.database, name)
    assert (len(now.took_s), len(now.ages_s), now.pending) == (1, 1, 2)
    assert ends_by_arm(books.database, name)[0].ends == {
        ("done", "agent_error"): 1,
        ("failed", "infra_failure"): 1,
        ("running", None): 1,
        ("open", None): 1,
    }
    assert first_error(books.database, name, "a") == "said \\0 no\nmore"

    books.expire(engine)
    assert [(one.owned, one.living, one.left_at is not None, one.doing) for one in open_cells(books.database, name)][1] == (
        True,
        False,
        True,
        None,
    )
    assert pace(books.database, name).ages_s == []
    books.ledger.release(engine)
    assert not any(one.owned for one in open_cells(books.database, name))
    books.database.close()
