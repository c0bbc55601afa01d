"""Agents that attack their host, their runner, their neighbours or whoever reads what they left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from backports.zstd import tarfile
from support.project import Project

pytestmark = pytest.mark.long

DISPATCH = """
cd "$EVALS_OUTPUT"
attack=$(grep -o 'Answer [a-z0-9-]*' "$EVALS_CASE" | cut -d' ' -f2)
case $attack in
"""

# name: (script, outcome, what its error says)
SMALL: dict[str, tuple[str, str, str | None]] = {
    "calm": ("answer yes", "ok", None),
    "kills-parent": ("kill -9 $PPID; kill -9 1; kill -TERM 1; kill -9 -1; answer yes", "ok", None),
    "kills-all": ("answer yes; kill -9 -1; sleep 1; exit 0", "ok", None),
    "full-disk": ("head -c 500000000 /dev/zero >big; answer yes", "agent_error", "disk full: limit 64 MiB"),
    "full-tmp": ("head -c 500000000 /dev/zero >/tmp/big && answer yes; exit 5", "agent_error", "disk full: limit 64 MiB"),
    "no-memory": ("/usr/bin/python3 -c 'x = bytearray(900 << 20)' && answer yes", "agent_error", "out of memory: limit 128 MiB"),
    "ignores-term": ("trap '' TERM INT HUP; while :; do sleep 1; done", "agent_timeout", "time limit"),
    "forks": ("f() { f | f & sleep 100; }; f", "agent_error", "out of "),
    "closes-all": ("exec 0<&- 1>&- 2>&-; answer yes", "ok", None),
    "daemons": (
        "for i in 1 2 3 4; do setsid sh -c 'while :; do echo x >>grow; mv a b; mv b a; date >a; ln -sf /etc/passwd l; rm -rf d; mkdir d; done' & done; "
        "sleep 0.3; answer yes",
        "ok",
        None,
    ),
    "link": ("ln -s /etc/passwd result.json", "agent_error", "wrote no result.json"),
    "fifo": ("mkfifo result.json transcript.jsonl", "agent_error", "wrote no result.json"),
    "directory": ("mkdir -p result.json/x", "agent_error", "wrote no result.json"),
    "sparse": ("truncate -s 10G result.json; truncate -s 60M result.json", "agent_error", "result.json is 62914560 bytes"),
    "deep": (
        "answer yes; mkdir files; cd files; i=0; while [ $i -lt 1000 ]; do mkdir d && cd d; i=$((i+1)); done; echo x >bottom",
        "ok",
        None,
    ),
    "layer-links": (
        "mkdir files; ln /app/bin/agent files/a; ln /usr/bin/env files/e; echo '#!/bin/sh' >>files/a; answer yes",
        "ok",
        None,
    ),
    "tiny-files": (
        "mkdir files; cd files; /usr/bin/python3 -c 'for i in range(100000): open(str(i), \"w\").close()' && answer yes",
        "agent_error",
        "disk full: limit 64 MiB",
    ),
}


def dispatched(attacks: dict[str, str]) -> str:
    return DISPATCH + "".join(f"{name}) {script} ;;\n" for name, script in attacks.items()) + "esac\n"


def outcomes(project: Project, name: str) -> dict[str, dict[str, Any]]:
    return {cell["cell"].split("/")[1].partition(".")[2]: cell for cell in project.cells(name)}


def test_each_attack_ends_as_the_agents_own(project: Project) -> None:
    project.agent(dispatched({name: script for name, (script, _, _) in SMALL.items()}))
    project.manifest(resources={"cpu": 1.0, "memory_mib": 128, "disk_mib": 64})
    project.commit({})
    for name, (_, outcome, _) in SMALL.items():
        project.case(name, limits={"wall_s": 6.0 if outcome == "agent_timeout" else 100.0})
    project.experiment("hostile")
    data = project.run("hostile", timeout_s=300)
    found = outcomes(project, data["experiment"])
    assert {name: cell["outcome"] for name, cell in found.items()} == {n: outcome for n, (_, outcome, _) in SMALL.items()}
    assert {name: len(cell["attempts"]) for name, cell in found.items()} == dict.fromkeys(SMALL, 1)
    for name, (_, outcome, says) in SMALL.items():
        error = found[name]["attempts"][0]["error"]
        assert says in (error or "") if says else outcome == "ok", (name, error)
    assert project.evals("sandbox", "list") == []


NAMES = r"""#!/usr/bin/python3
import json, os, pathlib
out = pathlib.Path(os.environ["EVALS_OUTPUT"])
(out / "files").mkdir()
names = ["new\nline", "tab\t", "\x1b[31mred", "n" * 255, "\u202egnp.exe", "\U0001f4a9.txt", "CASE", "case", "caf\u00e9", "cafe\u0301", " ", "-rf", "a\\b"]
for name in names:
    (out / "files" / name).write_text("yes")
