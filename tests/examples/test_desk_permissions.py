"""Who gets what over HTTP: the answers of the document service to sessions of different users."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from desk_runs import Cell, Machine

pytestmark = pytest.mark.slow

PRIVILEGED = "documents/17-privileged-memo-rostock.md"
MINUTES = "documents/11-supervisory-board-minutes-2026-03-06.md"
USERS = ("p.reuter", "m.lindqvist", "j.ahrend")


@pytest.fixture(scope="module")
def cell(machine: Machine, harbour: Path) -> Generator[Cell]:
    with machine.desk(harbour) as found:
        yield found


@pytest.mark.parametrize(
    ("user", "count", "may_minutes", "may_privileged"),
    [("p.reuter", 27, 0, 0), ("m.lindqvist", 28, 1, 0), ("j.ahrend", 29, 1, 1)],
)
def test_each_user_has_the_documents_of_the_rules(
    cell: Cell, user: str, count: int, may_minutes: int, may_privileged: int
) -> None:
    token = cell.token(user)
    _, listed = cell.http("GET", "/documents", token=token)
    assert len(listed["documents"]) == count
    for path, may in ((MINUTES, may_minutes), (PRIVILEGED, may_privileged)):
        assert (path in json.dumps(listed)) == bool(may)
        assert cell.http("GET", f"/documents/{path}", token=token)[0] == (200 if may else 404)
        assert cell.http("GET", f"/content/{path}", token=token)[0] == (200 if may else 404)
        for method in ("bm25", "keyword"):
            _, found = cell.http("GET", f"/search?query=Geolabor+Nord+board+minutes&method={method}&top_k=50", token=token)
            assert (path in json.dumps(found)) == bool(may)


def test_content_is_the_files_bytes(cell: Cell, harbour: Path) -> None:
    path = "blobs/portwise-software-agreement.pdf"
    status, data = cell.http("GET", f"/content/{path}")
    assert (status, bytes.fromhex(data)) == (200, (harbour / path).read_bytes())


def test_absent_and_forbidden_look_the_same(cell: Cell) -> None:
    for url in ("/documents/", "/content/"):
        forbidden, absent = (cell.http("GET", url + path, user="p.reuter") for path in (PRIVILEGED, "documents/99-none.md"))
        assert forbidden == (404, {"error": absent[1]["error"].replace("documents/99-none.md", PRIVILEGED)})
    body = {"path": PRIVILEGED, "content": "x"}
    assert cell.http("POST", "/documents", body, user="p.reuter")[0] == 404


def test_a_header_makes_nobody_somebody(cell: Cell) -> None:
    token = cell.token("p.reuter")
    body, _, signature = token.partition(".")
    other = cell.token("j.ahrend").partition(".")[0]
    for forged in ("", "j.ahrend", body, f"{other}.{signature}", f"{body}.{signature[:-1]}0" if signature[-1] != "0" else body):
        assert cell.http("GET", "/documents", token=forged or " ")[0] == 401
    assert cell.http("GET", "/session", token=token) == (200, {"user": "p.reuter", "matter": "AV-2025-0417"})


def test_the_agents_session_is_that_of_the_matters_user(cell: Cell) -> None:
    assert cell.http("GET", "/session")[1]["user"] == "m.lindqvist"


def test_chats_are_their_users(cell: Cell) -> None:
    for user in USERS:
        _, found = cell.http("GET", "/records/past_chats", user=user)
        assert {row["user"] for row in found["records"]} == {user}


def test_a_review_is_seen_with_its_document_and_written_as_oneself(cell: Cell) -> None:
    row = {"document": PRIVILEGED, "column": "reserve", "value": "EUR 1"}
    assert cell.http("POST", "/records/tabular_reviews", row, user="p.reuter")[0] == 422
    status, saved = cell.http("POST", "/records/tabular_reviews", row, user="j.ahrend")
    assert (status, saved["reviewed_by"], saved["matter"]) == (201, "j.ahrend", "AV-2025-0417")
    seen = {user: saved in cell.http("GET", "/records/tabular_reviews", user=user)[1]["records"] for user in USERS}
    assert seen == {"p.reuter": False, "m.lindqvist": False, "j.ahrend": True}
    assert cell.http("POST", "/records/tabular_reviews", row | {"reviewed_by": "x"}, user="j.ahrend")[0] == 422
    assert cell.http("POST", "/records/users", {"id": "x"}, user="j.ahrend")[0] == 422


def test_another_matters_rows_are_not_seen(machine: Machine, made_world: Callable[..., Path]) -> None:
    world = made_world({"a.md": b"# A"})
    (world / "database").mkdir()
    tables = {
        "matters": [{"id": "m1", "title": "One", "user": "u"}, {"id": "m2", "title": "Two", "user": "u"}],
        "playbook_rules": [
            {"id": "r1", "matter": "m1", "rule": "a"},
            {"id": "r2", "matter": "m2", "rule": "b"},
            {"id": "r3", "rule": "c"},
        ],
    }
    for name, rows in tables.items():
        (world / "database" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with machine.desk(world) as cell:
        seen = {name: [row["id"] for row in cell.http("GET", f"/records/{name}")[1]["records"]] for name in tables}
    assert seen == {"matters": ["m1"], "playbook_rules": ["r1", "r3"]}


@pytest.mark.parametrize(
    "path", ["documents/../x.md", "documents/", "x.md", "blobs/x.md", "/documents/x.md", "documents/a//b.md", "documents/. /x"]
)
def test_a_document_is_made_below_documents_alone(cell: Cell, path: str) -> None:
    assert cell.http("POST", "/documents", {"path": path, "content": "x"})[0] == 422


def test_a_name_is_taken_in_any_case(cell: Cell) -> None:
    made = {"path": "documents/30-reply.md", "content": "# Reply\n\nThe marten is in the attic."}
    assert cell.http("POST", "/documents", made) == (201, {"path": "documents/30-reply.md", "version": 1})
    assert cell.http("POST", "/documents", made | {"path": "documents/30-REPLY.md"})[0] == 409
    _, found = cell.http("GET", "/search?query=marten", user="p.reuter")
    assert [hit["path"] for hit in found["hits"]] == ["documents/30-reply.md"]


@pytest.mark.parametrize("query", ["method=best", "top_k=0", "top_k=x"])
def test_a_search_that_is_none_is_refused(cell: Cell, query: str) -> None:
    assert cell.http("GET", f"/search?query=a&{query}")[0] == 422


def test_words_of_any_kind_can_be_looked_for(cell: Cell) -> None:
    for query in ("", "%27%20%7C%20%21", "%5C%27%3A%2A", "%00", "%F0%9F%98%80", "%FF"):
        assert cell.http("GET", f"/search?query={query}")[0] == 200, query
