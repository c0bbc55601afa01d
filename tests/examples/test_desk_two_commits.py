"""Two commits with a migration between them on one world, run by two engines at once: what each restored, dumped and let through."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from backports.zstd import tarfile
from desk_runs import Cell, Endpoint, Machine, calling, said, tool_results
from support import desk_repo
from support.desk_repo import DOCUMENTS, PERMISSIONS, QUESTION, SAYS_60, TABLES, USERS
from support.places import short_dir
from support.project import Project

from eval_pipeline.domain.world import SnapshotManifest
from eval_pipeline.host import reachable_root
from eval_pipeline.sandbox.local.backend import LocalBackend
from eval_pipeline.settings import Settings
from eval_pipeline.store.artifacts import LocalArtifacts
from eval_pipeline.store.layers import IMAGE, PREPARED, RUNTIME, LayerRow, LayerRows
from eval_pipeline.store.records import open_records
from eval_pipeline.store.snapshots import restore

pytestmark = pytest.mark.slow

ARMS = ["old", "new"]
ENGINES = ["commits-one", "commits-two"]
RESTORE = "restore: [bin/restore, /world]"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """cells: experiment -> arm -> what `cell show` says. restores: how many processes restored the world meanwhile.

    layers: of the two commits. manifest, world: of the snapshot as the pipeline packed and restored it.
    """

    project: Project
    commits: dict[str, str]
    cells: dict[str, dict[str, Any]]
    restores: int
    layers: list[LayerRow]
    manifest: SnapshotManifest
    world: Path

    def evidence(self, arm: str) -> dict[str, Any]:
        return self.cells[ENGINES[0]][arm]["attempts"][0]["evidence"]

    def prepared(self, arm: str) -> LayerRow:
        (found,) = [row for row in self.layers if row.kind == PREPARED and row.commit == self.commits[arm]]
        return found

    def stack(self, arm: str) -> list[LayerRow]:
        """Image, runtime where there is one, prepared."""
        top = self.prepared(arm)
        by_key = {row.key: row for row in self.layers}
        return [*(by_key[key] for key in top.parents), top]

    def state(self, digest: str) -> dict[str, bytes]:
        """The files of the dump in a stored bundle, links followed into the restored snapshot."""
        found: dict[str, bytes] = {}
        with (
            LocalArtifacts(self.project.state_dir / "artifacts").open(digest) as stored,
            tarfile.open(fileobj=stored, mode="r|*") as archive,
        ):
            for member in archive:
                name = member.name.removeprefix("out/state/")
                if name == member.name or member.isdir():
                    continue
                if member.issym():
                    found[name] = (self.world / member.linkname.removeprefix("/world/")).read_bytes()
                elif (content := archive.extractfile(member)) is not None:
                    found[name] = content.read()
        return found


@pytest.fixture(scope="module")
def ran(desk_state: Path) -> Generator[Ran]:
    with short_dir() as root:
        project = desk_repo.desk_project(root, desk_state)
        project.case(criteria=[SAYS_60], prompt=QUESTION)
        mark = f"restores-{root.name}"
        changed = RESTORE.replace("bin/restore, /world", f"/bin/sh, -c, 'bin/restore /world; exit $?', {mark}")
        old = desk_repo.edit(project, {"evals.app.yaml": [(RESTORE, changed)]})
        commits = {"old": old, "new": desk_repo.add_migration(project)}
        for name in ENGINES:
            desk_repo.desk_experiment(project, name, commits)
        with processes_with(mark) as restores:
            engines = [project.start("experiment", "run", name, "--wait") for name in ENGINES]
            ends = [engine.communicate(timeout=300) for engine in engines]
        assert [engine.returncode for engine in engines] == [0, 0], (ends, project.logs())
        cells = {
            name: {cell["arm"]: project.evals("cell", "show", cell["cell"]) for cell in project.cells(name)} for name in ENGINES
        }
        with open_records(Settings(state_dir=desk_state, worlds_dir=project.worlds)) as records:
            digest = records.ledger.experiment(ENGINES[0]).run.worlds["w"]
            snapshot = records.ledger.snapshots([digest])[digest]
            rows = LayerRows(records.database, "local", LocalBackend("look", desk_state).place).all()
        yield Ran(
            project=project,
            commits=commits,
            cells=cells,
            restores=len(restores),
            layers=[row for row in rows if row.commit in commits.values()],
            manifest=snapshot.manifest,
            world=restore(snapshot, LocalArtifacts(desk_state / "artifacts"), reachable_root(desk_state) / "worlds"),
        )


@contextmanager
def processes_with(mark: str) -> Generator[set[tuple[str, str]]]:
    """Those with this word on their command line, looked for all the time: (pid, start time)."""
    found: set[tuple[str, str]] = set()
    over = Event()

    def look() -> None:
        while not over.wait(0.02):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    words = (path / "cmdline").read_text().split("\0")
                    if words[:2] == ["/bin/sh", "-c"] and mark in words:
                        found.add((path.name, (path / "stat").read_text().rpartition(")")[2].split()[19]))
                except OSError:
                    continue

    thread = Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def expected(arm: str) -> dict[str, Any]:
    """The state that the world means to this arm's schema: documents as bytes, tables as rows by id, permissions as data."""
    tables = TABLES if arm == "old" else {**TABLES, "users": [desk_repo.split_name(user) for user in USERS]}
    rows = {f"database/{table}.jsonl": {row["id"]: row for row in found} for table, found in tables.items()}
    return {**DOCUMENTS, **rows, "permissions.yaml": PERMISSIONS}


