"""What an agent tries in a cell of a whole experiment: to read what it is judged by, others' matters and keys, and to forge results."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from escape.escape_table import PLATFORM, Row, Verdict
from support.project import Project

# The words come reversed, so that nobody finds them in what it was given itself
AGENT = r"""#!/usr/bin/python3
import json, os, pathlib, socket
out = pathlib.Path(os.environ["EVALS_OUTPUT"])
case = json.loads(pathlib.Path(os.environ["EVALS_CASE"]).read_text())
words = json.loads(case["prompt"])

def search(wanted):
    said, seen = {}, 0
    def look(data, where):
        said.update({name: "OUT in " + where for name, word in wanted.items() if name not in said and word in data})
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/dev", "/usr")]
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    seen += 1
                    look(file.read(1 << 20), os.path.join(folder, name))
            except OSError:
                continue
    look(json.dumps([*os.environ.values(), case]).encode(), "what it was given")
    return {name: said.get(name, f"not in the {seen} files that can be read, nor in what it was given") for name in wanted}

def connects(path):
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
        return "OUT connected"
    except OSError as error:
        return os.strerror(error.errno)

if "answer" in words:
    result = {"status": "ok", "answer": words["answer"]}
else:
    tried = search({name: word[::-1].encode() for name, word in words["reversed"].items()})
    tried |= {name: connects(path) for name, path in words["sockets"].items()}
    (out / "files").mkdir()
    (out / "files" / "tried.json").write_text(json.dumps(tried))
    forged = {"cell": words["other"], "key": words["other"], "case": "w.victim", "attempt": 1, "outcome": "ok"}
    (out / "transcript.jsonl").write_text(json.dumps({"type": "result", **forged, "answer": "forged"}) + "\n")
    for name in ("state.json", "verdicts.json", "journal", "meta.json", "status"):
        (out / name).write_text(json.dumps({**forged, "score": 1, "passed": True, "answer": "forged"}))
    result = {"status": "ok", "answer": "forged", "score": 1, "verdicts": [{"criterion": "knows", "verdict": 1}], **forged}
(out / "result.json").write_text(json.dumps(result))
"""
READ = {
    "rubric": "the rubric, the reference and the checks of its own case",
    "victim": "another cell's task and answer",
    "build_key": "a secret of the build phase",
    "other_key": "a secret that the app does not declare",
}
SOCKETS = {"ledger": "the ledger's socket", "gateway": "the gateway's control socket"}


def rows(project: Project, backend: str, database_url: str) -> list[Row]:
    """database_url: of the embedded server that the experiment's ledger is in."""
    words = {name: f"{name}-{secrets.token_hex(12)}" for name in (*READ, "agent_key")}
    file = project.state_dir / "secrets.env"
    file.touch(mode=0o600)
    file.write_text(f"BUILD_KEY={words['build_key']}\nAGENT_KEY={words['agent_key']}\nOTHER_KEY={words['other_key']}\n")
    project.manifest(
        build=["bin/build"], egress=["api.example.com:443"], secrets={"build": ["BUILD_KEY"], "agent": ["AGENT_KEY"]}
    )
    project.commit({"bin/agent": AGENT, "bin/build": '#!/bin/sh\ntest -n "$BUILD_KEY"\n'})
    paths = _sockets(project.state_dir, database_url)
    reverse = {name: words[name][::-1] for name in (*READ, "agent_key")}
    knows = {"id": "knows", "text": f"Says {words['rubric']}", "points": 1, "check": {"contains": words["rubric"]}}
    prompts: dict[str, dict[str, Any]] = {
        "hostile": {"reversed": reverse, "sockets": paths, "other": "escape/w.victim/a/0"},
        "honest": {"answer": words["rubric"]},
        "victim": {"answer": words["victim"]},
    }
    for name, prompt in prompts.items():
        project.case(name, criteria=[knows], prompt=json.dumps(prompt), reference=words["rubric"])
    project.experiment("escape", backend=backend)
    shown = {
        cell["cell"]: project.evals("cell", "show", cell["cell"])
        for cell in project.cells(project.run("escape", timeout_s=300)["experiment"])
    }
    cells = {key.split("/")[1].partition(".")[2]: cell for key, cell in shown.items()}
    tried = _tried(project, next(key for key in shown if "hostile" in key))
    assert tried["agent_key"].startswith("OUT"), "what it was given is found"
    return [*_reads(project, backend, tried, words, paths), *_forgeries(backend, cells, words)]


def _sockets(state_dir: Path, url: str) -> dict[str, str]:
    folder = parse_qs(urlsplit(url).query)["host"][0]
    (ledger,) = [str(path) for path in Path(folder).glob(".s.PGSQL.*") if path.suffix != ".lock"]
    return {"ledger": ledger, "gateway": str(state_dir / "gateway" / "control")}


def _tried(project: Project, key: str) -> dict[str, str]:
    into = project.root / "tried"
    project.evals("cell", "files", key, "--into", str(into))
    return json.loads((into / "tried.json").read_text())


def _reads(
    project: Project, backend: str, tried: Mapping[str, str], words: Mapping[str, str], paths: Mapping[str, str]
) -> list[Row]:
    texts = [
        path.read_text(errors="replace")
        for path in (project.worlds, project.state_dir / "secrets.env")
        for path in ([path] if path.is_file() else path.rglob("*.yaml"))
    ]
    found: list[Row] = []
    for name, what in READ.items():
        assert any(words[name] in text for text in texts), f"{name} is on this machine"
        verdict = Verdict.OUT if tried[name].startswith("OUT") else Verdict.REFUSED
        found.append(
            Row(
                f"cell: {what}",
                backend,
                verdict,
                tried[name],
                "control: it finds its own key, and the machine's files hold this one",
            )
        )
    for name, what in SOCKETS.items():
        control = _connects(paths[name])
        verdict = (
            Verdict.OUT if tried[name].startswith("OUT") else Verdict.REFUSED if control == "connected" else Verdict.NOT_SHOWN
        )
        if backend != "local" and verdict is not Verdict.OUT:
            found.append(Row(f"cell: {what}", backend, Verdict.NOT_SHOWN, PLATFORM, f"on the loopback server: {tried[name]}"))
        else:
            found.append(Row(f"cell: {what}", backend, verdict, tried[name], f"control: {control}"))
    return found


def _connects(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError as error:
            return str(error)
        return "connected"


def _forgeries(backend: str, cells: Mapping[str, Mapping[str, Any]], words: Mapping[str, str]) -> list[Row]:
    scores = {name: cell["score"] for name, cell in cells.items()}
    answers = {name: cell["answer"] for name, cell in cells.items()}
    attempts = {name: len(cell["attempts"]) for name, cell in cells.items()}
    unchanged = answers["victim"] == words["victim"] and attempts == dict.fromkeys(cells, 1)
    believed = answers["hostile"] == "forged"
    return [
        Row("cell: another cell's result, named in its own", backend, Verdict.REFUSED if unchanged and believed else Verdict.OUT,
            f"the other's answer is its own; attempts {attempts}", "control: of itself its words are believed"),
        Row("cell: its own verdicts, score and state, written beside its answer", backend,
            Verdict.REFUSED if scores["hostile"] == 0 and scores["honest"] == 1 else Verdict.OUT,
            f"score {scores['hostile']}", f"control: the right answer scores {scores['honest']}"),
    ]  # fmt: skip
