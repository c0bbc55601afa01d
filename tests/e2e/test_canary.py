"""Canaries echoed by an agent on each backend in every way it can think of, and a walk over all that an experiment leaves: no file, row or event has one."""

from __future__ import annotations

import base64
import io
import json
import secrets
import shutil
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import psycopg2
import pytest
from backports.zstd import tarfile
from psycopg2 import sql
from support.loopback_judge import LoopbackJudge, loopback_judge
from support.places import short_dir
from support.project import Project

from eval_pipeline.settings import load_settings
from eval_pipeline.store.postgres import embedded_server
from eval_pipeline.vault.values import Values

pytestmark = pytest.mark.slow

CANARIES = {
    "PLAIN_KEY": f"canary-{secrets.token_hex(12)}",
    "ODD_KEY": f'canary"{secrets.token_hex(6)}/<&+ %\\{secrets.token_hex(6)}',
}
AGENT = """#!/usr/bin/env python3
import base64, json, os, pathlib, sys, urllib.parse, urllib.request, zipfile

case = json.load(open(os.environ["EVALS_CASE"]))["prompt"]
out = pathlib.Path(os.environ["EVALS_OUTPUT"])
values = [os.environ["PLAIN_KEY"], os.environ["ODD_KEY"]]
ways = {
    "raw": str, "url": lambda v: urllib.parse.quote(v, safe=""), "form": urllib.parse.quote_plus,
    "json": json.dumps, "json2": lambda v: json.dumps(json.dumps(v)), "hex": lambda v: v.encode().hex(),
    **{f"b64.{n}": (lambda n: lambda v: base64.b64encode(b"-" * n + v.encode() + b"tail").decode())(n) for n in range(3)},
    "b64url": lambda v: base64.urlsafe_b64encode(v.encode() * 3).decode(),
    "lines": lambda v: base64.encodebytes((v * 4).encode()).decode(),
}
said = {name: [way(v) for v in values] for name, way in ways.items()}
everything = "\\n".join(text for texts in said.values() for text in texts)
print(everything)
print(everything, file=sys.stderr, flush=True)
files = out / "files"
files.mkdir(parents=True)
with open(out / "transcript.jsonl", "w") as transcript:
    for text in [*(text for texts in said.values() for text in texts), everything, "x" * (1 << 20) + values[0]]:
        transcript.write(json.dumps({"type": "message", "text": text}) + "\\n")
    transcript.write(json.dumps({"type": "usage", "model": values[0], "input_uncached": 1}) + "\\n")
    transcript.write(values[0] + " is no JSON")
if "whole" in case:
    for name, texts in said.items():
        (files / f"{name}.txt").write_text("\\n".join(texts))
    def archive(name, **entries):
        with zipfile.ZipFile(files / name, "w", zipfile.ZIP_DEFLATED) as made:
            for entry, text in entries.items():
                made.writestr(entry.replace("__", "/") + ".xml", text)
    v = values[0]
    archive("run.docx", word__document=f"<w:p><w:t>{v}</w:t></w:p>")
    archive("cut.docx", word__document=f"<w:p><w:r><w:t>{v[:9]}</w:t></w:r><w:r><w:t>{v[9:]}</w:t></w:r></w:p>")
    archive("sheet.xlsx", xl__sharedStrings=f"<si><t>{urllib.parse.quote(values[1])}</t></si>")
    with zipfile.ZipFile(files / "nested.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.write(files / "run.docx", "inner.docx")
    (files / f"{v}.txt").write_text("a name")
    (files / v).mkdir()
    (files / v / "below").write_text("a folder's name")
    (files / "clean.txt").write_text("nothing to see")
    os.symlink("/etc/passwd", files / f"link-{v}")
    os.mkfifo(files / f"fifo-{v}")
for host in (values[0], f"{values[0]}.example.com"):
    try:
        urllib.request.urlopen(f"http://{host}/{values[0]}", timeout=5)
    except Exception as error:
        print("as it should be:", error)
if "dies" in case:
    raise SystemExit(f"died over {values[0]} and {values[1]}")
done = {"status": "ok", "answer": f"yes, {everything}"} if "whole" in case else {"status": "error", "error": everything}
(out / "result.json").write_text(json.dumps(done))
"""