def described(state: dict[str, bytes]) -> dict[str, Any]:
    return {name: meaning(name, data) for name, data in state.items()}


def meaning(name: str, data: bytes) -> Any:
    if name.startswith("database/"):
        return {row["id"]: row for row in map(json.loads, data.decode().splitlines())}
    return json.loads(data) if name == "permissions.yaml" else data


# What the pipeline did


@pytest.mark.long
def test_every_cell_is_ok_at_the_first_attempt(ran: Ran) -> None:
    found = {
        (name, arm): (cell["outcome"], len(cell["attempts"]), cell["score"])
        for name in ENGINES
        for arm, cell in ran.cells[name].items()
    }
    assert found == {(name, arm): ("ok", 1, 1.0) for name in ENGINES for arm in ARMS}


def test_two_engines_restore_each_commit_once(ran: Ran) -> None:
    assert ran.restores == 2
    kinds = Counter((row.kind, row.commit == ran.commits["new"]) for row in ran.layers)
    assert kinds == {(IMAGE, False): 1, (RUNTIME, True): 1, (PREPARED, False): 1, (PREPARED, True): 1}
    assert [[row.kind for row in ran.stack(arm)] for arm in ARMS] == [[IMAGE, PREPARED], [IMAGE, RUNTIME, PREPARED]]
    assert ran.stack("old")[0].key == ran.stack("new")[0].key
    stood_on = {arm: {ran.cells[name][arm]["attempts"][0]["evidence"]["layer"] for name in ENGINES} for arm in ARMS}
    assert stood_on == {arm: {ran.prepared(arm).key} for arm in ARMS}
    assert len({row.world for row in ran.layers if row.kind == PREPARED}) == 1


# What the dumps say


def test_the_snapshot_is_the_world_that_was_written(ran: Ran) -> None:
    digests = {entry.path: entry.sha256 for entry in ran.manifest.entries if entry.type == "file"}
    source = ran.project.worlds / "worlds" / "w"
    assert digests == {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in expected("old")}
    assert {path: digests[path] for path in DOCUMENTS} == {p: hashlib.sha256(data).hexdigest() for p, data in DOCUMENTS.items()}


@pytest.mark.parametrize("arm", ARMS)
def test_the_state_before_any_agent_is_the_world(ran: Ran, arm: str) -> None:
    assert ran.evidence(arm)["state_before"] == ran.prepared(arm).state
    state = ran.state(ran.evidence(arm)["state_before"])
    assert described(state) == expected(arm)
    digests = {entry.path: entry.sha256 for entry in ran.manifest.entries}
    changed = {name for name, data in state.items() if hashlib.sha256(data).hexdigest() != digests[name]}
    assert changed == (set() if arm == "old" else {"database/users.jsonl"})


