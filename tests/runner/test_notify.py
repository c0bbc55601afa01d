"""Notices through a real loopback webhook that takes, fails, hangs, drips and throttles; recorded once, whoever records them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sqlalchemy as sa
from support.ledgers import Books, keys

from eval_pipeline.analysis.load import load_leaderboard
from eval_pipeline.domain.cell import Outcome
from eval_pipeline.errors import SpecError
from eval_pipeline.runner.notify import MAX_TRIES, send, tell_finished, tell_state
from eval_pipeline.runner.webhook import post
from eval_pipeline.settings import Settings, load_settings
from eval_pipeline.store.notices import Notices
from eval_pipeline.store.records import Records
from eval_pipeline.store.schema import cells, notices, strays
from eval_pipeline.store.strays import Strays

pytestmark = pytest.mark.slow
SECRET = "T0SECRETPART"


@dataclass
class Hook:
    """answers: how the next requests are answered, one each: a status, (status, headers), `hang` or `drip`; 200 after that."""

    url: str
    answers: list[Any] = field(default_factory=list[Any])
    got: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.got]


@contextmanager
def serving() -> Generator[Hook]:
    hook = Hook("")
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert set(body) == {"text"} and self.headers["Content-Type"] == "application/json"
            hook.got.append((body["text"], self.headers["Idempotency-Key"]))
            answer = hook.answers.pop(0) if hook.answers else 200
            if answer == "hang":
                over.wait(60)
                return
            if answer == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while not over.wait(0.2):
                    self.wfile.write(b"X: y\r\n")
                return
            status, headers = answer if isinstance(answer, tuple) else (answer, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
    try:
        yield hook
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hook() -> Generator[Hook]:
    with serving() as made:
        yield made


@pytest.fixture
def told(settings: Settings, hook: Hook) -> Settings:
    return replace(settings, webhook_url=hook.url)


def later(records: Records) -> None:
    """As if every wait were over."""
    past = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 2)
    records.database.run(lambda c: c.execute(sa.update(notices).values(next_try_at=past)))


def row(records: Records, key: str) -> Any:
    return records.database.run(lambda c: c.execute(sa.select(notices).where(notices.c.key == key)).one())


def wait_s(records: Records, key: str) -> float:
    left = sa.extract("epoch", notices.c.next_try_at - sa.func.now())
    return float(records.database.run(lambda c: c.execute(sa.select(left).where(notices.c.key == key)).scalar_one()))


def test_a_notice_is_recorded_once_and_sent_once(told: Settings, records: Records, hook: Hook) -> None:
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: Notices(records.database).add("k", "hello é"), range(16)))
        sent = list(pool.map(lambda _: send(told, records), range(8)))
    assert (sum(added), sum(sent), hook.texts) == (1, 1, ["hello é"])
    later(records)
    assert not Notices(records.database).add("k", "hello again") and send(told, records) == 0
    assert hook.texts == ["hello é"]


@pytest.mark.parametrize("answer", [500, 404, 302])
def test_what_is_refused_is_sent_again_later(told: Settings, records: Records, hook: Hook, answer: int) -> None:
    hook.answers = [(answer, {"Location": hook.url}), answer, 200]
    Notices(records.database).add("k", "hello")
    assert send(told, records) == 0 and len(hook.got) == 1
    assert row(records, "k").error == f"it answered {answer}"
    assert send(told, records) == 0 and len(hook.got) == 1, "not before its time"
    first_s = wait_s(records, "k")
    later(records)
    assert send(told, records) == 0 and wait_s(records, "k") > first_s
    later(records)
    assert send(told, records) == 1
    assert len(hook.got) == 3 and len({key for _, key in hook.got}) == 1, "the key tells that it is the same"


def test_a_throttling_server_is_left_alone_for_as_long_as_it_asks(told: Settings, records: Records, hook: Hook) -> None:
    hook.answers = [(429, {"Retry-After": "900"})]
    Notices(records.database).add("k", "hello")
    assert send(told, records) == 0
    assert 800 < wait_s(records, "k") <= 900


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_server_that_draws_it_out_holds_nobody_up(hook: Hook, how: str) -> None:
    hook.answers = [how]
    began = time.monotonic()
    assert post(hook.url, "x", "k", timeout_s=1).error is not None
    assert time.monotonic() - began < 30


def test_nothing_that_is_kept_says_the_url(settings: Settings, records: Records) -> None:
    secret = replace(settings, webhook_url=f"http://127.0.0.1:9/services/{SECRET}")
    Notices(records.database).add("k", "hello")
    assert send(secret, records) == 0
    assert SECRET not in row(records, "k").error and SECRET not in repr(secret)
    assert SECRET not in (post(f"http://127.0.0.1:9/{SECRET}\n", "x", "k").error or "")
    with pytest.raises(SpecError) as caught:
        load_settings({"EVALS_WEBHOOK_URL": f"ftp://x/{SECRET}"})
    assert SECRET not in str(caught.value)


def test_after_many_tries_it_is_given_up_and_said(told: Settings, records: Records, hook: Hook) -> None:
    hook.answers = [500] * MAX_TRIES
    Notices(records.database).add("k", "hello")
    for _ in range(MAX_TRIES + 1):
        send(told, records)
        later(records)
    outbox = Notices(records.database).outbox()
    assert (len(hook.got), outbox.waiting, outbox.given_up) == (MAX_TRIES, 0, 1)


def test_a_sender_that_dies_before_the_mark_leaves_it_to_be_sent_again(told: Settings, records: Records, hook: Hook) -> None:
    Notices(records.database).add("k", "hello")
    taken = Notices(records.database).take()
    assert taken is not None and post(hook.url, taken.text, "k").error is None  # and here it was killed
    assert send(told, records) == 0, "somebody may be sending it"
    later(records)
    assert send(told, records) == 1 and hook.texts == ["hello", "hello"]


def test_nothing_is_recorded_without_a_webhook(settings: Settings, records: Records, books: Books) -> None:
    spent(books)
    tell_state(settings, records)
    assert records.database.run(lambda c: c.execute(sa.select(notices.c.key)).all()) == []


def spent(books: Books) -> str:
    """4 of 5 USD by one attempt that ended; another one has reserved the fifth."""
    run = books.experiment(2, budget_usd="5")
    claims = books.ledger.claim(books.engine(), keys(run), "place-1")
    first = books.begin(claims[0], reserve_usd="4")
    books.finish(claims[0], first, cost_usd=Decimal("3.9"), price_version="1")
    books.begin(claims[1], reserve_usd="1")
    return run.experiment_id


def test_a_budget_is_told_once_at_eighty_percent_of_what_is_spent(
    told: Settings, records: Records, books: Books, hook: Hook
) -> None:
    name = spent(books)
    tell_state(told, records)
    send(told, records)
    assert hook.texts == [], "what is only reserved is not spent"
    change = sa.text("update evals.experiments set committed_usd = committed_usd + 0.2 where id = :name")
    records.database.run(lambda c: c.execute(change, {"name": name}))
    for _ in range(2):
        tell_state(told, records)
        send(told, records)
    assert hook.texts == [f"{name}: 4.10 of 5.00 USD are spent (82% of its budget)"]


def test_infrastructure_failures_are_told_once(told: Settings, records: Records, books: Books, hook: Hook) -> None:
    run = books.experiment(3)
    for claim in books.ledger.claim(books.engine(), keys(run), "place-1")[:2]:
        books.finish(claim, books.begin(claim), Outcome.INFRA_FAILURE, last=True)
        tell_state(told, records)
        send(told, records)
    tell_state(told, records)
    send(told, records)
    assert hook.texts == [f"{run.experiment_id}: 2 of 2 attempts failed by infrastructure (100%)"]


def test_leaks_are_told_in_one_notice_and_each_once(told: Settings, records: Records, hook: Hook) -> None:
    here = Strays(records.database, "local", "p")
    here.seen({"e-1": "x/w.c/a/0", "e-2": None})
    tell_state(told, records)
    assert send(told, records) == 0, "they may be about to be ended"
    old = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 1)
    for newcomer in ({}, {"e-3": None}):
        here.seen({"e-1": "x/w.c/a/0", "e-2": None, **newcomer})
        records.database.run(lambda c: c.execute(sa.update(strays).values(first_seen_at=old)))
        for _ in range(2):
            tell_state(told, records)
            send(told, records)
    assert [text.partition(" leaked")[0] for text in hook.texts] == ["2", "1"]
    assert "e-1 on local, of x/w.c/a/0" in hook.texts[0] and "e-3 on local" in hook.texts[1]


def test_a_finished_experiment_is_told_with_its_verdict_once_for_each_end(
    told: Settings, records: Records, books: Books, hook: Hook
) -> None:
    run = books.experiment(1)
    experiment = records.ledger.experiment(run.experiment_id)

    def tell() -> None:
        tell_finished(told, records, experiment, load_leaderboard(records, experiment))
        send(told, records)

    engine = books.engine()
    claim = books.claim(run, engine)
    tell()
    assert hook.texts == [], "somebody works on it"
    books.finish(claim, books.begin(claim), Outcome.INFRA_FAILURE, last=True)
    books.ledger.release(engine)
    tell()
    tell()
    (text,) = hook.texts
    assert text.startswith(f"{run.experiment_id} finished: 0 of 1 cells valid; a -") and "provisional" in text
    records.database.run(lambda c: c.execute(sa.update(cells).values(updated_at=sa.func.now())))  # it was run again
    tell()
    assert len(hook.texts) == 2
