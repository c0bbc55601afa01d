"""One cell tried from the command line, its rubric changed, and what it left read page by page."""

from __future__ import annotations

import pytest
from support.project import Project

pytestmark = pytest.mark.slow

AGENT = """
for n in 1 2 3 4 5; do
  printf '{"type": "message", "n": %s}\\n{"type": "note", "n": %s}\\n' $n $n >> "$EVALS_OUTPUT/transcript.jsonl"
done
echo 'no json' >> "$EVALS_OUTPUT/transcript.jsonl"
answer "$(tr -cd 'a-z0-9:,' < $EVALS_CASE)"
"""


@pytest.mark.long
def test_a_case_is_tried_judged_anew_and_tried_again(project: Project) -> None:
    project.agent(AGENT)
    project.case("c", criteria=[{"id": "way", "text": "Goes the way", "points": 1, "check": {"contains": "way:left"}}])
    project.experiment("mine", arms=[{"name": "a", "ref": "main", "config": {"way": "right", "n": 1}}])

    dry = project.evals("case", "try", "w.c", "--arm", "mine:a", "--dry-run")
    assert (dry["runs"], dry["max_cost_usd"]) == (True, None)
    first = project.evals("case", "try", "w.c", "--arm", "mine:a")
    assert (first["outcome"], first["score"], first["cell"]) == ("ok", 0.0, dry["cell"])
    assert "n:1" in first["answer"]

    project.case("c", criteria=[{"id": "way", "text": "Goes the way", "points": 1, "check": {"contains": "way:right"}}])
    judged = project.evals("case", "try", "w.c", "--arm", "mine:a")
    assert (judged["score"], len(judged["attempts"])) == (1.0, 1), "the agent did not run again"
    assert project.evals("case", "try", "w.c", "--arm", "mine:a", "--dry-run")["runs"] is False

    other = project.evals("case", "try", "w.c", "--arm", "mine:a", "--config", "way=left")
    assert (other["score"], other["cell"] != first["cell"], "n:1" in other["answer"]) == (0.0, True, True)
    again = project.evals("case", "try", "w.c", "--arm", "mine:a", "--again")
    assert [attempt["discarded"] for attempt in again["attempts"]] == ["tried again", None]

    arm = project.write("arm.yaml", {"config": {"way": "right", "n": 1}})
    same = project.evals("case", "try", "w.c", "--arm", str(arm))
    assert (same["score"], "n:1" in same["answer"]) == (1.0, True)
    pages(project, first["cell"])


def pages(project: Project, cell: str) -> None:
    seen, cursor = [], []
    for _ in range(4):
        envelope = project.evals("cell", "transcript", cell, "--limit", "4", *cursor, check=False)
        seen += envelope["data"]["events"]
        if envelope["next"] is None:
            break
        cursor = ["--cursor", envelope["next"]]
    assert [row["id"] for row in seen] == list(range(11))
    assert [row["event"]["n"] for row in seen[:10]] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] and seen[10]["text"] == "no json"
    notes = project.evals("cell", "transcript", cell, "--type", "note", "--limit", "2", check=False)
    assert ([row["id"] for row in notes["data"]["events"]], notes["next"]) == ([1, 3], "3")


@pytest.mark.long
def test_cells_come_in_pages_that_never_change(project: Project) -> None:
    project.agent("answer yes")
    for n in range(3):
        project.case(f"c{n}")
    project.experiment("paged", arms=[{"name": name, "ref": "main", "config": {"arm": name}} for name in "ab"])
    project.run("paged")
    every = [row["cell"] for row in project.cells("paged")]
    seen, cursor = [], []
    while True:
        envelope = project.evals("experiment", "cells", "paged", "--limit", "4", *cursor, check=False)
        seen.append([row["cell"] for row in envelope["data"]])
        if envelope["next"] is None:
            break
        cursor = ["--cursor", envelope["next"]]
    assert [len(page) for page in seen] == [4, 2] and [key for page in seen for key in page] == every
    of_b = project.evals("experiment", "cells", "paged", "--arm", "b", "--cursor", every[0], "--limit", "2", check=False)
    assert [row["arm"] for row in of_b["data"]] == ["b", "b"] and of_b["next"] == of_b["data"][-1]["cell"]
    of_case = project.evals("experiment", "cells", "paged", "--case", "w.c1", "--state", "done", check=False)
    assert [row["case"] for row in of_case["data"]] == ["w.c1", "w.c1"] and of_case["next"] is None
    lost = project.evals("experiment", "cells", "paged", "--cursor", "gone", check=False)
    assert (lost["exit_code"], lost["error"]["code"]) == (2, "not_found") and "evals experiment cells" in lost["error"]["hint"]
