"""The desk's processes: their start, their end, their schema, and the state that they write out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from desk_runs import Cell, Endpoint, Machine

pytestmark = pytest.mark.slow


def rows(text: str) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in map(json.loads, filter(str.strip, text.split("\n")))}


def described(world: Path) -> dict[str, Any]:
    """A world by its own files: bytes, but rows of tables and the meaning of permissions."""
    return {
        path.relative_to(world).as_posix(): read(path.relative_to(world).as_posix(), path.read_bytes())
        for path in world.rglob("*")
        if path.is_file()
    }


def read(name: str, data: bytes) -> Any:
    if name.startswith("database/"):
        return rows(data.decode())
    return json.loads(data) if name.startswith("permissions") else data


def resolved(dumped: dict[str, Any], world: Path) -> dict[str, Any]:
    """What a dump describes, its links followed into the world that was restored."""
    found: dict[str, Any] = {}
    for name, value in dumped.items():
        if isinstance(value, str):
            assert value.startswith("/world/"), value
            value = (world / value.removeprefix("/world/")).read_bytes()
        if value is not None:
            found[name] = read(name, value)
    return found


def of_kind(dumped: dict[str, Any], kind: type) -> set[str]:
    return {name for name, value in dumped.items() if isinstance(value, kind)}


def written(dumped: dict[str, bytes | str], name: str) -> str:
    content = dumped[name]
    assert isinstance(content, bytes), f"{name} is a link to {content}"
    return content.decode()


# The dump


@pytest.mark.parametrize("name", ["harbour", "lock_delay"])
def test_a_dump_right_after_restore_is_the_world(machine: Machine, request: pytest.FixtureRequest, name: str) -> None:
    world: Path = request.getfixturevalue(name)
    with machine.desk(world) as cell:
        linked = cell.dump()
        for table in ("users", "matters", "playbook_rules", "past_chats", "tabular_reviews"):
            cell.execute(f"UPDATE {table} SET id = id")
        written = cell.dump()
    assert resolved(linked, world) == resolved(written, world) == described(world)
    assert of_kind(linked, bytes) == set()
    assert of_kind(written, bytes) == {f"database/{path.name}" for path in (world / "database").iterdir()}


def test_rows_of_any_shape_come_back_as_they_were(machine: Machine, made_world: Callable[..., Path]) -> None:
    world = made_world({"a.md": b"# A"})
    tables = {
        "users": [{"id": "b", "name": None, "role": 3}, {"id": "a", "name": "Zoë", "tags": ["x", {"y": 1.50}], "nul": "a\0b"}],
        "past_chats": [{"id": "c", "user": "a\0", "at": "", "extra": {"k": "v"}}],
        "time_entries": [{"id": "2", "hours": 1.25}, {"id": "1", "hours": 10**30}],
        "matters": [],
    }
    (world / "database").mkdir()
    (world / "documents" / "empty").mkdir()
    for name, found in tables.items():
        (world / "database" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    with machine.desk(world) as cell:
        assert cell.dump()["documents/empty"] is None
        for table in ("users", "past_chats", "records"):
            cell.execute(f"UPDATE {table} SET id = id")
        dumped = cell.dump()
    assert resolved(dumped, world) == described(world)
    assert of_kind(dumped, bytes) == {"database/users.jsonl", "database/past_chats.jsonl", "database/time_entries.jsonl"}
    ids = [json.loads(line)["id"] for line in written(dumped, "database/users.jsonl").splitlines()]
    assert ids == ["a", "b"]


def test_a_dump_holds_what_changed_and_links_to_the_rest(machine: Machine, harbour: Path) -> None:
    memo = "documents/12-disclosure-letter.docx"
    with machine.desk(harbour, endpoint=Endpoint()) as cell:
        before = cell.dump()
        assert cell.http("POST", f"/edits/{memo}", {"action": "append", "find": "", "text": "A last word."})[0] == 201
        assert cell.http("POST", "/documents", {"path": "documents/new/note.md", "content": "A note."})[0] == 201
        run = cell.agent("Which prepayment fee is due on a prepayment of the facility?")
        after = cell.dump()
    assert of_kind(before, bytes) == set()
    assert of_kind(after, bytes) == {memo, "documents/new/note.md", "database/past_chats.jsonl"}
    assert after["documents/new/note.md"] == b"A note."
    old, new = described(harbour)["database/past_chats.jsonl"], rows(written(after, "database/past_chats.jsonl"))
    (added,) = [row for identity, row in new.items() if identity not in old]
    assert {identity: new[identity] for identity in old} == old
    assert (added["user"], added["answer"]) == ("m.lindqvist", run.result["answer"])


# The supervisor


def pid_of(cell: Cell, words: str) -> int:
    return min(pid for pid, line in cell.processes().items() if words in line)


@pytest.mark.parametrize(
    ("service", "words", "signal", "how", "code"),
    [
        ("postgres", "bin/postgres -D", "KILL", "signal 9 (SIGKILL)", 137),
        ("documents", "bin/documents", "KILL", "signal 9 (SIGKILL)", 137),
        ("postgres", "bin/postgres -D", "INT", "exit code 0", 1),
        ("documents", "bin/documents", "TERM", "exit code 0", 1),
    ],
)
def test_the_end_of_a_service_ends_all_and_is_named(
    machine: Machine, harbour: Path, service: str, words: str, signal: str, how: str, code: int
) -> None:
    with machine.sandbox(machine.prepared(harbour), world=harbour) as cell:
        up = cell.up()
        pid = pid_of(cell, words)
        assert cell.run("sh", "-c", f"kill -{signal} {pid}").exit_code == 0
        done = cell.wait(up)
        assert cell.processes() == {}
    assert done.exit_code == code
    assert f"{service} (pid {pid}) ended with {how}" in done.err


def test_a_backend_that_is_killed_ends_all(machine: Machine, harbour: Path) -> None:
    with machine.sandbox(machine.prepared(harbour), world=harbour) as cell:
        up = cell.up()
        assert cell.http("GET", "/documents")[0] == 200
        cell.run("sh", "-c", f"kill -KILL {pid_of(cell, 'postgres: desk matter')}")
        done = cell.wait(up)
    assert done.exit_code == 1 and "postgres (pid" in done.err


def test_a_dead_supervisor_leaves_no_service(machine: Machine, harbour: Path) -> None:
    with machine.sandbox(machine.prepared(harbour), world=harbour) as cell:
        up = cell.up()
        cell.run("sh", "-c", f"kill -KILL {pid_of(cell, 'bin/up')}")
        assert cell.wait(up).exit_code == 137
        left = cell.run(
            "sh",
            "-c",
            "for _ in $(seq 100); do pgrep -f 'bin/(postgres|documents)' >/dev/null || exit 0; sleep 0.1; done; exit 1",
        )
        assert left.exit_code == 0
        cell.up()


def test_down_stops_all_and_what_was_written_is_there_again(machine: Machine, harbour: Path) -> None:
    with machine.sandbox(machine.prepared(harbour), world=harbour) as cell:
        up = cell.up()
        assert cell.run("bin/up").exit_code == 1  # it is up already
        cell.http("POST", "/documents", {"path": "documents/40-a.md", "content": "Kept."})
        assert cell.run("bin/down").exit_code == 0
        done = cell.wait(up)
        assert (done.exit_code, cell.processes()) == (0, {})
        assert "interrupted" not in done.err and "shut down" in done.err
        assert cell.run("bin/down").exit_code == 0  # nothing is up
        again = cell.up()
        assert cell.http("GET", "/documents/documents/40-a.md")[1]["text"] == "Kept."
        cell.run("bin/down")
        assert "was not properly shut down" not in cell.wait(again).err


def test_a_stop_by_signal_is_in_good_order(machine: Machine, harbour: Path) -> None:
    with machine.sandbox(machine.prepared(harbour), world=harbour) as cell:
        up = cell.up()
        cell.run("sh", "-c", f"kill -TERM {pid_of(cell, 'bin/up')}")
        assert cell.wait(up).exit_code == 0
        assert cell.processes() == {}


def test_no_service_holds_a_secret(machine: Machine, harbour: Path) -> None:
    with machine.sandbox(machine.prepared(harbour), world=harbour, secrets={"MODEL_API_KEY": "k-secret"}) as cell:
        cell.up(secrets=True)
        found = {pid: cell.run("cat", f"/proc/{pid}/environ").out for pid in cell.processes()}
    assert len(found) > 3
    assert sum("k-secret" in environ for environ in found.values()) == 1  # the supervisor alone


# Schema and byte code


def test_the_migrations_make_the_schema_one_after_another(machine: Machine, harbour: Path) -> None:
    source = """
