"""An app of several processes: its services before, meanwhile and after, and who is to blame when one ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.places import short_dir
from support.project import Project

from eval_pipeline.domain.cell import MAX_ATTEMPTS

pytestmark = pytest.mark.slow

WAY = """way=$(sed -n 's/.*"prompt": "Answer \\(.*\\)\\.",.*/\\1/p' "$EVALS_CASE")\n"""

UP = (
    "#!/bin/sh\n"
    + WAY
    + """
working() { until [ -f /tmp/working ]; do sleep 0.1; done; }
case $way in never-up) echo "port taken" >&2; exit 9 ;; left-alone) (setsid sh -c 'until [ -f /tmp/working ]; do sleep 0.1; done; rm /tmp/serves' &) ; touch /tmp/serves; exit 0 ;; esac
touch /tmp/serves
( case $way in crashes|lingers|says-so) working; exit 3 ;; segfaults|hangs-after) working; exec sh -c 'kill -SEGV $$' ;; esac; exec sleep 1000 ) &
wait $!; code=$?
rm -f /tmp/serves; echo "the store ended with $code" >&2
case $way in lingers|says-so) sleep 6 ;; esac
exit $code
"""
)

AGENT = (
    WAY
    + """
touch /tmp/working
case $way in
  crashes|segfaults|left-alone|lingers) while [ -f /tmp/serves ]; do sleep 0.1; done; exit 1 ;;
  says-so)
    while [ -f /tmp/serves ]; do sleep 0.1; done
    printf '{"status": "error", "error": "nobody answers me"}' > "$EVALS_OUTPUT/result.json"; exit 0 ;;
  hangs-after) sleep 1000 ;;
  survives) answer yes ;;
  forges) mkdir -p "$EVALS_OUTPUT/state/documents"; echo forged > "$EVALS_OUTPUT/state/documents/lease.txt"; answer yes ;;
  changes) echo more >> /srv/documents/lease.txt; answer yes ;;
  dump-fails) touch /srv/broken; answer yes ;;
