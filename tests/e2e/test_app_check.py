"""`evals app check`: a good app passes every step; each broken promise stops at its own step, with the words that tell why."""

from __future__ import annotations

from typing import Any

import pytest
from support.desk import AGENT, DUMP, RESTORE, desk
from support.project import Project

pytestmark = [pytest.mark.slow]

STEPS = [
    "image",
    "reset",
    "restore",
    "dump after restore",
    "services up and ready",
    "agent",
    "dump",
    "output",
    "ready after a service's end",
]


def check(project: Project, *args: str) -> Any:
    envelope = project.evals("app", "check", *args, check=False)
    assert [row for row in project.evals("sandbox", "list") if row["purpose"] == "check"] == [], "its sandboxes are ended"
    return envelope


def test_a_good_app(project: Project) -> None:
    desk(project)
    envelope = check(project, "--case", "w.c")
    assert envelope["exit_code"] == 0, envelope
    steps = {step["name"]: step for step in envelope["data"]["steps"]}
    assert list(steps) == STEPS
    assert all(step["ok"] for step in steps.values())
    assert steps["output"]["said"].startswith("status ok, 1 model calls")
    assert "/app/data/notes.jsonl" in steps["agent"]["said"]
    assert "ok  restore" in envelope["stderr"]


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "restore": ({"files": {"bin/restore": "#!/bin/sh\necho no such table >&2\nexit 4\n"}}, "restore", "no such table"),
    "process": ({"files": {"bin/restore": RESTORE + "sleep 60 &\n"}}, "restore", "processes were left running: sleep"),
    "dump": ({"files": {"bin/dump": DUMP + "echo '{\"id\": 9}' >> \"$1/state/database/notes.jsonl\"\n"}}, "dump after restore", "added: row 9"),
    "result": ({"agent": "exit 0\n"}, "output", "wrote no result.json"),
    "usage": ({"agent": AGENT + "echo '{\"type\": \"usage\"}' >> /out/transcript.jsonl\n"}, "output", "1 lines can't be read"),
    "agent": ({"agent": "echo no key >&2\nexit 5\n"}, "agent", "no key"),
    "ready": ({"files": {"bin/ready": "#!/bin/sh\nsleep 1\nexit 0\n"}, "agent": "answer yes\n"}, "ready after a service's end", "would go unnoticed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_stops_at_its_step(project: Project, name: str) -> None:
    app, step, said = BROKEN[name]
    desk(project, **app)
    envelope = check(project)
    assert (envelope["exit_code"], envelope["ok"]) == (1, False)
    last = envelope["data"]["steps"][-1]
    assert (last["name"], last["ok"]) == (step, False), envelope["data"]["steps"]
    assert said in last["said"]
