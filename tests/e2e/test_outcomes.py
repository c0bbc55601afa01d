"""What an agent does against what the ledger says of it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.places import short_dir
from support.project import Project

pytestmark = pytest.mark.slow


WAYS: dict[str, tuple[str, str, float, str | None]] = {
    "right": ("answer yes", "ok", 1.0, None),
    "wrong": ("answer no", "ok", 0.0, None),
    "answers-then-fails": ("answer yes; exit 3", "ok", 1.0, "ended with code 3"),
    "writes-nothing": ("exit 0", "agent_error", 0.0, "wrote no result.json"),
    "fails": ("exit 7", "agent_error", 0.0, "ended with code 7"),
    "kills-itself": ("kill -9 $$", "agent_error", 0.0, "137"),
    "broken-json": ("echo '{broken' > $EVALS_OUTPUT/result.json", "agent_error", 0.0, "not JSON"),
    "binary": ("head -c 5000 /dev/urandom > $EVALS_OUTPUT/result.json", "agent_error", 0.0, "result.json"),
    "no-object": ("echo '[1]' > $EVALS_OUTPUT/result.json", "agent_error", 0.0, "must hold an object"),
    "link": ("ln -s /etc/passwd $EVALS_OUTPUT/result.json", "agent_error", 0.0, "wrote no result.json"),
    "fifo": ("mkfifo $EVALS_OUTPUT/result.json", "agent_error", 0.0, "wrote no result.json"),
    "directory": ("mkdir $EVALS_OUTPUT/result.json", "agent_error", 0.0, "wrote no result.json"),
    "refuses": ("""echo '{"status":"refusal","answer":null}' > $EVALS_OUTPUT/result.json""", "refusal", 0.0, None),
    "says-error": ("""echo '{"status":"error","error":"no key"}' > $EVALS_OUTPUT/result.json""", "agent_error", 0.0, "no key"),
    "odd-transcript": ("printf 'a\\377\\000b' > $EVALS_OUTPUT/transcript.jsonl; answer yes", "ok", 1.0, None),
    "closes-stdout": ("exec >&- 2>&-; answer yes", "ok", 1.0, None),
    "leaves-a-daemon": ("setsid sleep 300 & answer yes", "ok", 1.0, None),
}


@pytest.fixture(scope="module")
def ways(shared_state: Path) -> Generator[dict[str, Any]]:
    """One experiment, one case a way: the agent does what its prompt names. Case -> its cell, and the sandboxes left."""
    with short_dir() as root:
        project = Project(root, shared_state)
        project.commit({f"ways/{name}": way[0] + "\n" for name, way in WAYS.items()})
        project.agent("""way=$(sed -n 's/.*"prompt": "Answer \\(.*\\)\\.",.*/\\1/p' "$EVALS_CASE"); . "/app/ways/$way" """)
        for name in WAYS:
            project.case(name)
        project.experiment("ways")
        project.run("ways")
        cells: dict[str, Any] = {cell["case"].removeprefix("w."): cell for cell in project.cells("ways")}
        yield {**cells, "left": project.evals("sandbox", "list")}


@pytest.mark.parametrize("way", WAYS)
def test_one_attempt_says_what_happened(ways: dict[str, Any], way: str) -> None:
    cell = ways[way]
    _, outcome, score, says = WAYS[way]
    assert (cell["outcome"], cell["score"], len(cell["attempts"])) == (outcome, score, 1)
    assert (says in cell["attempts"][0]["error"]) if says else cell["attempts"][0]["error"] is None


def test_no_way_leaves_a_sandbox(ways: dict[str, Any]) -> None:
    assert ways["left"] == []


@pytest.mark.long
def test_an_agent_that_runs_for_ever_is_stopped(project: Project) -> None:
    project.agent("trap '' TERM; echo started > $EVALS_OUTPUT/files.txt; while :; do sleep 1; done")
    project.case(limits={"wall_s": 1.0})
    project.experiment("forever")
    data = project.run("forever")
    (cell,) = project.cells(data["experiment"])
    assert (cell["outcome"], cell["score"], cell["latency_s"]) == ("agent_timeout", 0.0, 1.0)
    assert project.evals("sandbox", "list") == []


@pytest.mark.parametrize(("limits", "reason"), [({"cost_usd": 0.001}, "cost"), ({"turns": 3}, "turns")])
def test_usage_is_tailed_and_stops_the_agent(project: Project, limits: dict[str, float], reason: str) -> None:
    project.write("prices.yaml", [price("m", "10")])
    usage = '{"type":"usage","model":"m","input_uncached":50,"output":0}'
    project.agent(f"while :; do echo '{usage}' >> $EVALS_OUTPUT/transcript.jsonl; sleep 0.1; done")
    project.case(limits={"wall_s": 60.0, **limits})
    project.experiment(f"usage-{reason}")
    data = project.run(f"usage-{reason}")
    (cell,) = project.cells(data["experiment"])
    assert cell["outcome"] == "budget_exceeded"
    assert reason in cell["attempts"][0]["error"]
    assert cell["cost_usd"] > 0


@pytest.mark.long
def test_an_unknown_price_is_null_not_zero(project: Project) -> None:
    usage = '{"type":"usage","model":"nobody-knows","input_uncached":50,"output":5}'
    project.agent(f"echo '{usage}' > $EVALS_OUTPUT/transcript.jsonl; answer yes")
    project.case()
    project.experiment("unpriced")
    data = project.run("unpriced")
    (cell,) = project.cells(data["experiment"])
    assert (cell["outcome"], cell["score"], cell["cost_usd"]) == ("ok", 1.0, None)
    (arm,) = project.evals("leaderboard", data["experiment"])["arms"]
    assert (arm["cost_usd_mean"], arm["n_unpriced"]) == (None, 1)


@pytest.mark.long
def test_the_agent_is_never_told_the_rubric(project: Project) -> None:
    project.agent(
        'answer "yes $(cat $EVALS_CASE | tr -d \'"\\n\') $(find / -name "*.yaml" -not -path "/usr/*" 2>/dev/null | tr "\\n" " ")"'
    )
    project.case(
        reference="the-secret-reference",
        criteria=[{"id": "q", "text": "secret-criterion", "points": 1, "check": {"contains": "yes"}}],
    )
    project.experiment("blind")
    data = project.run("blind")
    answer = project.evals("cell", "show", f"{data['experiment']}/w.c/a/0")["answer"]
    assert "Answer c." in answer and "secret" not in answer and "cases" not in answer


@pytest.mark.long
def test_a_judge_that_is_missing_leaves_null_and_counts(project: Project) -> None:
    project.agent("answer yes")
    judged = {"id": "j", "text": "Is it kind?", "points": 1, "judge": True}
    project.case(criteria=[{"id": "y", "text": "Says yes", "points": 1, "check": {"contains": "yes"}}, judged])
    project.experiment("unjudged")
    data = project.run("unjudged")
    (cell,) = project.cells(data["experiment"])
    assert (cell["state"], cell["score"], cell["n_not_judged"]) == ("done", None, 1)
    board = project.evals("leaderboard", data["experiment"])
    assert (board["status"], board["arms"][0]["score"], board["arms"][0]["n_not_judged"]) == ("provisional", None, 1)
    assert (board["arms"][0]["bound_low"], board["arms"][0]["bound_high"]) == (0.0, 1.0)


def price(model: str, per_million: str) -> dict[str, str]:
    names = ("input_uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output")
    row = {"provider": "p", "model": model, "effective_from": "2020-01-01", "source": "invented for the test"}
    return {**row, **dict.fromkeys(names, per_million)}