esac
[ -f /tmp/serves ] && answer yes
"""
)

RESTORE = "#!/bin/sh\nmkdir -p /srv && cp -r /world/documents /srv/documents && chmod -R u+w /srv\n"
DUMP = '#!/bin/sh\n[ ! -f /srv/broken ] || { echo "no state" >&2; exit 4; }\n[ -f /tmp/serves ] && cp -r /srv/documents "$1/documents"\n'
READY = "#!/bin/sh\n[ -f /tmp/serves ] || { echo nobody answers >&2; exit 1; }\n"
PARTS = {"bin/up": UP, "bin/ready": READY, "bin/restore": RESTORE, "bin/dump": DUMP}
SERVICES = {"up": ["bin/up"], "ready": ["bin/ready"], "ready_timeout_s": 20.0}

WAYS: dict[str, tuple[str, str | None, str | None]] = {
    "survives": ("ok", None, None),
    "changes": ("ok", None, None),
    "forges": ("ok", None, None),
    "dump-fails": ("ok", None, None),
    "crashes": ("agent_error", "service", "the store ended with 3"),
    "segfaults": ("agent_error", "service", "the store ended with 139"),
    "hangs-after": ("agent_error", "service", "the store ended with 139"),
    "lingers": ("agent_error", "service", "the store ended with 3"),  # `up` ends long after its services have gone
    "says-so": ("agent_error", "service", "the store ended with 3"),
    "left-alone": ("agent_error", "service", "nobody answers"),
    "never-up": ("infra_failure", None, "port taken"),
}


def deploy(project: Project) -> None:
    project.manifest(restore=["bin/restore"], services=SERVICES, dump=["bin/dump", "/out/state"])
    project.commit(PARTS)
    project.agent(AGENT)


@pytest.fixture(scope="module")
def ways(shared_state: Path) -> Generator[dict[str, Any]]:
    """Case -> what `cell show` says of it."""
    with short_dir() as root:
        project = Project(root, shared_state)
        deploy(project)
        for name in WAYS:
            project.case(name)
        project.experiment("services")
        project.run("services", check=False, timeout_s=200)
        yield {cell["case"].removeprefix("w."): project.evals("cell", "show", cell["cell"]) for cell in project.cells("services")}


@pytest.mark.long
@pytest.mark.parametrize("name", WAYS)
def test_who_is_to_blame(ways: dict[str, Any], name: str) -> None:
    outcome, error_class, said = WAYS[name]
    last = ways[name]["attempts"][-1]
    assert (last["outcome"], last["error_class"]) == (outcome, error_class), last
    assert said is None or said in last["error"]
    assert len(ways[name]["attempts"]) == (MAX_ATTEMPTS if outcome == "infra_failure" else 1)


def test_the_difference_to_the_world_is_what_the_app_dumped(ways: dict[str, Any]) -> None:
    evidence = {name: cell["attempts"][-1]["evidence"] for name, cell in ways.items()}
    found = {name: evidence[name]["world_diff"]["n_documents"] for name in ("changes", "survives", "forges")}
    assert found == {"changes": 1, "survives": 0, "forges": 0}
    assert "no state" in evidence["dump-fails"]["dump_error"]
    assert evidence["dump-fails"].get("world_diff") is None


def test_the_time_to_the_agent_is_recorded(ways: dict[str, Any]) -> None:
    setup = ways["survives"]["attempts"][-1]["evidence"]["setup"]
    assert setup["services_s"] > 0 and setup["total_s"] >= setup["services_s"]


@pytest.mark.long
def test_a_service_killed_from_outside_costs_an_attempt_and_nothing_else(project: Project) -> None:
    deploy(project)
    project.agent("sleep 6.125; [ -f /tmp/serves ] && answer yes")
    project.commit({"bin/up": "#!/bin/sh\ntouch /tmp/serves\nsleep 123456 &\nwait $!; code=$?; rm /tmp/serves; exit $code\n"})
    project.case("c")
    project.experiment("killed")
    project.evals("experiment", "run", "killed")
    project.wait_for(lambda: _processes("sleep", "6.125"))
    (pid,) = _processes("sleep", "123456")
    os.kill(pid, signal.SIGKILL)
    cell = project.wait_for(lambda: next((c for c in project.cells("killed") if c["state"] == "done"), None))
    attempts = project.evals("cell", "show", cell["cell"])["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["infra_failure", "ok"]
    assert "ended from outside" in attempts[0]["error"]


@pytest.mark.long
def test_a_service_that_failed_while_no_engine_was_there_is_the_apps_own_failure(project: Project) -> None:
    deploy(project)
    project.agent("sleep 4.625; touch /tmp/crash; while [ -f /tmp/serves ]; do sleep 0.1; done; exit 1")
    up = "touch /tmp/serves; while [ ! -f /tmp/crash ]; do sleep 0.1; done; rm /tmp/serves; echo the store broke >&2; exit 3"
    project.commit({"bin/up": f"#!/bin/sh\n{up}\n"})
    project.case("c")
    project.experiment("alone")
    name = project.evals("experiment", "run", "alone")["experiment"]
    project.wait_for(lambda: _processes("sleep", "4.625"))
    project.kill_engines(name)
    project.wait_for(lambda: not _processes("sleep", "4.625"))
    project.run("alone")
    (cell,) = project.cells(name)
    (attempt,) = project.evals("cell", "show", cell["cell"])["attempts"]
    assert (attempt["outcome"], attempt["error_class"]) == ("agent_error", "service"), attempt
    assert "the store broke" in attempt["error"]


def _processes(*words: str) -> list[int]:
    """On the host, where a sandbox's processes are seen too."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _words(path) == list(words)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().rstrip("\0").split("\0")
    except OSError:
        return []
