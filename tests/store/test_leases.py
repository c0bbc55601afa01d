"""Leases by Postgres' clock, and shares of the installation's limits."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from support.ledgers import AFTER_REBOOT, HERE, THERE, Books, keys

from eval_pipeline.store.database import PAUSED_S
from eval_pipeline.store.leases import LEASE_S
from eval_pipeline.store.schema import engines, grants, limits

WANTED = {"setups": 8, "running": 1024}


@pytest.fixture
def books(database_url: str) -> Generator[Books]:
    opened = Books(database_url)
    yield opened
    opened.database.close()


def granted(books: Books, name: str) -> dict[str, int]:
    """What the living engines hold of a limit."""
    living = sa.and_(engines.c.id == grants.c.engine_id, engines.c.ended_at.is_(None), engines.c.lease_until > sa.func.now())
    query = sa.select(grants.c.engine_id, grants.c.amount).where(living, grants.c.name == name)
    return {row.engine_id: row.amount for row in books.database.run(lambda c: c.execute(query).all())}


def test_a_lease_lasts_from_its_renewal(books: Books) -> None:
    engine = books.engine()
    query = sa.select(sa.extract("epoch", engines.c.lease_until - sa.func.now())).where(engines.c.id == engine)
    books.expire(engine)
    assert books.leases.living() == []
    books.leases.renew(engine, WANTED)
    assert LEASE_S - 10 < float(books.database.run(lambda c: c.execute(query).scalar_one())) <= LEASE_S
    assert [row.id for row in books.leases.living()] == [engine]


def test_a_process_that_pauses_amid_a_transaction_holds_nobody_up_for_long(books: Books) -> None:
    engine = books.engine()
    with books.database.engine.connect() as paused:
        assert paused.execute(sa.text("show idle_in_transaction_session_timeout")).scalar() == f"{PAUSED_S}s"
        paused.execute(sa.text("set idle_in_transaction_session_timeout = '300ms'"))
        paused.execute(sa.select(limits).with_for_update())
        assert books.leases.renew(engine, WANTED)["setups"] > 0
        tries: list[int] = []

        def late(connection: sa.Connection) -> int:
            tries.append(1)
            return (paused if len(tries) == 1 else connection).execute(sa.text("select 7")).scalar_one()

        assert (books.database.run(late), len(tries)) == (7, 2)  # who wakes up takes it for an outage, and begins again


def test_engines_are_known_by_place_and_by_experiment(books: Books) -> None:
    run, here, there = books.experiment(), books.engine(AFTER_REBOOT), books.engine(THERE)
    books.claim(run, here)
    assert [row.id for row in books.leases.living(HERE.place)] == [here]
    assert {row.id for row in books.leases.living()} == {here, there}
    assert [row.id for row in books.leases.engines_of(run.experiment_id)] == [here]
    assert books.leases.engines_of("other") == []
    books.leases.close_engine(here)
    assert books.leases.engines_of(run.experiment_id) == []


def test_an_engine_opened_twice_is_one(books: Books) -> None:
    engine = books.engine()
    books.leases.open_engine(engine, HERE, 1, "other")
    (row,) = books.leases.living()
    assert (row.id, row.run_id) == (engine, None)


def test_a_lone_engine_has_it_all_and_no_more_than_it_wants(books: Books) -> None:
    engine = books.engine()
    assert books.leases.renew(engine, WANTED) == {"setups": 8, "running": 64}
    assert books.leases.renew(engine, {"setups": 3}) == {"setups": 3}


def test_engines_come_to_share_as_they_let_go(books: Books) -> None:
    first, second = books.engine(), books.engine()
    assert books.leases.renew(first, WANTED)["setups"] == 8
    assert books.leases.renew(second, WANTED)["setups"] == 0
    assert books.leases.renew(first, WANTED)["setups"] == 4
    assert books.leases.renew(second, WANTED)["setups"] == 4
    books.leases.close_engine(first)
    assert books.leases.renew(second, WANTED)["setups"] == 8


def test_an_engine_that_comes_back_from_the_dead_takes_nothing_from_the_others(books: Books) -> None:
    """Also what it held of a limit that it no longer asks for is not its own any more."""
    lost, heir = books.engine(), books.engine()
    books.leases.renew(lost, WANTED)
    books.expire(lost)
    assert books.leases.renew(heir, WANTED)["running"] == 64
    assert books.leases.renew(lost, {"setups": 8}) == {"setups": 0}
    assert sum(granted(books, "running").values()) <= 64


def test_a_lowered_limit_is_kept_as_engines_renew(books: Books) -> None:
    one, two = books.engine(), books.engine()
    for engine in (one, two, one, two):
        books.leases.renew(engine, WANTED)
    books.database.run(lambda c: c.execute(sa.update(limits).where(limits.c.name == "setups").values(value=2)))
    assert [books.leases.renew(engine, WANTED)["setups"] for engine in (one, two)] == [0, 1]
    assert sum(granted(books, "setups").values()) <= 2


@profile(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 7),
    st.lists(
        st.tuples(st.sampled_from(["join", "renew", "renew", "leave", "expire"]), st.integers(0, 9), st.integers(0, 9)),
        max_size=20,
    ),
)
def test_shares_never_exceed_the_limit(books: Books, limit: int, steps: list[tuple[str, int, int]]) -> None:
    def reset(c: sa.Connection) -> None:
        c.execute(sa.delete(grants))
        c.execute(sa.update(engines).values(ended_at=sa.func.now()))
        c.execute(sa.update(limits).where(limits.c.name == "setups").values(value=limit))

    books.database.run(reset)
    known = [books.engine()]
    for what, number, want in steps:
        engine = known[number % len(known)]
        if what == "join":
            known.append(books.engine())
        elif what == "renew":
            share = books.leases.renew(engine, {"setups": want})["setups"]
            assert share <= want
        elif what == "leave":
            books.leases.close_engine(engine)
        else:
            books.expire(engine)
        assert sum(granted(books, "setups").values()) <= limit


def test_shares_never_exceed_the_limit_when_engines_renew_at_once(books: Books) -> None:
    known = [books.engine() for _ in range(6)]

    def beat(engine: str) -> int:
        for _ in range(5):
            books.leases.renew(engine, WANTED)
            assert sum(granted(books, "setups").values()) <= 8
        return books.leases.renew(engine, WANTED)["setups"]

    with ThreadPoolExecutor(6) as pool:
        shares = list(pool.map(beat, known))
    assert sum(shares) <= 8
    for engine in known * 2:
        books.leases.renew(engine, WANTED)
    assert sorted(granted(books, "setups").values()) == [1, 1, 1, 1, 2, 2]


def test_cells_of_an_engine_whose_lease_ran_out_are_others_even_when_it_renews(books: Books) -> None:
    run, slow = books.experiment(), books.engine()
    books.claim(run, slow)
    books.expire(slow)
    heir = books.engine()
    books.claim(run, heir)
    books.leases.renew(slow, WANTED)
    assert books.ledger.claim(slow, keys(run), HERE.place) == []


def test_what_runs_elsewhere_shares_nothing_with_this_machine(books: Books) -> None:
    here, there = books.engine(), books.engine()
    books.leases.renew(here, WANTED)
    assert books.leases.renew(there, {"modal setups": 64, "modal running": 2000}) == {"modal setups": 64, "modal running": 2000}
    assert books.leases.renew(here, WANTED) == {"setups": 8, "running": 64}