(out / os.fsdecode(b"files/not-\xff\xfe")).write_text("yes")
(out / "transcript.jsonl").write_bytes(
    b'{"type":"usage","model":"a\\u0000b\\ud800","input_uncached":1}\n{"type":"usage","model":"m","input_uncached":' + b"9" * 4000 + b'}\n'
    b'{"type":"usage","model":"m","input_uncached":-1}\n{"type":"usage","model":["m"]}\n{"type":"usage"\n\xff\x00\n"usage"\n' + b'["usage",' * 100000 + b"\n"
)
case = json.loads(pathlib.Path(os.environ["EVALS_CASE"]).read_text())["prompt"].split()[1].strip(".")
status = {"fine": "ok", "failed": "error", "absurd": "\ud800\0" * 9000}[case]
answer = "yes \ud800 \x00 \udfff \x1b]0;title\x07"
pathlib.Path(out / "result.json").write_text(json.dumps({"status": status, "answer": answer, "error": "no \ud800\x00 " + "x" * 100000}))
"""


def test_names_and_texts_that_are_none(project: Project, tmp_path: Path) -> None:
    project.commit({"bin/agent": NAMES})
    wanted = {"fine": "ok", "failed": "agent_error", "absurd": "agent_error"}
    for name in wanted:
        project.case(name)
    project.experiment("names")
    data = project.run("names")
    found = outcomes(project, data["experiment"])
    assert {name: (cell["outcome"], len(cell["attempts"])) for name, cell in found.items()} == {
        n: (o, 1) for n, o in wanted.items()
    }
    assert all(len(cell["attempts"][0]["error"] or "") < 9000 for cell in found.values())
    shown = {name: project.evals("cell", "show", cell["cell"]) for name, cell in found.items()}
    assert (shown["fine"]["answer"], shown["fine"]["score"]) == ("yes \ud800 \x00 \udfff \x1b]0;title\x07", 1.0)
    digest = shown["fine"]["attempts"][0]["bundle"]
    (bundle,) = [path for path in (project.state_dir / "artifacts").rglob(f"*{digest[4:]}*") if path.is_file()]
    with tarfile.open(bundle, encoding="utf-8") as tar:
        names = [os.fsencode(name) for name in tar.getnames() if name.startswith("out/files/")]
    texts = ["new\nline", "CASE", "case", "caf\u00e9", "cafe\u0301", "n" * 255, "\u202egnp.exe", "\U0001f4a9.txt"]
    assert {b"out/files/" + name.encode() for name in texts} | {b"out/files/not-\xff\xfe"} <= set(names)
    assert len(names) == 14
    key = found["fine"]["cell"]
    for verb in (
        ["show", found["failed"]["cell"]],
        ["show", key],
        ["logs", key, "--transcript"],
        ["files", key, "--into", str(tmp_path / "got")],
    ):
        command = [sys.executable, "-m", "eval_pipeline.cli", "cell", *verb]
        done = subprocess.run(command, env=project.env, cwd=project.root, capture_output=True, check=False)
        assert done.returncode == 0, (verb, done.stderr.decode())
        assert (b"isolation of attempt 1: " in done.stdout) == (verb[0] == "show")
        assert b"\x1b" not in done.stdout and b"\0" not in done.stdout, verb
    assert len(list((tmp_path / "got").iterdir())) == 14


GREAT = {
    "calm": "sleep 1; answer yes",
    "stdout": "head -c 1000000000 /dev/zero; answer yes",
    "transcript": """yes '{"type":"message","text":"no usage here, only words without an end to them"}' | head -c 1000000000 >transcript.jsonl; answer yes""",
    "one-line": "head -c 1000000000 /dev/zero | tr '\\0' x >transcript.jsonl; answer yes",
    "usages": """yes '{"type":"usage","model":"m","input_uncached":1}' | head -n 200000 >transcript.jsonl; answer yes""",
    "many": """/usr/bin/python3 -c 'import os; os.mkdir("files"); [open(f"files/{i}", "w").write("x") for i in range(100000)]'; answer yes""",
}


def test_a_thousand_megabytes_fill_no_engine(project: Project) -> None:
    """The case limits turns, so the transcript is also read while it grows."""
    project.agent(dispatched(GREAT))
    project.manifest(resources={"cpu": 1.0, "memory_mib": 512, "disk_mib": 1024})
    project.commit({})
    for name in GREAT:
        project.case(name, limits={"wall_s": 300.0, "turns": 10**6})
    project.experiment("great")
    name = project.evals("experiment", "run", "great")["experiment"]
    (engine,) = project.wait_for(lambda: project.engine_pids(name))
    peak_kib, calm_s, began = 0, None, time.monotonic()
    while (now_kib := peak_memory_kib(engine)) is not None:
        peak_kib = max(peak_kib, now_kib)
        if calm_s is None and outcomes(project, name)["calm"]["outcome"] == "ok":
            calm_s = time.monotonic() - began
        time.sleep(0.2)
    ended_s = time.monotonic() - began
    found = outcomes(project, name)
    assert {case: (cell["outcome"], len(cell["attempts"])) for case, cell in found.items()} == dict.fromkeys(GREAT, ("ok", 1))
    evidence = {n: project.evals("cell", "show", cell["cell"])["attempts"][0]["evidence"] for n, cell in found.items()}
    assert {case: evidence[case]["calls"] for case in GREAT} == {case: 200_000 if case == "usages" else 0 for case in GREAT}
    assert (evidence["many"]["n_files"], evidence["one-line"]["bad_lines"]) == (100_003, 1)
    assert evidence["stdout"]["size_bytes"] > 1_000_000_000
    assert evidence["calm"]["isolation"]["level"] in ("full", "degraded")
    assert peak_kib < 400 * 1024
    assert calm_s is not None and calm_s < ended_s, "a neighbour is not held up to the end"
    assert project.evals("sandbox", "list") == []


def peak_memory_kib(pid: int) -> int | None:
    """None once the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