@pytest.mark.parametrize("arm", ARMS)
def test_the_dump_after_the_agent_is_the_world_and_its_chat(ran: Ran, arm: str) -> None:
    (attempt,) = ran.cells[ENGINES[0]][arm]["attempts"]
    after = described(ran.state(attempt["bundle"]))
    chats = after.pop("database/past_chats.jsonl")
    before = expected(arm)
    old_chats = before.pop("database/past_chats.jsonl")
    assert after == before
    (added,) = [row for key, row in chats.items() if key not in old_chats]
    assert {key: row for key, row in chats.items() if key in old_chats} == old_chats
    assert (added["user"], added["matter"], added["question"]) == ("b.clerk", "m-1", QUESTION)
    assert "60 days" in added["answer"]
    diff = ran.evidence(arm)["world_diff"]
    assert (diff["n_rows"], diff["n_documents"], diff["n_blobs"], diff["n_problems"]) == (1, 0, 0, 0)


# What stands on the prepared layers


@dataclass(frozen=True)
class Look:
    arm: str
    cell: Cell
    endpoint: Endpoint


@pytest.fixture(scope="module", params=ARMS)
def look(request: pytest.FixtureRequest, ran: Ran) -> Generator[Look]:
    """The services up on the arm's own layers, as a cell has them."""
    endpoint, machine = Endpoint(), Machine(ran.project.state_dir)
    base = LocalBackend("look", ran.project.state_dir)
    lock = (desk_repo.APP / "requirements.lock").read_bytes()
    layers = (machine.do(base.base_layer(requirements=lock)), *(row.ref for row in ran.stack(request.param)))
    try:
        with machine.sandbox(layers, world=ran.world, endpoint=endpoint) as cell:
            cell.up()
            yield Look(request.param, cell, endpoint)
    finally:
        machine.close()