def spellings(value: str) -> set[bytes]:
    found = {value, quote(value, safe=""), quote(value), quote_plus(value), json.dumps(value)[1:-1], value.encode().hex()}
    found |= {json.dumps(json.dumps(value)[1:-1])[1:-1]}
    for shift, skip in ((0, 0), (1, 4), (2, 4)):
        code = base64.b64encode(bytes(shift) + value.encode())[skip:-4].decode()
        found |= {code, code.replace("+", "-").replace("/", "_")}
    return {one.encode() for one in found}


NEEDLES = {needle for value in CANARIES.values() for needle in spellings(value)}


def holds(data: bytes) -> bool:
    return any(needle in data for needle in NEEDLES)


class Ran:
    def __init__(self, project: Project, judge: LoopbackJudge, backend: str) -> None:
        self.project = project
        self.judge = judge
        self.backend = backend
        self.settings = load_settings(project.env)
        self.run = project.run("canary", check=False)
        self.cells = {row["case"].rpartition(".")[2]: row["cell"] for row in project.cells("canary")}

    def show(self, case: str) -> Any:
        return self.project.evals("cell", "show", self.cells[case])

    @property
    def private(self) -> list[Path]:
        return [self.settings.secrets_file, Values(self.settings.state_dir).folder, self.settings.state_dir / "quarantine"]


@pytest.fixture(scope="module", params=["local", pytest.param("modal", marks=pytest.mark.long)])
def ran(request: pytest.FixtureRequest, shared_state: Path) -> Generator[Ran]:
    backend = str(request.param)
    environ = {"EVALS_JUDGE_API_KEY": CANARIES["PLAIN_KEY"], "NO_PROXY": "127.0.0.1"}
    if backend == "modal":
        request.getfixturevalue("modal_server")
        environ |= {"EVALS_MODAL_APP": "canary", "EVALS_MODAL_CREATES_PER_S": "50"}
    with short_dir() as root, loopback_judge() as judge:
        project = Project(root, shared_state, environ)
        path = shared_state / "secrets.env"
        path.touch(mode=0o600)
        odd = CANARIES["ODD_KEY"].replace("\\", "\\\\")
        path.write_text(f"PLAIN_KEY={CANARIES['PLAIN_KEY']}\nODD_KEY='{odd}'\n")
        project.manifest(secrets={"agent": sorted(CANARIES)}, egress=["allowed.example.com:443"])
        project.commit({"bin/agent": AGENT})
        judged = {"id": "agreed", "text": "Says that canary agreed", "points": 1, "judge": True}
        yes = {"id": "yes", "text": "yes", "points": 1, "check": {"contains": "yes"}}
        for name in ("whole", "fails", "dies"):
            project.case(name, criteria=[yes, judged])
        project.experiment(
            "canary",
            backend=backend,
            arms=[{"name": "a", "ref": "main", "config": {"model": "real"}}],
            judge={"model": "openai:judge-1", "base_url": judge.url},
        )
        yield Ran(project, judge, backend)
        shutil.rmtree(Values(shared_state).folder)


@pytest.mark.long
def test_it_ran_and_says_what_was_found(ran: Ran) -> None:
    assert {case: ran.show(case)["outcome"] for case in ran.cells} == {
        "whole": "ok",
        "fails": "agent_error",
        "dies": "agent_error",
    }
    for case in ran.cells:
        assert set(ran.show(case)["secrets_found"]["replaced"]) == set(CANARIES)
    whole = ran.show("whole")
    assert whole["answer"].startswith("yes, [secret PLAIN_KEY]\n[secret ODD_KEY]\n")
    assert "[secret PLAIN_KEY]" in ran.show("fails")["error"]
    logs = ran.project.evals("cell", "logs", ran.cells["dies"])["logs"]
    assert any("died over [secret PLAIN_KEY] and [secret ODD_KEY]" in text for text in logs.values())
    (criterion,) = [row for row in whole["criteria"] if row["id"] == "yes"]
    assert criterion["verdict"] == 1.0
    status = ran.project.evals("experiment", "status", "canary")
    assert (status["n_with_secrets"], status["n_quarantined"]) == (3, len(whole["secrets_found"]["quarantined"]))