import sys
from matter_desk import cluster, postgres
cluster.make_cluster()
with cluster.running():
    cluster.start_over()
    for revision in ("0001", "0002", "0003", "0004", "head"):
        cluster.migrate(revision)
        with postgres.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT version_num FROM alembic_version")
            at = cursor.fetchone()[0]
            cursor.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
            print(at, cursor.fetchone()[0])
            if revision == "0001":
                cursor.execute("INSERT INTO users VALUES ('a', 'A', NULL, NULL, '{}')")
        connection.close()
    with postgres.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT name FROM users")
        print(cursor.fetchone()[0])
    connection.close()
"""
    with machine.sandbox(machine.image, world=harbour) as cell:
        lines = cell.python(source).split("\n")
    assert [line.split()[0] for line in lines[:5]] == ["0001", "0002", "0003", "0004", "0004"]
    counts = [int(line.split()[1]) for line in lines[:5]]
    assert counts == sorted(counts) and counts[0] == 7 and counts[3] == counts[4]
    assert lines[5] == "A"  # rows of an older schema are kept


def test_a_reset_makes_the_delta_and_nothing_twice(machine: Machine) -> None:
    with machine.sandbox(machine.image) as cell:
        assert "compiled 0 modules" in cell.run("bin/reset").out
        cell.run("sh", "-c", "echo 'MARK = 1' >> matter_desk/text.py && echo 'MARK = 2' > matter_desk/added.py")
        assert "compiled 2 modules" in cell.run("bin/reset").out
        assert "compiled 0 modules" in cell.run("bin/reset").out
        assert cell.python("from matter_desk import added, text; print(text.MARK, added.MARK)").strip() == "1 2"


def test_a_table_that_is_none_fails_the_restore_with_its_line(machine: Machine, made_world: Callable[..., Path]) -> None:
    world = made_world({"a.md": b"# A"})
    (world / "database").mkdir()
    (world / "database" / "users.jsonl").write_text('{"id": "a"}\n{"name": "b"}\n')
    with machine.sandbox(machine.image, world=world) as cell:
        done = cell.run("bin/restore", "/world")
        assert done.exit_code == 1 and "users.jsonl:2" in done.err
        assert cell.processes() == {}