def test_the_schema_differs(look: Look) -> None:
    columns = look.cell.sql(
        "SELECT attname, attnotnull FROM pg_attribute WHERE attrelid = 'users'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    names = [["name", False]] if look.arm == "old" else [["given_name", True], ["family_name", True]]
    assert sorted(columns) == sorted([["id", True], *names, ["role", False], ["email", False], ["extra", True]])
    assert look.cell.sql("SELECT version_num FROM alembic_version") == [["0004" if look.arm == "old" else "0005"]]
    (trigger,) = look.cell.sql("SELECT tgname FROM pg_trigger WHERE tgrelid = 'users'::regclass AND NOT tgisinternal")
    assert trigger == ["mark_changed"]


def test_every_table_has_the_rows_of_its_file(look: Look) -> None:
    counts = {table: look.cell.sql(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES if table != "time_entries"}
    counts["time_entries"] = look.cell.sql("SELECT count(*) FROM records WHERE kind = 'time_entries'")[0][0]
    assert counts == {table: len(rows) for table, rows in TABLES.items()}
    found = look.cell.http("GET", "/records/users")[1]["records"]
    assert {row["id"]: row for row in found} == expected(look.arm)["database/users.jsonl"]


def test_the_blobs_are_the_snapshots_files(look: Look, ran: Ran) -> None:
    digests = {entry.path: entry.sha256 for entry in ran.manifest.entries}
    assert dict(look.cell.sql("SELECT path, blob FROM documents")) == {path: digests[path] for path in DOCUMENTS}
    sums = look.cell.run("sh", "-c", "cd /srv/matter_desk/blobs && sha256sum */*").out.split("\n")
    stored = {line.split("/")[1]: line.split()[0] for line in sums if line}
    assert stored == {digest: digest for digest in (digests[path] for path in DOCUMENTS)}


@pytest.mark.parametrize("user", [user["id"] for user in USERS])
def test_a_user_sees_what_the_permissions_say_over_http(look: Look, user: str) -> None:
    readable = desk_repo.readable(user)
    assert 0 < len(readable) < len(DOCUMENTS)
    status, listed = look.cell.http("GET", "/documents", user=user)
    assert (status, {row["path"] for row in listed["documents"]}) == (200, set(readable))
    got = {path: look.cell.http("GET", f"/content/{path}", user=user) for path in DOCUMENTS}
    assert {path: status for path, (status, _) in got.items()} == {path: 200 if path in readable else 404 for path in DOCUMENTS}
    bodies = {path: hashlib.sha256(bytes.fromhex(body)).hexdigest() for path, (status, body) in got.items() if status == 200}
    assert bodies == readable


@pytest.mark.parametrize("user", [user["id"] for user in USERS])
def test_a_user_sees_the_same_through_the_shell(look: Look, user: str) -> None:
    cell, endpoint = look.cell, look.endpoint
    own = cell.token(None)
    give = ["sh", "-c", 'printf %s "$1" > /srv/matter_desk/run/session', "-"]
    assert cell.run(*give, cell.token(user)).exit_code == 0
    endpoint.script += [calling("run_shell", command="find documents blobs -type f -exec sha256sum {} +"), said("done")]
    run = cell.agent("?")
    cell.run(*give, own)
    (answer,) = tool_results(run)
    seen = {path: digest for digest, path in (line.split() for line in answer["output"].splitlines() if "find:" not in line)}
    assert seen == desk_repo.readable(user)


# A world that was saved by the newer commit


@pytest.mark.long
def test_an_arm_that_can_not_restore_the_world_is_refused_and_the_other_runs(ran: Ran) -> None:
    project, name = ran.project, "saved"
    project.evals("world", "open", "w", "--app-ref", ran.commits["new"], "--detach")
    saved = project.evals("world", "save", "w", "--into", name)
    project.evals("world", "close", "w")
    assert saved["made_with"] == {"app": "matter-desk", "commit": ran.commits["new"], "schema_version": 2}
    files = {path: (project.worlds / "worlds" / name / path).read_bytes() for path in expected("new")}
    assert described(files) == expected("new")

    desk_repo.desk_experiment(project, "commits-both", ran.commits, cases=[f"{name}.*"])
    refused = project.evals("experiment", "plan", "commits-both", check=False)
    assert (refused["exit_code"], refused["error"]["code"]) == (2, "spec")
    assert (
        f"arm 'old' ({ran.commits['old']}, {ran.commits['old'][:12]}) can't restore the world 'saved'"
        in refused["error"]["message"]
    )
    assert "schema version 2, and evals.app.yaml there restores schema version 1" in refused["error"]["message"]
    assert project.run("commits-both", check=False)["exit_code"] == 2

    desk_repo.desk_experiment(project, "commits-new", {"new": ran.commits["new"]}, cases=[f"{name}.*"])
    project.run("commits-new")
    (cell,) = project.cells("commits-new")
    assert (cell["outcome"], cell["score"]) == ("ok", 1.0)
    evidence = project.evals("cell", "show", cell["cell"])["attempts"][0]["evidence"]
    assert evidence["world_diff"]["n_rows"] == 1


# What else may stand at an arm's `ref`

ID = 'saved = {"id": f"{table[0]}-{secrets.token_hex(6)}"}'


@pytest.mark.long
def test_a_build_that_fails_costs_its_arm_alone_and_a_working_tree_runs_as_it_is(ran: Ran) -> None:
    project = ran.project
    reset = project.app / "desk" / "bin" / "reset"
    kept = reset.read_text()
    broken = project.commit({"desk/bin/reset": "#!/bin/sh\necho compiling\necho 'there is no module of clauses' >&2\nexit 3\n"})
    reset.write_text(kept)
    filing = project.app / "desk" / "matter_desk" / "filing.py"
    assert filing.read_text().count(ID) == 1
    filing.write_text(filing.read_text().replace(ID, 'from matter_desk.mark import MARK\n    saved = {"id": MARK}'))
    (project.app / "desk" / "matter_desk" / "mark.py").write_text('MARK = "made-by-the-working-tree"\n')

    refs = {"old": ran.commits["old"], "broken": broken, "tree": "WORKTREE"}
    desk_repo.desk_experiment(project, "commits-rest", refs, cases=["w.*"])
    assert project.run("commits-rest", check=False)["exit_code"] == 1
    cells = {cell["arm"]: project.evals("cell", "show", cell["cell"]) for cell in project.cells("commits-rest")}
    assert {arm: (cell["outcome"], cell["score"]) for arm, cell in cells.items()} == {
        "old": ("ok", 1.0),
        "broken": ("infra_failure", None),
        "tree": ("ok", 1.0),
    }
    (attempt,) = cells["broken"]["attempts"]
    assert "reset" in attempt["error"] and attempt["error"].endswith("there is no module of clauses")
    (attempt,) = cells["tree"]["attempts"]
    assert "made-by-the-working-tree" in described(ran.state(attempt["bundle"]))["database/past_chats.jsonl"]