@pytest.mark.long
def test_deliverables_that_hold_one_are_in_quarantine_and_only_there(ran: Ran, tmp_path: Path) -> None:
    found = ran.show("whole")["secrets_found"]["quarantined"]
    spelt = {
        f"{name}.txt" for name in ("raw", "url", "form", "json", "json2", "hex", "b64.0", "b64.1", "b64.2", "b64url", "lines")
    }
    assert {one["file"].removeprefix("files/") for one in found} == spelt | {"run.docx", "cut.docx", "sheet.xlsx", "nested.zip"}
    left = {row["file"] for row in ran.project.evals("cell", "files", ran.cells["whole"])["files"]}
    assert left == {"clean.txt", "[secret PLAIN_KEY].txt", "[secret PLAIN_KEY]/below"}
    listed = ran.project.evals("cell", "quarantine", ran.cells["whole"], "--into", str(tmp_path / "q"))["files"]
    assert [row["number"] for row in listed] == list(range(1, len(found) + 1))
    (raw,) = [row for row in listed if row["file"] == "files/raw.txt"]
    assert (tmp_path / "q" / f"{raw['number']}.txt").read_text() == "\n".join(CANARIES.values())


@pytest.mark.long
def test_no_file_holds_one_but_the_vaults_and_the_quarantine(ran: Ran) -> None:
    state = ran.settings.state_dir
    seen, holding = 0, list[str]()
    for path in sorted(state.rglob("*")):
        if path.is_file() and not path.is_symlink() and not any(path.is_relative_to(one) for one in ran.private):
            seen += 1
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # the database's server is at work
                continue
            holding += [f"{path.relative_to(state)}: {part}" for part, content in unpacked(data) if holds(content)]
    assert seen > 100 and holding == []
    names = [path for path in state.rglob("*") if holds(str(path).encode()) and not path.is_relative_to(state / "quarantine")]
    assert names == []
    assert any(holds(path.read_bytes()) for path in (state / "quarantine").rglob("*") if path.is_file()), "the walk would find it"


def unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "", data
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        # its stub is the one of Python 3.13
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:zst") as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
            for member in archive:
                yield member.name, member.name.encode() + member.linkname.encode()
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    inner = content.read()
                    yield member.name, inner
                    if zipfile.is_zipfile(io.BytesIO(inner)):
                        with zipfile.ZipFile(io.BytesIO(inner)) as packed:
                            yield from ((f"{member.name}/{name}", packed.read(name)) for name in packed.namelist())


@pytest.mark.long
def test_no_row_and_no_event_holds_one(ran: Ran) -> None:
    with embedded_server(ran.settings) as url:
        connection: Any = psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql", 1))
        with connection, connection.cursor() as cursor:
            cursor.execute("select schemaname, tablename from pg_tables where schemaname in ('evals', 'public')")
            tables = list(cursor)
            rows: dict[str, list[bytes]] = {}
            for schema, table in tables:
                cursor.execute(sql.SQL("select t::text from {} t").format(sql.Identifier(schema, table)))
                rows[table] = [row[0].encode() for row in cursor]
        connection.close()
    ours = [row for row in rows["attempts"] if any(key.encode() in row for key in ran.cells.values())]
    assert len(ours) == 3 and len(rows["event_logs"]) > 20 and len(rows["verdicts"]) > 1
    assert any(b"[secret PLAIN_KEY]" in row for row in ours)
    assert [table for table, lines in rows.items() if any(map(holds, lines))] == []
    backslashes = [table for table, lines in rows.items() if any(holds(line.replace(b"\\\\", b"\\")) for line in lines)]
    assert backslashes == []


@pytest.mark.long
def test_no_judge_is_told_and_what_people_read_says_nothing(ran: Ran, tmp_path: Path) -> None:
    assert ran.judge.requests and not [one for one in ran.judge.requests if holds(json.dumps(one, ensure_ascii=False).encode())]
    assert not [one for one in ran.judge.requests if holds(json.dumps(one).encode())]
    assert any("[secret PLAIN_KEY]" in json.dumps(one) for one in ran.judge.requests)
    said = [ran.run, *(ran.show(case) for case in ran.cells), ran.project.evals("leaderboard", "canary")]
    said += [ran.project.evals("cell", "logs", key, *more) for key in ran.cells.values() for more in ([], ["--transcript"])]
    said += [ran.project.evals("experiment", verb, "canary") for verb in ("status", "cells")]
    ran.project.evals("export", "canary", "--format", "csv", "--output", str(tmp_path / "table.csv"))
    ran.project.evals("report", "canary", "--output", str(tmp_path / "report"))
    pages = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(pages) > 4 and not [path for path in pages if holds(path.read_bytes()) or holds(str(path).encode())]
    assert not [one for one in said if holds(json.dumps(one, ensure_ascii=False).encode()) or holds(json.dumps(one).encode())]
