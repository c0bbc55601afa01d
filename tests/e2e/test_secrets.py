"""A canary through a whole experiment: who sees it inside, and where it is left outside."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql
from support.places import short_dir
from support.project import Project

from eval_pipeline.settings import load_settings
from eval_pipeline.store.postgres import embedded_server
from eval_pipeline.vault.values import Values

pytestmark = pytest.mark.slow

CANARIES = {f"{phase}_KEY": f"canary-{phase.lower()}-{secrets.token_hex(8)}" for phase in ("AGENT", "BUILD", "SHELL")}

# The patterns are written so that the scripts that hold them do not match.
SEEN = """
seen() {
  found=$(env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n')
  memory=$(grep -laE "cana""ry-$1" /proc/[0-9]*/mem 2>/dev/null)
  files=$(grep -rlaE "cana""ry-$1" /run /tmp /etc /out /var /home /app /world 2>/dev/null)
  bell=$(timeout 0.2 cat /proc/1/fd/0 /proc/self/fd/* </dev/null 2>/dev/null | grep -acE "cana""ry-$1")
  echo "$1: env $(echo "$found" | grep -cE "cana""ry-$1") memory ${memory:-none} files ${files:-none} bell $bell"
}
"""
BUILD = (
    "#!/bin/sh\n"
    + SEEN
    + """
{ printf %s "${BUILD_KEY-unset}" | sha256sum | cut -c1-64; seen agent; seen shell; } > /app/build-saw
"""
)
AGENT = (
    SEEN
    + """
mkdir -p $EVALS_OUTPUT/files
{ cat /app/build-saw; seen build; seen undeclared; } > $EVALS_OUTPUT/files/saw
for key in AGENT_KEY SHELL_KEY BUILD_KEY; do
  eval "value=\\${$key-unset}"; echo "$key $(printf %s "$value" | sha256sum | cut -c1-64)"
done > $EVALS_OUTPUT/files/keys
answer yes
"""
)


class Ran:
    def __init__(self, project: Project) -> None:
        self.project = project
        self.settings = load_settings(project.env)
        self.experiment = project.run("watched")["experiment"]

    @property
    def key(self) -> str:
        return f"{self.experiment}/w.c/a/0"

    def output(self, name: str) -> str:
        """A file that the agent wrote."""
        with short_dir() as folder:
            self.project.evals("cell", "files", self.key, "--into", str(folder))
            return (folder / name).read_text()


@pytest.fixture(scope="module")
def ran(shared_state: Path) -> Generator[Ran]:
    with short_dir() as root:
        project = Project(root, shared_state, {"SHELL_KEY": CANARIES["SHELL_KEY"]})
        write(project, **{name: CANARIES[name] for name in ("AGENT_KEY", "BUILD_KEY")}, UNDECLARED_KEY="canary-undeclared")
        project.manifest(build=["bin/build"], secrets={"build": ["BUILD_KEY"], "agent": ["AGENT_KEY", "SHELL_KEY"]})
        project.commit({"bin/build": BUILD})
        project.agent(AGENT)
        project.case()
        project.experiment("watched", arms=[{"name": "a", "ref": "main", "config": {"model": "real"}}])
        yield Ran(project)
        (shared_state / "secrets.env").unlink()
        shutil.rmtree(Values(shared_state).folder)


def write(project: Project, **values: str) -> None:
    path = project.state_dir / "secrets.env"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def test_each_phase_sees_its_own_and_nothing_of_the_other(ran: Ran) -> None:
    keys = dict(line.split() for line in ran.output("keys").splitlines())
    wanted = {**CANARIES, "BUILD_KEY": "unset"}
    assert keys == {name: sha256(value.encode()).hexdigest() for name, value in wanted.items()}
    nothing = "env 0 memory none files none bell 0"
    built_with, *saw = ran.output("saw").splitlines()
    assert built_with == sha256(CANARIES["BUILD_KEY"].encode()).hexdigest()
    assert saw == [f"{what}: {nothing}" for what in ("agent", "shell", "build", "undeclared")]


def test_the_values_are_nowhere_but_in_private_files(ran: Ran) -> None:
    holding = {path for path in files(ran.settings.state_dir) if holds_a_value(path)}
    kept = Values(ran.settings.state_dir).folder
    private = {ran.settings.secrets_file, *kept.iterdir()}
    assert ran.settings.secrets_file in holding and holding <= private
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert sorted(path.name.partition(".")[0] for path in kept.iterdir()) == sorted(CANARIES)
    scratch = Path("/dev/shm") / kept.name.replace("evals-secrets-", "evals-")
    assert not [path for path in files(scratch) if holds_a_value(path)]


def test_the_ledger_and_dagsters_events_hold_no_value(ran: Ran) -> None:
    with embedded_server(ran.settings) as url:
        rows = dict(dump(url))
    assert sum(map(len, rows["event_logs"])) > 10_000 and "AGENT_KEY" in str(rows["secret_versions"])
    assert [table for table, lines in rows.items() if any("canary-" in line for line in lines)] == []


@pytest.mark.long
def test_the_evidence_names_the_versions_and_a_rotation_reaches_the_next_attempt(ran: Ran) -> None:
    project = ran.project
    before = {row["name"]: row["version"] for row in project.evals("secrets", "sync")["secrets"]}
    (given,) = evidence(ran)
    assert given == {name: before[name] for name in ("AGENT_KEY", "SHELL_KEY")}
    write(project, AGENT_KEY="canary-agent-rotated", BUILD_KEY=CANARIES["BUILD_KEY"])
    after = {row["name"]: row["version"] for row in project.evals("secrets", "sync")["secrets"]}
    assert {name for name in before if before[name] != after[name]} == {"AGENT_KEY"}
    project.evals("experiment", "rerun", ran.experiment, "--cell", ran.key, "--discard", "a new key", "--wait")
    assert evidence(ran) == [given, {**given, "AGENT_KEY": after["AGENT_KEY"]}]
    assert sha256(b"canary-agent-rotated").hexdigest() in ran.output("keys")


def evidence(ran: Ran) -> list[dict[str, str]]:
    with embedded_server(ran.settings) as url:
        return [json.loads(line)["secrets"] for line in dict(dump(url, "evidence from evals.attempts order by id"))["query"]]


def holds_a_value(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # the database's server is at work
        return False
    return any(value.encode() in data for value in CANARIES.values())


def files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        yield from (path for name in names if (path := Path(folder, name)).is_file() and not path.is_symlink())


def dump(url: str, query: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """Every row of every table of ours and of Dagster's as text, or of one query."""
    connection: Any = psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql", 1))
    with connection, connection.cursor() as cursor:
        tables: list[Any] = []
        if query is None:
            cursor.execute("select schemaname, tablename from pg_tables where schemaname in ('evals', 'public')")
            tables = [(table, sql.SQL("select t::text from {} t").format(sql.Identifier(s, table))) for s, table in cursor]
        else:
            tables = [("query", f"select {query.replace(' from', '::text from', 1)}")]
        for table, statement in tables:
            cursor.execute(statement)
            yield table, [row[0] for row in cursor]
    connection.close()


def test_a_missing_secret_is_said_before_anything_is_spent(project: Project) -> None:
    project.manifest(secrets={"agent": ["NOBODYS_KEY"]})
    project.agent("answer yes")
    project.case()
    project.experiment("keyless", arms=[{"name": "a", "ref": "main", "config": {"model": "real"}}])
    for verb in ("plan", "run"):
        said = project.evals("experiment", verb, "keyless", check=False)
        assert (said["exit_code"], said["error"]["code"]) == (2, "spec")
        assert f"NOBODYS_KEY could not be had; looked in: the file {project.state_dir}/secrets.env" in said["error"]["message"]
    (row,) = project.evals("secrets", "list")
    assert (row["name"], row["phases"], row["apps"], row["version"], row["held"]) == (
        "NOBODYS_KEY",
        ["agent"],
        ["tiny"],
        None,
        False,
    )
    synced = project.evals("secrets", "sync", check=False)
    assert (synced["exit_code"], synced["error"]["code"], synced["data"]["missing"]) == (2, "secrets_missing", ["NOBODYS_KEY"])
