"""What an agent changes in its application, from the app's own dump to verdicts, `cell diff` and a new judgement."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.project import CHECK_YES, EVALS, Project

pytestmark = pytest.mark.slow

MANIFEST = {"restore": ["bin/restore"], "dump": ["bin/dump"]}
RESTORE = "#!/bin/sh\nmkdir -p /srv/app && cp -r /world/. /srv/app && chmod -R u+w /srv/app\n"
DUMP = """#!/bin/sh
mkdir -p /out/state/documents /out/state/database
cp /srv/app/documents/note.md /out/state/documents
ln -s /world/documents/lease.txt /out/state/documents/lease.txt
cp /srv/app/database/tasks.jsonl /out/state/database
ln -s /world/permissions.yaml /out/state/permissions
[ ! -e /srv/app/broken ]
"""
CRITERIA = [
    {
        "id": "note",
        "text": "Corrects the note and nothing else",
        "points": 1,
        "check": {
            "world_diff": {"documents": {"changed": "note.md", "inserted": "90 days", "only": True}, "permissions": "unchanged"}
        },
    },
    {
        "id": "task",
        "text": "Marks the task as done",
        "points": 1,
        "check": {
            "world_diff": {"rows": {"table": "tasks", "changed": {"status": "done"}, "where": {"id": "t-1"}, "only": True}}
        },
    },
    CHECK_YES,
]
WORKS = """
echo 'Notice: 90 days' >/srv/app/documents/note.md
echo '{"id": "t-1", "status": "done"}' >/srv/app/database/tasks.jsonl
answer yes
"""
FORGES = (
    "mkdir -p /out/state/documents; echo 'Notice: 90 days' >/out/state/documents/note.md; touch /srv/app/broken; answer yes\n"
)


def made(project: Project, agent: str) -> None:
    project.write(
        "worlds/w/world.yaml",
        {"id": "w", "title": "w", "documents": "documents/", "database": "db/", "permissions": "permissions.yaml"},
    )
    project.write("worlds/w/documents/note.md", "Notice: 60 days\n")
    project.write("worlds/w/db/tasks.jsonl", '{"id": "t-1", "status": "open"}\n')
    project.write("worlds/w/permissions.yaml", '{"default": ["ann"], "rules": []}')
    project.manifest(**MANIFEST)
    project.commit({"bin/restore": RESTORE, "bin/dump": DUMP})
    project.agent(agent)
    project.case(criteria=CRITERIA)


@pytest.mark.long
def test_what_an_agent_changed_is_judged_shown_and_judged_again(project: Project) -> None:
    made(project, WORKS)
    project.experiment("changes")
    project.run("changes")
    (cell,) = project.cells("changes")
    shown = project.evals("cell", "show", cell["cell"])
    assert {row["id"]: (row["verdict"], row["reason"]) for row in shown["criteria"] if row["verdict"] != 1} == {}
    assert (shown["world_diff"]["n_documents"], shown["world_diff"]["n_rows"], shown["world_diff"]["n_problems"]) == (1, 1, 0)
    diff = project.evals("cell", "diff", cell["cell"])
    assert [entry["path"] for entry in diff["documents"]["entries"]] == ["documents/note.md"]
    assert diff["rows"]["entries"][0]["after"] == {"id": "t-1", "status": "done"}
    people = subprocess.run([*EVALS, "cell", "diff", cell["cell"]], env=project.env, capture_output=True, text=True, check=True)
    assert {"-Notice: 60 days", "+Notice: 90 days", '     status: "open" -> "done"'} <= set(people.stdout.splitlines())
    stricter = {"id": "quiet", "text": "Changes nothing", "points": -1, "check": {"world_diff": "unchanged"}}
    project.case(criteria=[*CRITERIA, stricter])
    project.run("changes")
    (again,) = project.cells("changes")
    assert again["cell"] == cell["cell"]
    verdicts = {row["id"]: row["verdict"] for row in project.evals("cell", "show", cell["cell"])["criteria"]}
    assert verdicts == {"note": 1, "task": 1, "says-yes": 1, "quiet": 0}


@pytest.mark.long
def test_a_dump_that_fails_gives_no_verdict_and_what_the_agent_forged_none_either(project: Project) -> None:
    made(project, FORGES)
    project.experiment("forged")
    project.run("forged")
    (cell,) = project.cells("forged")
    shown = project.evals("cell", "show", cell["cell"])
    assert {row["id"]: (row["verdict"], row["status"]) for row in shown["criteria"]} == {
        "note": (None, "failed"),
        "task": (None, "failed"),
        "says-yes": (1, "ok"),
    }
    assert shown["world_diff"] is None
    envelope = project.evals("cell", "diff", cell["cell"], check=False)
    assert (envelope["exit_code"], envelope["error"]["code"]) == (2, "not_found")
    assert "dump" in json.dumps(envelope["error"]["hint"])
